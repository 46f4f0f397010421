"""The simulated testbed: every latency, speed and price of the experiments, with its source.

Entries without a source are marked *assumption*. No assumption was chosen by its effect on results.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from experiments.tasks import testbeds
from stellaris.runtime import FunctionSpec, Machine, PriceSheet, Rate, Transfer
from stellaris.runtime.costs import prices
from stellaris.runtime.delays import Constant, Delay, LogNormal

# ---- latencies, in seconds --------------------------------------------------------------------------------------

#: Launching an actor function. Source: MinionsRL (AAAI 2024), latency breakdown, "around 300 ms".
ACTOR_COLD_START = 0.3
#: Launching a learner function, which attaches a GPU. Source: ibid., "around 1500 ms".
LEARNER_COLD_START = 1.5
#: Launching the parameter function. Assumption: a CPU function, like an actor.
PARAMETER_COLD_START = 0.3
#: How long an idle container stays. Source: the default of SimFaaS (Mahmoudi & Khazaei 2021), 10 minutes.
KEEP_ALIVE = 600.0
#: Invoking a warm function. Assumption: a local gateway; a public cloud's takes several times as long.
INVOCATION = 0.005
#: One request to the store. Assumption: within a data centre.
STORE_LATENCY = 0.0005
#: The store's bandwidth in bytes per second. Source: AWS, p3.2xlarge (one V100), up to 10 Gbit/s.
STORE_BANDWIDTH = 10e9 / 8

# ---- compute times, in seconds ----------------------------------------------------------------------------------

#: One environment step of one actor on one CPU core, including its policy's inference. Assumption.
ENVIRONMENT_STEP = 0.001
#: The environment's part of a step, if a central machine chooses the action. Measured: 16 environments of Hopper-v4 on
#: two cores make 12,500 steps/s alone, and 10,400 with the actors' inference.
ENVIRONMENT_ALONE = ENVIRONMENT_STEP * 10_400 / 12_500
#: One forward pass of the 2x256 network for up to some hundred observations on a V100. Assumption: about a third of a
#: gradient's time, because there is no backward pass.
INFERENCE = 0.003
#: One gradient of the 2x256 network on a minibatch, alone on a V100. Assumption: launching kernels dominates, so the
#: time is the same for every minibatch of up to a few thousand samples.
GRADIENT = 0.010
#: A gradient's time is proportional to `n ** GRADIENT_GROWTH` for `n` samples. The exponent is 0 if launching kernels
#: dominates, and 1 if arithmetic does. Assumption: as for `GRADIENT`.
GRADIENT_GROWTH = 0.0
#: Number of samples with which a gradient takes `GRADIENT` seconds, whatever `GRADIENT_GROWTH` is.
GRADIENT_SAMPLES = 512
#: Exponent of the slow-down of learner functions with the number that share a GPU: from 0 (they run in parallel) to 1
#: (they take turns). Assumption: 0.5, with which four functions take twice as long.
GPU_SHARING = testbeds.GPU_SHARING
#: One optimizer step for a group of gradients. Assumption: on a CPU, 140,000 parameters.
POLICY_UPDATE = 0.005
#: Bandwidth between the machines of data-parallel learners, in bytes per second. Source: as the store's.
LINK_BANDWIDTH = STORE_BANDWIDTH
#: One message between these machines. Assumption: within a data centre.
LINK_LATENCY = 0.00005
#: The part of a round of the authors' demo in which 16 workers are made anew and ten more evaluate. Assumption: some
#: seconds, on Ray; `stellaris-demo-sweeps` sweeps it from 0 to 10 s. The baseline's 20 rounds take 8 s without it; the
#: runs of the paper take 232 to 403 s.
DEMO_OVERHEAD = 5.0
#: Coefficient of variation of every duration above except `KEEP_ALIVE`. Assumption.
VARIATION = 0.1

# ---- prices, in USD per second ----------------------------------------------------------------------------------
# Source: the cost model of the authors' public demo of Stellaris (SC 2024), which has the prices of these machines and
# functions; list prices are in `stellaris/runtime/costs/prices.toml`.

#: A machine's IP address and disk, billed by the month.
ADDRESS_AND_DISK = 17.92 / 30 / 24 / 3600
#: A VM with one V100.
SERVER_LEARNER = prices.machine("aws_ec2", "p3.2xlarge").per_second + ADDRESS_AND_DISK
#: A CPU VM for the actors.
SERVER_ACTORS = prices.machine("aws_ec2", "c5.12xlarge").per_second + ADDRESS_AND_DISK
#: Number of actors that fit on the CPU VM. Source: AWS, c5.12xlarge, 48 virtual processors.
SERVER_ACTORS_PLACES = 48
#: An actor function of 1 GB. The demo rounds this price to 1.67e-5.
ACTOR_FUNCTION = prices.rate("aws_lambda").per_gb_second

#: The price of the parameter function, which the demo does not bill. Assumption: a CPU function, like an actor.
PARAMETER_FUNCTION = ACTOR_FUNCTION


@dataclass(frozen=True)
class Assumed:
    """The assumptions that results may depend on, as parameters of the sweeps."""

    variation: float = VARIATION  #: coefficient of variation of every duration except `KEEP_ALIVE`.
    gradient: float = GRADIENT  #: seconds of a gradient alone on a GPU.
    gpu_sharing: float = GPU_SHARING  #: `k` learner functions on one GPU take `k ** gpu_sharing` times as long.
    growth: float = GRADIENT_GROWTH  #: `n` samples take `(n / GRADIENT_SAMPLES) ** growth` times as long.
    overhead: float = 0.0  #: seconds before each rollout, in which workers are made and policies evaluated.
    step: float = ENVIRONMENT_STEP  #: seconds of an environment step, with inference and a library's overhead.
    update: float = POLICY_UPDATE  #: seconds of an optimizer step for a group of gradients.
    invocation: float = INVOCATION  #: seconds of invoking a warm function.
    actor_places: int = SERVER_ACTORS_PLACES  #: actors that fit on the reserved machine; its price is proportional.
    idle_gpus: bool = False  #: whether the bill by use charges learners that are kept alive as if they were busy.

    def varying(self, mean: float) -> Delay:
        """Returns a log-normal duration with this mean; a mean of 0 does not vary."""
        return LogNormal(mean, self.variation) if mean else Constant(0.0)

    def before_a_rollout(self, invocation: float = 0.0) -> Delay:
        """Returns the delay before a rollout: invoking its function, and the overhead, which does not vary."""
        mean = invocation + self.overhead
        return LogNormal(mean, self.variation * invocation / mean) if invocation else Constant(mean)

    def gradient_on(self, samples: int) -> float:
        """Returns the seconds of a gradient on a minibatch, alone on a GPU."""
        return self.gradient * math.pow(samples / GRADIENT_SAMPLES, self.growth)

    @property
    def transfer(self) -> Transfer:
        """The time of transfers to and from the store."""
        return Transfer(self.varying(STORE_LATENCY), STORE_BANDWIDTH)


#: The default assumptions.
ASSUMED = Assumed()


def _sharers(learners: int) -> int:
    """Returns the number of learner functions per GPU, which slow each other down and share the price."""
    return min(learners, testbeds.LEARNERS_PER_GPU)


def serverless(
    *, actors: int, learners: int, samples: int = GRADIENT_SAMPLES, assumed: Assumed = ASSUMED
) -> dict[str, FunctionSpec]:
    """Returns Stellaris' functions: all start cold, and up to four learners share a GPU.

    Args:
      actors: the most concurrent actor functions.
      learners: the most concurrent learner functions.
      samples: the number of samples per gradient.
      assumed: the durations and their variation.
    """
    varying = assumed.varying
    return {
        "actor": FunctionSpec(
            compute=varying(assumed.step),
            cold_start=varying(ACTOR_COLD_START),
            keep_alive=KEEP_ALIVE,
            max_concurrency=actors,
            queueing=assumed.before_a_rollout(assumed.invocation),
            transfer=assumed.transfer,
        ),
        "learner": FunctionSpec(
            compute=varying(assumed.gradient_on(samples) * _sharers(learners) ** assumed.gpu_sharing),
            cold_start=varying(LEARNER_COLD_START),
            keep_alive=KEEP_ALIVE,
            max_concurrency=learners,
            queueing=varying(assumed.invocation),
            transfer=assumed.transfer,
        ),
        "parameter": FunctionSpec(
            compute=varying(assumed.update),
            cold_start=varying(PARAMETER_COLD_START),
            keep_alive=KEEP_ALIVE,
            max_concurrency=1,
            queueing=varying(assumed.invocation),
            transfer=assumed.transfer,
        ),
    }


def reserved(
    *,
    actors: int,
    learners: int = 1,
    samples: int = GRADIENT_SAMPLES,
    central_inference: bool = False,
    assumed: Assumed = ASSUMED,
) -> dict[str, FunctionSpec]:
    """Returns functions on reserved machines: always warm, called directly, each learner alone on its GPU.

    With N > 1 learners there is a function `all_reduce`, which runs around a ring: its work is in bytes per link, and
    each of its `2 (N - 1)` steps takes one message. With central inference there is an `inference` function on the
    learner's machine.

    Args:
      actors: the most concurrent actors.
      learners: the number of learners.
      samples: the number of samples per gradient.
      central_inference: whether the learner's machine chooses the actions.
      assumed: the durations and their variation.
    """
    varying = assumed.varying
    step = assumed.step * ENVIRONMENT_ALONE / ENVIRONMENT_STEP if central_inference else assumed.step
    functions = {
        "actor": FunctionSpec(
            compute=varying(step),
            max_concurrency=actors,
            queueing=assumed.before_a_rollout(),
            transfer=assumed.transfer,
        ),
        "learner": FunctionSpec(
            compute=varying(assumed.gradient_on(samples)), max_concurrency=learners, transfer=assumed.transfer
        ),
    }
    if learners > 1:
        messages = Constant(2 * (learners - 1) * LINK_LATENCY)
        functions["all_reduce"] = FunctionSpec(Constant(1 / LINK_BANDWIDTH), max_concurrency=1, queueing=messages)
    if central_inference:
        functions["inference"] = FunctionSpec(varying(INFERENCE), max_concurrency=1, transfer=assumed.transfer)
    return functions


def _actor_machines(actors: int, assumed: Assumed) -> float:
    """Returns the USD per second of the machines that have places for the actors."""
    one = SERVER_ACTORS * assumed.actor_places / SERVER_ACTORS_PLACES
    return math.ceil(actors / assumed.actor_places) * one


def serverless_prices(*, actors: int, learners: int, assumed: Assumed = ASSUMED) -> tuple[PriceSheet, PriceSheet]:
    """Returns Stellaris' two bills: the demo's, which charges all machines for the whole duration, and one by use.

    The bill by use charges the overhead of a rollout as time of its actor function.
    """
    gpus = math.ceil(learners / _sharers(learners))
    machines = {
        "learner machines": Machine(gpus * SERVER_LEARNER, runs=("learner",), places=learners),
        "actor machine": Machine(_actor_machines(actors, assumed), runs=("actor",), places=actors),
    }
    demo = PriceSheet("demo", machines=machines, source="the authors' demo bills its run by duration")
    by_use = PriceSheet(
        "pay_per_use",
        {
            "actor": Rate(per_second=ACTOR_FUNCTION, per_request=ACTOR_FUNCTION * assumed.overhead),
            "learner": Rate(per_second=SERVER_LEARNER / _sharers(learners), idle=assumed.idle_gpus),
            "parameter": Rate(per_second=PARAMETER_FUNCTION),
        },
        source="the time that functions run, at the demo's prices; cold starts are not billed",
    )
    return demo, by_use


def reserved_prices(*, actors: int, learners: int = 1, assumed: Assumed = ASSUMED) -> tuple[PriceSheet, PriceSheet]:
    """Returns the two bills of reserved machines, which are equal: machines cost the same busy or idle."""
    machines = {
        "learner machine": Machine(learners * SERVER_LEARNER, runs=("learner",), places=learners),
        "actor machine": Machine(_actor_machines(actors, assumed), runs=("actor",), places=actors),
    }
    source = "reserved machines by wall-clock time"
    return PriceSheet("demo", machines=machines, source=source), PriceSheet(
        "pay_per_use", machines=machines, source=source
    )


def facts() -> dict[str, float]:
    """Returns the constants of this module by name, for the record of a run."""
    return {name: value for name, value in globals().items() if name.isupper() and isinstance(value, float)}


def sources(file: str = __file__) -> dict[str, str]:
    """Returns the `#:` comments of this or another module's constants, which name their sources, by constant."""
    said: dict[str, str] = {}
    lines: list[str] = []
    for line in Path(file).read_text().splitlines():
        if line.startswith("#: "):
            lines.append(line.removeprefix("#: "))
        elif lines:
            said[line.split(" = ")[0].split(":")[0]] = " ".join(lines)
            lines = []
    return said
