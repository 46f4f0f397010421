"""The simulated testbed: one number of sharers, and one source of prices."""

import math

import pytest

from experiments.tasks import testbed
from stellaris.runtime.costs import prices
from stellaris.runtime.delays import Constant

GRADIENT = testbed.serverless(actors=1, learners=1)["learner"].compute.mean


@pytest.mark.parametrize(
    ("learners", "sharers", "gpus"), [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (64, 4, 16)]
)
def test_those_who_share_a_gpu_are_slowed_down_and_pay_by_their_number(learners, sharers, gpus):
    """At most four on each: two on one GPU are slowed down by the root of two, and pay for half of it."""
    slow = testbed.serverless(actors=1, learners=learners)["learner"].compute.mean
    assert slow == pytest.approx(GRADIENT * math.sqrt(sharers))
    demo, by_use = testbed.serverless_prices(actors=1, learners=learners)
    assert by_use.functions["learner"].per_second == pytest.approx(testbed.SERVER_LEARNER / sharers)
    assert demo.machines["learner machines"].per_second == pytest.approx(gpus * testbed.SERVER_LEARNER)


def test_a_gradients_time_grows_with_its_samples():
    """Not as assumed; by a power of a half, 2,048 samples take twice as long as the 512 whose time is given."""
    assert {testbed.ASSUMED.gradient_on(samples) for samples in (120, 512, 2048)} == {testbed.GRADIENT}
    grown = testbed.Assumed(growth=0.5)
    for samples, factor in ((512, 1.0), (2048, 2.0), (128, 0.5)):
        alone = testbed.reserved(actors=1, samples=samples, assumed=grown)["learner"].compute.mean
        shared = testbed.serverless(actors=1, learners=4, samples=samples, assumed=grown)["learner"].compute.mean
        assert alone == pytest.approx(factor * testbed.GRADIENT)
        assert shared == pytest.approx(2 * alone)


def test_the_overhead_of_a_round():
    """Five seconds before each rollout, for both systems, which do not vary; by use the actor's function is billed."""
    assumed = testbed.Assumed(overhead=5.0)
    reserved, serverless = (
        functions["actor"].queueing
        for functions in (
            testbed.reserved(actors=16, assumed=assumed),
            testbed.serverless(actors=16, learners=4, assumed=assumed),
        )
    )
    assert reserved.seconds == 5.0
    assert serverless.mean == pytest.approx(5.0 + testbed.INVOCATION)
    assert serverless.mean * serverless.cv == pytest.approx(testbed.VARIATION * testbed.INVOCATION)
    rate = testbed.serverless_prices(actors=16, learners=4, assumed=assumed)[1].functions["actor"]
    assert rate.per_request == pytest.approx(5.0 * rate.per_second)
    without = testbed.serverless(actors=16, learners=4)["actor"].queueing
    assert without == testbed.ASSUMED.varying(testbed.INVOCATION)


def test_times_of_steps_updates_and_invocations():
    """As assumed, on either deployment; zero seconds do not vary."""
    assumed = testbed.Assumed(step=0.004, update=0.0, invocation=0.02)
    serverless = testbed.serverless(actors=16, learners=4, assumed=assumed)
    assert (
        serverless["actor"].compute.mean == testbed.reserved(actors=16, assumed=assumed)["actor"].compute.mean == 0.004
    )
    assert serverless["parameter"].compute == Constant(0.0)
    assert {spec.queueing.mean for spec in serverless.values()} == {0.02}
    central = testbed.reserved(actors=16, central_inference=True, assumed=assumed)["actor"].compute
    assert central.mean == pytest.approx(4 * testbed.ENVIRONMENT_ALONE)


def test_what_is_billed():
    """A machine with 16 places costs a third of one with 48; idle GPUs cost nothing by use unless assumed."""
    small = testbed.Assumed(actor_places=16, idle_gpus=True)
    for sheets in (testbed.reserved_prices, lambda **of: testbed.serverless_prices(learners=4, **of)):
        for actors, machines in ((16, 1), (17, 2)):
            price = sheets(actors=actors, assumed=small)[0].machines["actor machine"].per_second
            assert price == pytest.approx(machines * testbed.SERVER_ACTORS / 3)
        assert sheets(actors=16)[0].machines["actor machine"].per_second == pytest.approx(testbed.SERVER_ACTORS)
    billed = [testbed.serverless_prices(actors=16, learners=4, assumed=a)[1] for a in (small, testbed.ASSUMED)]
    assert [sheet.functions["learner"].idle for sheet in billed] == [True, False]


def test_prices_are_those_of_the_price_list():
    """The demo's own: 3.06 and 2.04 USD an hour, and 17.92 USD a month for an address and a disk."""
    beside = 17.92 / (30 * 24)
    assert pytest.approx(3.06 + beside) == testbed.SERVER_LEARNER * 3600
    assert pytest.approx(2.04 + beside) == testbed.SERVER_ACTORS * 3600
    assert testbed.ACTOR_FUNCTION == prices.rate("aws_lambda").per_gb_second == pytest.approx(1.67e-5, rel=3e-3)


def test_data_parallel_learners_pay_for_their_machines_and_the_ring():
    """Four GPUs; an all-reduce of 1.25 GB takes a second, and six messages of 50 us."""
    functions = testbed.reserved(actors=16, learners=4)
    assert functions["all_reduce"].compute.seconds * 1.25e9 == pytest.approx(1.0)
    assert functions["all_reduce"].queueing.seconds == pytest.approx(6 * 50e-6)
    demo, by_use = testbed.reserved_prices(actors=16, learners=4)
    assert demo.machines == by_use.machines
    assert demo.machines["learner machine"].per_second == pytest.approx(4 * testbed.SERVER_LEARNER)


def test_central_inference_takes_the_network_out_of_the_actors_step():
    """What is left is the environment's; what is taken out is a function of its own."""
    central, local = (testbed.reserved(actors=16, central_inference=yes) for yes in (True, False))
    assert central["actor"].compute.mean == pytest.approx(0.832 * local["actor"].compute.mean)
    assert central.keys() - local.keys() == {"inference"}
