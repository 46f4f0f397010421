"""The engine that all platforms share: calls, containers, placement and time.

`EnginePlatform` is the base class of platforms, and `BodyRunner` the base class of the objects that run bodies. If
containers are in other processes, the base classes are `ClusterPlatform` and `ClusterBodies`. The engine's modules,
from the outside in:

* `platform` has the methods of the contract. `arguments` checks the arguments of these methods, and `deployment` holds
  the configuration.
* `cluster` has what platforms on clusters share, and `messages` what platforms share that send calls as messages.
  `remote` is the part of a container in its process, and `pickling` makes the error for a value that cannot be sent.
* `lifecycle` takes a call from its submission to its start, and `departures` from there to its end. On the way,
  `course` decides which faults the call meets, `admission` finds a container or queues the call, `transfers` fetches
  the arguments, and `bodies` and `execution` run the body.
* `fleet` holds the containers of all functions, and `containers` the containers of one function. `placement` puts
  containers on nodes.
* `agenda` holds the events to come, and `drivers` move the `clock` from event to event.
"""

from stellaris.runtime.engine.bodies import BodyRunner as BodyRunner
from stellaris.runtime.engine.bodies import ContainerLostError as ContainerLostError
from stellaris.runtime.engine.calls import BodyContext as BodyContext
from stellaris.runtime.engine.calls import Call as Call
from stellaris.runtime.engine.calls import Container as Container
from stellaris.runtime.engine.clock import VirtualClock as VirtualClock
from stellaris.runtime.engine.clock import WallClock as WallClock
from stellaris.runtime.engine.cluster import ClusterBodies as ClusterBodies
from stellaris.runtime.engine.cluster import ClusterPlatform as ClusterPlatform
from stellaris.runtime.engine.deployment import Deployment as Deployment
from stellaris.runtime.engine.execution import run_body as run_body
from stellaris.runtime.engine.platform import EnginePlatform as EnginePlatform
from stellaris.runtime.engine.threads import Outcome as Outcome
