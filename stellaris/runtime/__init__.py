"""The simulated serverless platform."""

from stellaris.runtime import delays as delays
from stellaris.runtime.billing import Bill as Bill
from stellaris.runtime.billing import Machine as Machine
from stellaris.runtime.billing import PriceSheet as PriceSheet
from stellaris.runtime.billing import Rate as Rate
from stellaris.runtime.billing import Split as Split
from stellaris.runtime.faults import Faults as Faults
from stellaris.runtime.faults import Outages as Outages
from stellaris.runtime.faults import StoreFaults as StoreFaults
from stellaris.runtime.faults import StoreRefusedError as StoreRefusedError
from stellaris.runtime.functions import Context as Context
from stellaris.runtime.functions import Function as Function
from stellaris.runtime.functions import FunctionError as FunctionError
from stellaris.runtime.functions import FunctionSpec as FunctionSpec
from stellaris.runtime.functions import Invocation as Invocation
from stellaris.runtime.functions import Retry as Retry
from stellaris.runtime.functions import Transfer as Transfer
from stellaris.runtime.placement import Node as Node
from stellaris.runtime.placement import Resources as Resources
from stellaris.runtime.platform import SimulatedPlatform as SimulatedPlatform
from stellaris.runtime.store import Store as Store
from stellaris.runtime.store import StoreFullError as StoreFullError
from stellaris.runtime.store import Versioned as Versioned
from stellaris.runtime.trace import Trace as Trace
