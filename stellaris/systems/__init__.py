"""Actor-learner architectures, each an event loop over a platform."""

from stellaris.systems.stellaris import Stellaris as Stellaris
from stellaris.systems.synchronous import Synchronous as Synchronous
from stellaris.systems.training import Result as Result
from stellaris.systems.training import train as train
from stellaris.systems.workload import Budget as Budget
from stellaris.systems.workload import Workload as Workload
