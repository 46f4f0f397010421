"""The life of a call, up to its start."""

import numpy as np
import pytest

from tests.runtime.helpers import deploy, drain, nothing, rows, times


def test_queueing_delay():
    with deploy(1.0, queueing=0.5, cold_start=2.0) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=3.25)  # looks at 3.75, when the first one's container is free since 3.5
        assert [(times(i), i.cold) for i in drain(platform)] == [
            ((0.0, 2.5, 3.5), True),
            ((3.25, 3.75, 4.75), False),
        ]


@pytest.mark.parametrize("seed", range(30))
def test_calls_arrive_in_the_order_of_their_instants(seed):
    rng = np.random.default_rng(seed)
    instants = rng.integers(0, 12, size=40).astype(float)
    if seed % 2:
        instants.sort()
    with deploy(0.25) as platform:
        calls = [platform.invoke("f", nothing, at=at) for at in instants]
        cancelled = {int(number) for number in rng.choice(40, size=seed % 5, replace=False)}
        for number in cancelled:
            platform.cancel(calls[number])
        while platform.next_completion(until=6.0):
            pass
        late = [platform.invoke("f", nothing, at=at) for at in (6.0, 8.5, 6.5, 20.0)]  # after half have arrived
        drain(platform)
        arrived = [row[3] for row in rows(platform) if row[1] == "submitted"]
        expected = sorted((call.submitted, call.number) for call in [*calls, *late] if call.number not in cancelled)
    assert arrived == [number for _, number in expected]
