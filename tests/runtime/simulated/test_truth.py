"""Open-loop arrivals against queueing theory, and against SimFaaS, whose model was validated on AWS Lambda."""

import json
import math
import subprocess
import sys

import pytest

from tests.runtime.simulated.open_loop import ARRIVALS, ERLANG, SIMFAAS, Compared, Observed


@pytest.fixture(scope="module")
def observed() -> dict[str, list]:
    """All runs' results by name."""
    command = [sys.executable, "-m", "tests.runtime.simulated.open_loop"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", SIMFAAS)
def test_agrees_with_simfaas(case, observed):
    """Given the same arrivals and service times the same ones meet a cold start; averages differ by rounding alone."""
    for ours, theirs in observed[f"simfaas {case}"]:
        assert Compared(*ours).cold == Compared(*theirs).cold
        assert ours[1:] == pytest.approx(theirs[1:], rel=1e-9)
        assert len(ours[0]) > (100 if case[2] < 60 else 3)  # there was something to agree on


def erlang_b(servers: int, load: float) -> float:
    """The probability that all of `servers` are busy, by its recursion."""
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    return blocking


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "load"), ERLANG)
@pytest.mark.parametrize(
    "limit", ["max_concurrency Exponential", "reserved_concurrency Exponential", "max_concurrency Constant"]
)
def test_erlang_b(servers, load, limit, observed):
    """A limit that rejects blocks as Erlang says, whatever the distribution of the service time."""
    got = Observed(*observed[f"erlang {servers} {load} {limit}"])
    expected = erlang_b(servers, load)
    # Rejections come in bursts: their number varies more than by chance alone.
    assert got.rejected == pytest.approx(expected, rel=0.03, abs=6 * math.sqrt(expected / ARRIVALS))
    assert got.running == pytest.approx(load * (1.0 - expected), rel=0.03)  # Little's law


@pytest.mark.slow
def test_erlang_c(observed):
    servers, load = 4, 3.0
    got, blocking = Observed(*observed["queue"]), erlang_b(servers, load)
    waits = servers * blocking / (servers - load * (1 - blocking))
    assert got.waits == pytest.approx(waits, rel=0.06)
    assert got.waiting == pytest.approx(waits * 2.0 / (servers - load), rel=0.15)
