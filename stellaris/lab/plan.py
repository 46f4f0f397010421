"""Plans: a schedule in the form that a compiled program follows.

A plan assigns each waiting fragment and batch a *place*, an index into an array that the program keeps. A *wave* is a
group of the schedule's pieces that are sampled with one version in different environments; these environments are
stepped together.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from stellaris.lab.schedule import NONE, Schedule
from stellaris.types import Array, NDArray


class Sizes(NamedTuple):
    """The sizes of a program's arrays; plans of equal sizes share one compilation."""

    slots: int  #: number of environments.
    fragments: int  #: number of places for fragments.
    batches: int  #: number of places for batches.
    versions: int  #: number of versions that are kept.
    width: int  #: the largest number of pieces in a wave.


class Plan(NamedTuple):
    """The work of every update, int32. `*_until`, `[U + 1]`: entry u counts the rows that precede update u."""

    waves_until: Array
    wave_version: Array  #: `[N]`.
    wave_slot: Array  #: `[N, W]`: the environment; `slots` in an unused column.
    wave_start: Array  #: `[N, W]`: the number that seeds a new start of the environment; `NONE` to continue.
    wave_noise: Array  #: `[N, W]`: the number that selects the noise of the actions.
    wave_place: Array  #: `[N, W]`: the fragment's place; `fragments` in an unused column or for a piece in no batch.
    wave_offset: Array  #: `[N, W]`: the index of the piece within its fragment.
    batches_until: Array
    batch_fragments: Array  #: `[B, n]`: the places of its fragments.
    batch_target: Array  #: `[B]`.
    batch_place: Array  #: `[B]`.
    gradients_until: Array
    gradient_place: Array  #: `[G]`: the place of its batch.
    gradient_row: Array
    gradient_version: Array
    gradient_learner: Array
    gradient_held: Array  #: `[G, h]`: the versions that cap its ratios.
    merges_until: Array
    merge_place: Array  #: `[M]`: the place of a batch whose observations are added to the normalisation.
    learns: Array  #: `[U]`: the place of the batch that is learned from as a whole, or `NONE`.
    round: Array  #: `[U]`.


def plan_of(schedule: Schedule, *, width: int | None = None) -> tuple[Sizes, Plan]:
    """Makes the plan of a schedule, and the sizes of the arrays that it needs.

    Args:
      schedule: the schedule.
      width: the largest number of pieces in a wave; by default the number of environments.
    """
    width = schedule.slots if width is None else width
    pieces, fragments = _fragment_places(schedule)
    batch_place, batches = _batch_places(schedule)
    waves = _waves(schedule, width)
    updates = schedule.updates

    def table(column: NDArray, none: int) -> NDArray:
        rows = np.full((len(waves), width), none, np.int32)
        for row, members in zip(rows, waves, strict=True):
            row[: len(members)] = column[members]
        return rows

    offset = np.zeros(len(schedule.piece_before), np.int32)
    offset[schedule.batch_pieces] = np.arange(schedule.batch_pieces.shape[2])
    heads = np.array([members[0] for members in waves], np.int64)
    merged = np.flatnonzero(schedule.batch_merged != NONE)
    merged = merged[np.argsort(schedule.batch_merged[merged], kind="stable")]
    sizes = Sizes(schedule.slots, _rounded(fragments), _rounded(batches), _roomy(schedule.lookback + 1), width)
    plan = Plan(
        waves_until=_until(schedule.piece_before[heads], updates),
        wave_version=schedule.piece_version[heads],
        wave_slot=table(schedule.piece_slot, schedule.slots),
        wave_start=table(schedule.piece_start, NONE),
        wave_noise=table(schedule.piece_noise, 0),
        wave_place=table(np.where(pieces < fragments, pieces, sizes.fragments), sizes.fragments),
        wave_offset=table(offset, 0),
        batches_until=_until(schedule.batch_before, updates),
        batch_fragments=pieces[schedule.batch_pieces[:, :, 0]],
        batch_target=schedule.batch_target,
        batch_place=batch_place,
        gradients_until=_until(schedule.gradient_before, updates),
        gradient_place=batch_place[schedule.gradient_batch],
        gradient_row=schedule.gradient_row,
        gradient_version=schedule.gradient_version,
        gradient_learner=schedule.gradient_learner,
        gradient_held=_distinct(schedule),
        merges_until=_until(schedule.batch_merged[merged], updates),
        merge_place=batch_place[merged],
        learns=np.where(schedule.update_batch == NONE, NONE, batch_place[schedule.update_batch]).astype(np.int32),
        round=schedule.update_round,
    )
    return sizes, Plan(*[_padded(column) if name in _TABLES else column for name, column in plan._asdict().items()])


