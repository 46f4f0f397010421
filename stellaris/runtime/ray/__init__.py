"""The platform on a Ray cluster: the engine on the wall clock, with a Ray actor for every container.

Limits, queues, keep-alive, time-outs and retries are the engine's, as on the simulated platform. `platform` connects to
the cluster, `bodies` sends calls to actors, `container` is the process inside an actor, `packing` turns values into
messages, and `store` keeps versions in Ray's object store.
"""
