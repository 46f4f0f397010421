"""The engine that all platforms share: calls, containers, placement and time.

`EnginePlatform` is the base class of platforms, `BodyRunner` the base class of objects that run bodies. The engine's
name for an invocation is a call. The modules, from the outside in: `platform` has the methods of the contract and
checks their `arguments`. It turns a `deployment` into the `lifecycle` of calls. The lifecycle looks up a call's
`course`, asks `admission` for a container, fetches arguments by `transfers`, has the `bodies` run (`execution`), and
ends the call by `departures`. Containers belong to the `fleet`: `containers` holds the containers of one function,
`placement` puts them on nodes. Every step is an event of the `agenda`, and `drivers` move the `clock` from event to
event.
"""

from stellaris.runtime.engine.bodies import BodyRunner as BodyRunner
from stellaris.runtime.engine.bodies import ContainerLostError as ContainerLostError
from stellaris.runtime.engine.calls import BodyContext as BodyContext
from stellaris.runtime.engine.calls import Call as Call
from stellaris.runtime.engine.calls import Container as Container
from stellaris.runtime.engine.clock import VirtualClock as VirtualClock
from stellaris.runtime.engine.clock import WallClock as WallClock
from stellaris.runtime.engine.deployment import Deployment as Deployment
from stellaris.runtime.engine.execution import run_body as run_body
from stellaris.runtime.engine.platform import EnginePlatform as EnginePlatform
from stellaris.runtime.engine.threads import Outcome as Outcome
