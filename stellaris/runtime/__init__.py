"""The platforms on which systems run: simulated, and on a Ray cluster."""

from typing import TYPE_CHECKING, Any

from stellaris.extras import needs
from stellaris.runtime import delays as delays
from stellaris.runtime.billing import Bill as Bill
from stellaris.runtime.checkpoint import Checkpoints as Checkpoints
from stellaris.runtime.contract import Platform as Platform
from stellaris.runtime.functions import Context as Context
from stellaris.runtime.functions import Function as Function
from stellaris.runtime.functions import FunctionError as FunctionError
from stellaris.runtime.functions import FunctionSpec as FunctionSpec
from stellaris.runtime.functions import Invocation as Invocation
from stellaris.runtime.functions import Retry as Retry
from stellaris.runtime.functions import Transfer as Transfer
from stellaris.runtime.price_sheets import Machine as Machine
from stellaris.runtime.price_sheets import PriceSheet as PriceSheet
from stellaris.runtime.price_sheets import Rate as Rate
from stellaris.runtime.resources import Node as Node
from stellaris.runtime.resources import Resources as Resources
from stellaris.runtime.simulated.deployment import Deployment as Deployment
from stellaris.runtime.simulated.faults import Faults as Faults
from stellaris.runtime.simulated.faults import Outages as Outages
from stellaris.runtime.simulated.faults import StoreFaults as StoreFaults
from stellaris.runtime.simulated.faults import StoreRefusedError as StoreRefusedError
from stellaris.runtime.simulated.platform import SimulatedPlatform as SimulatedPlatform
from stellaris.runtime.simulated.recorded import Recording as Recording
from stellaris.runtime.snapshots import CheckpointError as CheckpointError
from stellaris.runtime.store import Store as Store
from stellaris.runtime.trace import Trace as Trace
from stellaris.runtime.usage import Split as Split
from stellaris.runtime.versions import StoreFullError as StoreFullError
from stellaris.saved import saved as saved
from stellaris.types import Versioned as Versioned

if TYPE_CHECKING:
    from stellaris.runtime.cluster.platform import RayPlatform as RayPlatform


def __getattr__(name: str) -> Any:
    """Imports Ray's platform when it is asked for: Ray is an extra, and takes its time."""
    if name != "RayPlatform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("RayPlatform"):
        from stellaris.runtime.cluster.platform import RayPlatform
    return RayPlatform
