"""The platforms on which systems run: a simulated platform, and platforms on a Ray or a Dask cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stellaris._core.extras import needs
from stellaris.runtime import delays as delays
from stellaris.runtime.contract import Platform as Platform
from stellaris.runtime.costs.billing import Bill as Bill
from stellaris.runtime.costs.price_sheets import Machine as Machine
from stellaris.runtime.costs.price_sheets import PriceSheet as PriceSheet
from stellaris.runtime.costs.price_sheets import Rate as Rate
from stellaris.runtime.costs.usage import Split as Split
from stellaris.runtime.engine.deployment import Deployment as Deployment
from stellaris.runtime.engine.faults import Faults as Faults
from stellaris.runtime.engine.faults import Outages as Outages
from stellaris.runtime.engine.faults import StoreFaults as StoreFaults
from stellaris.runtime.engine.faults import StoreRefusedError as StoreRefusedError
from stellaris.runtime.engine.recorded import Recording as Recording
from stellaris.runtime.functions import Context as Context
from stellaris.runtime.functions import Function as Function
from stellaris.runtime.functions import FunctionError as FunctionError
from stellaris.runtime.functions import FunctionSpec as FunctionSpec
from stellaris.runtime.functions import Invocation as Invocation
from stellaris.runtime.functions import Retry as Retry
from stellaris.runtime.functions import Transfer as Transfer
from stellaris.runtime.resources import Node as Node
from stellaris.runtime.resources import Resources as Resources
from stellaris.runtime.simulated.platform import SimulatedPlatform as SimulatedPlatform
from stellaris.runtime.state.checkpoint import Checkpoints as Checkpoints
from stellaris.runtime.state.codec import CheckpointError as CheckpointError
from stellaris.runtime.state.registry import register_value as register_value
from stellaris.runtime.store.store import Store as Store
from stellaris.runtime.store.versions import StoreFullError as StoreFullError
from stellaris.runtime.trace.trace import Trace as Trace
from stellaris.runtime.worklog import Work as Work
from stellaris.runtime.worklog import WorkLog as WorkLog
from stellaris.types import Versioned as Versioned

if TYPE_CHECKING:
    from stellaris.runtime.dask.platform import DaskPlatform as DaskPlatform
    from stellaris.runtime.ray.platform import RayPlatform as RayPlatform


def __getattr__(name: str) -> Any:
    """Imports a cluster's platform at its first use, because Ray and Dask are optional and slow to import."""
    if name not in ("RayPlatform", "DaskPlatform"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = name.removesuffix("Platform").lower()
    with needs(name):
        return getattr(import_module(f"stellaris.runtime.{module}.platform"), name)
