"""The simulated platform: the contract of `stellaris.runtime.contract`, kept in virtual and in wall time.

From the outside in: `platform` has the contract's methods, whose `arguments` are checked. It makes a `deployment` into
the `lifecycle` of calls, which looks up a call's `course`, asks `admission` for a container, fetches the call's
arguments by `transfers`, runs its body by `bodies` on `threads`, and ends it by `departures`. Containers are the
`fleet`'s, in `containers` by function, on nodes by `placement`. Every step is an event of the `agenda`, and `drivers`
move the `clock` from event to event.
"""
