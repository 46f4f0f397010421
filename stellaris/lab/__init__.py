"""The lab: a staleness study as one compiled program."""

from stellaris.lab.alignment import measure_alignment as measure_alignment
from stellaris.lab.comparison import at_best as at_best
from stellaris.lab.comparison import half_lag as half_lag
from stellaris.lab.comparison import interval as interval
from stellaris.lab.dry_run import dry_run as dry_run
from stellaris.lab.environments import CartPole as CartPole
from stellaris.lab.environments import TMaze as TMaze
from stellaris.lab.gymnax_env import Gymnax as Gymnax
from stellaris.lab.imposed import Constant as Constant
from stellaris.lab.imposed import Logged as Logged
from stellaris.lab.imposed import Maximum as Maximum
from stellaris.lab.imposed import Mixed as Mixed
from stellaris.lab.imposed import Sawtooth as Sawtooth
from stellaris.lab.imposed import imposed as imposed
from stellaris.lab.recorded import recorded as recorded
from stellaris.lab.rounds import Played as Played
from stellaris.lab.rounds import Rounds as Rounds
from stellaris.lab.schedule import Schedule as Schedule
from stellaris.lab.sweep import mean_evaluation as mean_evaluation
from stellaris.lab.sweep import mean_return as mean_return
from stellaris.lab.sweep import sweep as sweep
from stellaris.lab.throughput import Throughput as Throughput
from stellaris.lab.throughput import throughput as throughput
from stellaris.lab.throughput import throughputs as throughputs
