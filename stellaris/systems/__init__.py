"""Actor-learner architectures, each an event loop over a platform, and the parts from which event loops are built."""

from stellaris.systems import programs as programs
from stellaris.systems.batches import GradientTask as GradientTask
from stellaris.systems.batches import LearnerBatch as LearnerBatch
from stellaris.systems.batches import batch_of as batch_of
from stellaris.systems.central_inference import CentralInference as CentralInference
from stellaris.systems.central_learner import AsynchronousActors as AsynchronousActors
from stellaris.systems.central_learner import Synchronous as Synchronous
from stellaris.systems.circular_replay import CircularReplay as CircularReplay
from stellaris.systems.data_parallel import DataParallel as DataParallel
from stellaris.systems.deliveries import Deliveries as Deliveries
from stellaris.systems.fragments import Fragments as Fragments
from stellaris.systems.history import Row as Row
from stellaris.systems.history import history as history
from stellaris.systems.minionsrl import MinionsRL as MinionsRL
from stellaris.systems.pending_gradients import PendingGradients as PendingGradients
from stellaris.systems.record import Record as Record
from stellaris.systems.rollouts import Waiting as Waiting
from stellaris.systems.session import Session as Session
from stellaris.systems.staleness_control import StalenessControl as StalenessControl
from stellaris.systems.stellaris import Stellaris as Stellaris
from stellaris.systems.system import System as System
from stellaris.systems.training import Result as Result
from stellaris.systems.training import train as train
from stellaris.systems.workload import Budget as Budget
from stellaris.systems.workload import Evaluation as Evaluation
from stellaris.systems.workload import Workload as Workload
