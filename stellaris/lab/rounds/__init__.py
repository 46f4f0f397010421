"""Whole runs of MinionsRL as one compiled program, in which the scheduler decides: hundreds of runs in a batch."""

from stellaris.lab.rounds.play import Decider as Decider
from stellaris.lab.rounds.play import Played as Played
from stellaris.lab.rounds.play import Rounds as Rounds
