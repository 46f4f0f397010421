"""The simulated serverless platform."""

from stellaris.runtime import delays as delays
from stellaris.runtime.billing import Bill as Bill
from stellaris.runtime.billing import PriceSheet as PriceSheet
from stellaris.runtime.functions import Context as Context
from stellaris.runtime.functions import Function as Function
from stellaris.runtime.functions import FunctionError as FunctionError
from stellaris.runtime.functions import FunctionSpec as FunctionSpec
from stellaris.runtime.functions import Invocation as Invocation
from stellaris.runtime.functions import Transfer as Transfer
from stellaris.runtime.platform import SimulatedPlatform as SimulatedPlatform
from stellaris.runtime.store import Store as Store
from stellaris.runtime.store import Versioned as Versioned
from stellaris.runtime.trace import Trace as Trace
