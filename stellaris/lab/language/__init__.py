"""A language task in the lab: a small transformer answers prompts, and a rule rewards the answers."""

from stellaris.lab.language.corrections import DPPO as DPPO
from stellaris.lab.language.corrections import GSPO as GSPO
from stellaris.lab.language.corrections import M2PO as M2PO
from stellaris.lab.language.corrections import SAPO as SAPO
from stellaris.lab.language.corrections import TOPR as TOPR
from stellaris.lab.language.corrections import VESPO as VESPO
from stellaris.lab.language.corrections import Bounded as Bounded
from stellaris.lab.language.corrections import Decoupled as Decoupled
from stellaris.lab.language.corrections import Truncated as Truncated
from stellaris.lab.language.corrections import Uncorrected as Uncorrected
from stellaris.lab.language.environment import Answering as Answering
from stellaris.lab.language.generation import TextPolicy as TextPolicy
from stellaris.lab.language.generation import Texts as Texts
from stellaris.lab.language.learning import GRPO as GRPO
from stellaris.lab.language.tasks import PAD as PAD
from stellaris.lab.language.tasks import Addition as Addition
from stellaris.lab.language.tasks import Sorting as Sorting
from stellaris.lab.language.tasks import Task as Task
from stellaris.lab.language.transformer import Observation as Observation
from stellaris.lab.language.transformer import Transformer as Transformer
from stellaris.lab.language.warm_start import WarmStart as WarmStart
from stellaris.lab.language.workload import workload as workload
