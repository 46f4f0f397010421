"""The contract of `stellaris.runtime.contract` on a Ray cluster.

Calls live as they do on the wall clock of the simulated platform, whose events this one shares: limits, queues,
keep-alive, time-outs and retries are the same code. What differs is that a container is an actor of Ray's: `platform`
connects, `bodies` run in a `container` each, `packing` says what crosses to it, and `store` keeps versions in Ray's
object store.
"""
