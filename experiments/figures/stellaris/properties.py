"""What the architectures can and cannot do: the paper's table, with the system here that stands for each framework."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stellaris.systems.central_inference import CentralInference
from stellaris.systems.central_learner import AsynchronousActors, Synchronous
from stellaris.systems.data_parallel import DataParallel
from stellaris.systems.minionsrl import MinionsRL
from stellaris.systems.stellaris import Stellaris


class Properties(NamedTuple):
    """A framework as the paper compares it, and which system here has its architecture."""

    asynchronous_learners: bool  #: gradients are computed at once on different versions.
    scalable_actors: bool  #: how many actors run, and are paid for, changes within a run.
    on_and_off_policy: bool  #: it trains both kinds of algorithm.
    serverless: bool  #: functions start on demand, and only their use is paid for.
    system: type


#: By framework. Source: Stellaris (SC 2024), the table of related systems.
PROPERTIES: Mapping[str, Properties] = MappingProxyType(
    {
        "RLlib": Properties(False, False, True, False, Synchronous),
        "MSRL": Properties(False, False, True, False, DataParallel),
        "SEED RL": Properties(False, False, True, False, CentralInference),
        "SRL": Properties(False, False, False, False, AsynchronousActors),
        "MinionsRL": Properties(False, True, False, True, MinionsRL),
        "Stellaris": Properties(True, True, True, True, Stellaris),
    }
)
