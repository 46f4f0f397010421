"""Open-loop arrivals against queueing theory, and against SimFaaS, whose model was validated on AWS Lambda."""

import json
import math
import subprocess
import sys

import pytest

from tests.runtime.simulated.open_loop import ARRIVALS, ERLANG, SERVICES, SIMFAAS, Compared, Observed


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


def test_the_rule_of_reuse_matters(observed):
    """As the newest first lets the oldest expire, other rules have other probabilities of a cold start."""
    newest, recent, least = (Observed(*observed[rule]) for rule in ("newest", "most_recent", "least_recent"))
    assert newest.running == recent.running == least.running  # the same arrivals and draws
    assert least.cold < 0.5 * newest.cold
    assert least.containers > 1.2 * newest.containers
    assert 0.02 < abs(recent.cold / newest.cold - 1) < 0.2


@pytest.mark.parametrize("service", SERVICES)
def test_little(service, observed):
    """Mean running = arrival rate x mean service time, whatever its distribution."""
    got = Observed(*observed[f"little {service}"])
    assert got.service == pytest.approx(2.0, rel=0.03)
    assert got.running == pytest.approx(got.rate * got.service, rel=1e-9)
    assert got.running == pytest.approx(6.0, rel=0.05)


def erlang_b(servers: int, load: float) -> float:
    """The probability that all of `servers` are busy, by its recursion."""
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    return blocking


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


def test_erlang_c(observed):
    """A limit that queues makes the share wait, and for as long, that Erlang says."""
    servers, load = 4, 3.0
    got, blocking = Observed(*observed["queue"]), erlang_b(servers, load)
    waits = servers * blocking / (servers - load * (1 - blocking))
    assert got.waits == pytest.approx(waits, rel=0.06)
    assert got.waiting == pytest.approx(waits * 2.0 / (servers - load), rel=0.15)
