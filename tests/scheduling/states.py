"""States of runs that were made up, for schedulers to decide about."""

import hypothesis.strategies as st

from stellaris.scheduling import State


def state(number: int = 1, **known: float) -> State:
    """Before a round of this number; what is not given is 0."""
    return State(round=number, **(dict.fromkeys(State._fields[1:], 0.0) | known))


def returned(*returns: float) -> list[State]:
    """Before each round of a run, and before the next one, whose rounds had these mean returns."""
    return [state(), *(state(k, episode_return=value) for k, value in enumerate(returns, start=2))]


#: Any run of up to twelve rounds.
RUNS = st.lists(st.floats(-1e6, 1e6), max_size=12).map(lambda returns: returned(*returns))
