"""The paper's table of related frameworks: their properties, and the system that stands for each of them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stellaris.systems.central_inference import CentralInference
from stellaris.systems.central_learner import AsynchronousActors, Synchronous
from stellaris.systems.data_parallel import DataParallel
from stellaris.systems.minionsrl import MinionsRL
from stellaris.systems.stellaris import Stellaris


class Properties(NamedTuple):
    """The properties of a framework in the paper's table, and the system with its architecture."""

    asynchronous_learners: bool  #: learners compute gradients on different versions at the same time.
    scalable_actors: bool  #: the number of actors that run, and are billed, changes within a run.
    on_and_off_policy: bool  #: trains on-policy and off-policy algorithms.
    serverless: bool  #: functions start on demand and are billed by use.
    system: type  #: the class in `stellaris.systems`.


#: Properties by framework. Source: Stellaris (SC 2024), the table of related systems.
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
