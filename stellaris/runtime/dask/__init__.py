"""The platform on a Dask cluster: the engine on the wall clock, with a Dask actor for every container.

`platform` connects to the cluster, `bodies` makes actors and sends messages to them, and `actor` is the actor.
"""
