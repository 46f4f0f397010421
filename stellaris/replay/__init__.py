"""Replay of whole trajectories on the device, for sequence models: tables, selection and windows (GEAR, ICML 2023).

Every function is pure and compiles into a training step; a function that changes a table donates the table's buffers.
`sharded` has the same functions for a table spread over the devices of a mesh, `shared` a table in host memory that
several processes share, `files` saves and loads tables, and `datasets` reads offline datasets; the last two need
`pip install 'stellaris-rl[replay]'`.
"""

from stellaris.replay import datasets as datasets
from stellaris.replay import files as files
from stellaris.replay import sharded as sharded
from stellaris.replay import shared as shared
from stellaris.replay.episodes import Episodes as Episodes
from stellaris.replay.episodes import Trajectories as Trajectories
from stellaris.replay.episodes import columns_of as columns_of
from stellaris.replay.rows import Trajectory as Trajectory
from stellaris.replay.rows import trajectory as trajectory
from stellaris.replay.rows import write as write
from stellaris.replay.selection import Selection as Selection
from stellaris.replay.selection import importance_weights as importance_weights
from stellaris.replay.selection import select as select
from stellaris.replay.table import Table as Table
from stellaris.replay.table import check as check
from stellaris.replay.table import init as init
from stellaris.replay.table import insert as insert
from stellaris.replay.table import reweigh as reweigh
from stellaris.replay.table import update_weights as update_weights
from stellaris.replay.windows import Gathered as Gathered
from stellaris.replay.windows import Window as Window
from stellaris.replay.windows import gather as gather
from stellaris.replay.windows import random_steps as random_steps
from stellaris.replay.windows import return_to_go as return_to_go
