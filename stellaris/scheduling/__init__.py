"""Schedulers decide how many actors sample in each round, by a rule or by a policy that `training` has trained."""

from stellaris.scheduling.learned import Learned as Learned
from stellaris.scheduling.learned import SchedulerError as SchedulerError
from stellaris.scheduling.rules import Adapt as Adapt
from stellaris.scheduling.rules import Fixed as Fixed
from stellaris.scheduling.rules import Maximum as Maximum
from stellaris.scheduling.rules import Stepped as Stepped
from stellaris.scheduling.scheduler import Scheduler as Scheduler
from stellaris.scheduling.scheduler import State as State
