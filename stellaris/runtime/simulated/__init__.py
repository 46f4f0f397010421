"""The simulated platform: the contract of `stellaris.runtime.contract`, kept in virtual and in wall time.

From the outside in: `platform` has the contract's methods, whose `arguments` are checked. It makes a `deployment` into
the `lifecycle` of calls. That looks up a call's `course`, asks `admission` for a container, fetches what the call needs
by `transfers`, runs its body by `bodies` (`execution` on `threads`), and ends it by `departures`. Containers belong to
the `fleet`: `containers` holds those of one function, `placement` puts them on nodes. Every step is an event of the
`agenda`, and `drivers` move the `clock` from event to event.
"""