#: The columns whose rows are padded. The program never reads the padding, because `*_until` ends before it.
_TABLES = frozenset(name for name in Plan._fields if name.startswith(("wave_", "batch_", "gradient_", "merge_")))


def _distinct(schedule: Schedule) -> NDArray:
    """Leaves out the last columns of the held versions, if they repeat the learner's own version in every row.

    Many learners hold few distinct versions, and each column costs a pass through the network per gradient. One column
    stays, because without other policies there is no cap.
    """
    held = schedule.gradient_held
    columns = np.flatnonzero((held != schedule.gradient_version[:, None]).any(axis=0))
    return held[:, : _rounded(1 + int(columns.max(initial=0)))]


def _rounded(n: int) -> int:
    """The next power of two, so that plans that differ a little share a compiled program."""
    return 1 << (n - 1).bit_length() if n else 0


def _roomy(n: int) -> int:
    """Rounds up by less than 16: kept versions are the largest arrays of a run, so more padding would waste memory."""
    return _rounded(n) if n < 16 else -(-n // 16) * 16


def _padded(column: NDArray) -> NDArray:
    """Repeats the last row up to a power of two; an empty table gets a row of zeros, because tracing reads a row."""
    if not len(column):
        return np.zeros((1, *column.shape[1:]), column.dtype)
    return np.concatenate([column, np.repeat(column[-1:], _rounded(len(column)) - len(column), axis=0)])


def _until(before: NDArray, updates: int) -> NDArray:
    """Returns `until`, `[updates + 1]`: the number of a table's rows that precede each update; last, all rows.

    The rows of update u are `until[u]` to `until[u + 1] - 1`.
    """
    return np.searchsorted(before, np.arange(updates + 1), side="left").astype(np.int32)


def _waves(schedule: Schedule, width: int) -> list[NDArray]:
    """Groups successive pieces of one version, one update and different environments into waves of at most `width`."""
    waves: list[list[int]] = []
    key, taken = None, set[int]()
    for piece, (before, version, slot) in enumerate(
        zip(
            schedule.piece_before.tolist(),
            schedule.piece_version.tolist(),
            schedule.piece_slot.tolist(),
            strict=True,
        )
    ):
        if key != (before, version) or slot in taken or len(taken) == width:
            key, taken = (before, version), set()
            waves.append([])
        waves[-1].append(piece)
        taken.add(slot)
    return [np.array(wave) for wave in waves]


def _fragment_places(schedule: Schedule) -> tuple[NDArray, int]:
    """Returns the place of each piece's fragment, and the number of places, which also marks pieces in no batch."""
    users, fragments, _ = schedule.batch_pieces.shape
    begin: dict[tuple[int, ...], int] = {}
    end: dict[tuple[int, ...], int] = {}
    for batch in range(users):
        for f in range(fragments):
            own = tuple(schedule.batch_pieces[batch, f].tolist())
            begin.setdefault(own, int(schedule.piece_before[own[0]]))
            end[own] = int(schedule.batch_before[batch])  # batches are in order, so the last batch sets the end
    places, count = _allocated([(begin[own], end[own]) for own in begin])
    of_piece = np.full(len(schedule.piece_before), count, np.int32)
    for own, place in zip(begin, places, strict=True):
        of_piece[list(own)] = place
    return of_piece, count


def _batch_places(schedule: Schedule) -> tuple[NDArray, int]:
    """Returns the place of each batch, and the number of places."""
    last = schedule.batch_before.copy()
    np.maximum.at(last, schedule.gradient_batch, schedule.gradient_before)
    whole = np.flatnonzero(schedule.update_batch != NONE)
    np.maximum.at(last, schedule.update_batch[whole], whole.astype(np.int32))
    last = np.maximum(last, schedule.batch_merged)
    places, count = _allocated(list(zip(schedule.batch_before.tolist(), last.tolist(), strict=True)))
    return np.array(places, np.int32), max(count, 1)


def _allocated(lives: Iterable[tuple[int, int]]) -> tuple[list[int], int]:
    """Returns a place for each life, and the number of places, which is as small as possible.

    A life is a pair: the first and the last update at which the place is in use. Lives that overlap differ in place.

    Example:
      >>> _allocated([(0, 1), (1, 1), (2, 3)])
      ([0, 1, 0], 2)
    """
    lives = list(lives)
    places = [0] * len(lives)
    free_from: list[int] = []  # by place: the first update at which it is free
    for i in sorted(range(len(lives)), key=lambda i: lives[i]):
        begin, end = lives[i]
        place = next((p for p, free in enumerate(free_from) if free <= begin), len(free_from))
        if place == len(free_from):
            free_from.append(0)
        free_from[place] = end + 1
        places[i] = place
    return places, len(free_from)
