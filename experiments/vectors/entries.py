"""The functions that have reference vectors, with their inputs and settings; and the functions that lack them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

import stellaris
from experiments.vectors.scenes import MASKED, NUMBERS, PACKED, PLAIN, QUEUES
from stellaris.types import NDArray

#: The fewest calls of a function.
CALLS = 20


class Of(NamedTuple):
    """A setting that is an array of the scene."""

    name: str


@dataclass(frozen=True)
class Entry:
    """A function with its inputs; settings take turns from call to call."""

    function: Callable[..., Any]
    arrays: Mapping[str, str]  #: the scene's array for each argument.
    settings: tuple[Mapping[str, Any], ...] = ({},)
    optional: tuple[str, ...] = ()  #: arguments that only some scenes have: `valid`, `segment`.
    scenes: tuple[Any, ...] = PLAIN
    differentiable: bool = True  #: whether JAX can differentiate it.

    def calls(self) -> Iterator[tuple[str, dict[str, NDArray], dict[str, Any]]]:
        """Yields a description, the arrays and the settings of each call."""
        scenes = [*self.scenes]
        if self.scenes is PLAIN:
            scenes += [scene for scene in (*MASKED, *PACKED) if scene.optional and scene.optional <= {*self.optional}]
        # A scene that returns has another seed and other settings. Scenes with a mask or a segment have all settings,
        # because an implementation may overlook the mask in one of them.
        for number in range(max(CALLS, len(scenes))):
            seed, place = divmod(number, len(scenes))
            yield self._call(scenes[place], seed, self.settings[(number + seed) % len(self.settings)])
        for place, scene in enumerate(scenes):
            for others in range(1, len(self.settings) if scene.optional else 1):
                yield self._call(scene, 0, self.settings[(place + others) % len(self.settings)])

    def _call(
        self, scene: Any, seed: int, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, NDArray], dict[str, Any]]:
        there = scene.arrays(seed)
        arrays = {argument: there[name] for argument, name in self.arrays.items()}
        arrays |= {name: there[name] for name in self.optional if name in scene.optional}
        arrays |= {name: there[x.name] for name, x in settings.items() if isinstance(x, Of)}
        return scene.about, arrays, {name: x for name, x in settings.items() if not isinstance(x, Of)}


def _entry(function: Callable[..., Any], arrays: str, *settings: Mapping[str, Any], **others: Any) -> Entry:
    """An entry whose arrays are listed as `argument`, or `argument=array` if the scene's array has another name."""
    named = {name: array or name for name, _, array in (word.partition("=") for word in arrays.split())}
    return Entry(function, named, settings or ({},), **others)


def _aggregated(make: Callable[..., Any]) -> Callable[..., Any]:
    """An aggregator as a function: pushes all gradients, and takes the group that is applied."""

    def aggregated(gradient: Any, version: Any, learner: Any, clock: Any, round: Any, **settings: Any) -> Any:
        aggregator = make(**settings)
        state = aggregator.init(jnp.zeros(gradient.shape[1:], gradient.dtype))
        for one, its_version, its_learner in zip(gradient, version, learner, strict=True):
            state = aggregator.push(state, one, its_version, learner=its_learner)
        ready = aggregator.ready(state, clock, round)
        update, state = aggregator.pop(state, clock, round)
        return {"ready": ready, **update._asdict(), "left": state.count}

    return aggregated


def _scaled(make: Callable[..., Any], argument: str) -> Callable[..., Any]:
    """A transformation of optax as a function of the optimizer's step."""

    def scaled(step: Any, **given: Any) -> Any:
        extra = {argument: given.pop(argument)}
        transformation = make(**given)
        return transformation.update(step, transformation.init(step), None, **extra)[0]

    return scaled


def _categorical(method: str) -> Callable[..., Any]:
    def call(logits: Any, **arguments: Any) -> Any:
        other = {"other": stellaris.Categorical(arguments.pop("other_logits"))} if method == "kl_divergence" else {}
        return getattr(stellaris.Categorical(logits), method)(**arguments, **other)

    return call


def _gaussian(method: str) -> Callable[..., Any]:
    def call(mean: Any, log_std: Any, **arguments: Any) -> Any:
        if method == "kl_divergence":
            pair = arguments.pop("other_mean"), arguments.pop("other_log_std")
            arguments["other"] = stellaris.DiagonalGaussian(*pair)
        return getattr(stellaris.DiagonalGaussian(mean, log_std), method)(**arguments)

    return call


_CAPS: tuple[Mapping[str, Any], ...] = ({}, {"ratio_cap": Of("cap")}, {"ratio_cap": 3.0})
_CLIPS: tuple[Mapping[str, Any], ...] = (
    *_CAPS,
    {"clip": 0.2, "clip_high": 0.28},
    {"clip": math.inf},
    {"clip": Of("width"), "clip_high": Of("width"), "ratio_cap": 1.5},
)
_TRACES: tuple[Mapping[str, Any], ...] = ({}, {"lambda_": 0.5}, {"lambda_": 0.0}, {"lambda_": 1.0})
_GROUPS = "reward group"
_SAMPLES = "log_ratio advantage"
_STEPS = "reward discount value"
_QUEUE = "gradient version learner clock round"
_VALID = ("valid",)
_SEQUENCES = ("valid", "segment")


def _queue(make: Callable[..., Any], *settings: Mapping[str, Any]) -> Entry:
    return _entry(_aggregated(make), _QUEUE, *settings, scenes=QUEUES, differentiable=False)


#: The key is the public function's name; the order is that of docs/functions.md.
ENTRIES: Mapping[str, Entry] = {
    # Advantages and targets.
    "gae": _entry(stellaris.gae, _STEPS, *_TRACES, optional=_VALID),
    "vtrace": _entry(
        stellaris.vtrace,
        f"{_STEPS} log_ratio",
        {},
        {"lambda_": 0.9, "rho_clip": math.inf, "pg_rho_clip": math.inf, "ratio_cap": Of("cap")},
        {"rho_clip": 1.5, "c_clip": 0.8, "pg_rho_clip": 2.0},
        {"lambda_": 0.0},
        optional=_VALID,
    ),
    "lambda_returns": _entry(stellaris.lambda_returns, _STEPS, *_TRACES, optional=_VALID),
    "n_step_returns": _entry(
        stellaris.n_step_returns, _STEPS, *({"steps": steps} for steps in (1, 2, 3, 5)), optional=_VALID
    ),
    "retrace": _entry(stellaris.retrace, "reward discount q_value value log_ratio", *_TRACES, optional=_VALID),
    "upgo_returns": _entry(stellaris.upgo_returns, _STEPS, optional=_VALID),
    "group_relative_advantage": _entry(
        stellaris.group_relative_advantage,
        _GROUPS,
        {},
        {"divide_by_std": False},
        {"epsilon": 1e-4},
        optional=_VALID,
    ),
    "leave_one_out_advantage": _entry(stellaris.leave_one_out_advantage, _GROUPS, optional=_VALID),
    "optimal_advantage": _entry(
        stellaris.optimal_advantage, _GROUPS, {"beta": 1.0}, {"beta": 0.1}, {"beta": 50.0}, optional=_VALID
    ),
    "optimal_baseline": _entry(stellaris.optimal_baseline, "reward log_ratio gradient_norm group", optional=_VALID),
    # Truncation.
    "importance_ratio": _entry(stellaris.importance_ratio, "log_ratio"),
    "global_ratio_cap": _entry(
        stellaris.global_ratio_cap, "log_ratios=held_log_ratios", {}, {"rho": 1.5}, {"rho": math.inf}
    ),
    "least_ratio_cap": _entry(
        stellaris.least_ratio_cap, "log_ratios=held_log_ratios", {}, {"rho": 1.5}, {"rho": math.inf}
    ),
    "truncate_ratio": _entry(
        stellaris.truncate_ratio, "ratio", {"ratio_cap": Of("cap")}, {"ratio_cap": 1.0}, {"ratio_cap": 2.5}
    ),
    # Losses.
    "ppo_loss": _entry(stellaris.ppo_loss, _SAMPLES, *_CLIPS),
    "ppo_penalty_loss": _entry(
        stellaris.ppo_penalty_loss,
        f"{_SAMPLES} kl",
        {"coefficient": 0.2},
        {"coefficient": 1.0, "clip": 0.3},
        {"coefficient": 0.5, "ratio_cap": Of("cap")},
    ),
    "adapt_kl_coefficient": _entry(
        stellaris.adapt_kl_coefficient,
        "coefficient kl=divergence",
        {},
        {"tolerance": 2.0, "increase": 1.5},
        {"target": 0.02, "decrease": 0.25},
        scenes=NUMBERS,
    ),
    "approximate_kl": _entry(stellaris.approximate_kl, "log_ratio", *({"estimator": k} for k in ("k3", "k1", "k2"))),
    "impala_loss": _entry(stellaris.impala_loss, "log_prob advantage"),
    "truncated_policy_gradient_loss": _entry(
        stellaris.truncated_policy_gradient_loss,
        f"log_prob {_SAMPLES}",
        {},
        {"ratio_cap": Of("cap")},
        {"ratio_cap": 1.28, "ratio_floor": 0.8},
        {"ratio_cap": None},
    ),
    "impact_loss": _entry(
        stellaris.impact_loss,
        f"{_SAMPLES} target_log_ratio=other_log_ratio",
        *_CLIPS,
        {"target_rho": 1.2},
    ),
    "decoupled_ppo_loss": _entry(
        stellaris.decoupled_ppo_loss,
        f"{_SAMPLES} proximal_log_ratio=other_log_ratio",
        *_CLIPS,
        {"weight": Of("weight")},
        {"weight": 1.0, "ratio_cap": 1.5},
    ),
    "sapo_loss": _entry(stellaris.sapo_loss, _SAMPLES, *_CAPS, {"temperature": 2.0, "negative_temperature": 0.5}),
    "oapl_loss": _entry(stellaris.oapl_loss, _SAMPLES, {"coefficient": 1.0}, {"coefficient": 0.1}),
    "value_loss": _entry(
        stellaris.value_loss,
        "value=estimate target",
        {},
        {"old_value": Of("old_value"), "clip": 0.5},
        {"loss_clip": 4.0},
        {"huber": 1.0},
        {"old_value": Of("old_value"), "clip": 0.5, "huber": 0.5, "loss_clip": 3.0},
    ),
    # Corrections for stale data.
    "bounded_importance_weight": _entry(
        stellaris.bounded_importance_weight,
        "log_ratio",
        {},
        {"low": 0.5, "high": 5.0, "outside": "mask"},
        {"high": math.inf},
        {"low": 0.9, "high": 1.1},
        {"high": Of("cap"), "outside": "mask"},
    ),
    "vespo_weight": _entry(
        stellaris.vespo_weight,
        "log_ratio advantage=sequence_advantage",
        {},
        {"power": 1.0, "decay": 1.5, "negative_power": 2.0, "negative_decay": 1.0},
    ),
    "sequence_log_ratio": _entry(
        stellaris.sequence_log_ratio, "log_ratio", {}, {"over": "mean"}, {"over": "sum"}, optional=_SEQUENCES
    ),
    "approximate_proximal_log_ratio": _entry(stellaris.approximate_proximal_log_ratio, "log_ratio staleness"),
    "second_moment_mask": _entry(
        stellaris.second_moment_mask, _SAMPLES, {}, {"max_second_moment": 0.3}, optional=_VALID
    ),
    "probability_mask": _entry(
        stellaris.probability_mask,
        "log_prob behaviour_log_prob advantage",
        {},
        {"divergence": "kl"},
        {"max_distance": 0.02},
    ),
    "off_policy_sequence_mask": _entry(
        stellaris.off_policy_sequence_mask,
        "log_ratio advantage=sequence_advantage",
        {"max_divergence": 0.1},
        {"max_divergence": 0.5},
        {"max_divergence": 0.0},
    ),
    "bidirectional_kl_mask": _entry(
        stellaris.bidirectional_kl_mask, "log_prob behaviour_log_prob", {}, {"max_divergence": 0.05}
    ),
    "total_variation_mask": _entry(
        stellaris.total_variation_mask,
        _SAMPLES,
        {"max_distance": 0.2},
        {"max_distance": 0.5},
        {"max_distance": 0.05},
        optional=_SEQUENCES,
    ),
    "adaptive_clip": _entry(
        stellaris.adaptive_clip, "log_ratio", {}, {"clip_high": 0.28, "quantile": 0.5}, optional=_VALID
    ),
    "second_moment_clip": _entry(
        stellaris.second_moment_clip,
        _SAMPLES,
        {},
        {"max_second_moment": 0.3},
        {"min_clip": 0.3, "min_clip_high": 0.5},
        optional=_VALID,
    ),
    "balanced_clip": _entry(
        stellaris.balanced_clip,
        _SAMPLES,
        {},
        {"balance": 1.5},
        {"low": 0.7, "max_low": 0.9, "high": 1.1, "max_high": 3.0, "step": 0.1},
        optional=_VALID,
    ),
    "effective_sample_fraction": _entry(stellaris.effective_sample_fraction, "log_ratio", optional=_VALID),
    "scale_by_effective_samples": _entry(
        _scaled(stellaris.scale_by_effective_samples, "effective_sample_fraction"),
        "step=coefficient effective_sample_fraction=fraction",
        {},
        {"base": 0.55},
        scenes=NUMBERS,
    ),
    # Reduction.
    "reduce_loss": _entry(
        stellaris.reduce_loss,
        "loss=advantage",
        {},
        {"over": "sequences"},
        {"over": "length", "length": 8.0},
        optional=_SEQUENCES,
    ),
    # Distributions.
    "Categorical.log_prob": _entry(_categorical("log_prob"), "logits value=choice"),
    "Categorical.entropy": _entry(_categorical("entropy"), "logits"),
    "Categorical.kl_divergence": _entry(_categorical("kl_divergence"), "logits other_logits"),
    "Categorical.sample": _entry(_categorical("sample"), "logits noise=gumbel"),
    "DiagonalGaussian.log_prob": _entry(_gaussian("log_prob"), "mean log_std value=action"),
    "DiagonalGaussian.entropy": _entry(_gaussian("entropy"), "mean log_std"),
    "DiagonalGaussian.kl_divergence": _entry(_gaussian("kl_divergence"), "mean log_std other_mean other_log_std"),
    "DiagonalGaussian.sample": _entry(_gaussian("sample"), "mean log_std noise"),
    # Staleness weights and thresholds.
    "staleness_weight": _entry(
        stellaris.staleness_weight, "staleness", {}, {"smoothness": 1.0}, {"smoothness": math.inf}
    ),
    "polynomial_weight": _entry(stellaris.polynomial_weight, "staleness", {}, {"power": 1.0}, {"power": 0.0}),
    "hinge_weight": _entry(stellaris.hinge_weight, "staleness", {}, {"slope": 1.5, "tolerance": 2.0}),
    "exponential_weight": _entry(stellaris.exponential_weight, "staleness", {"rate": 0.5}, {"rate": 0.0}),
    "scale_by_staleness": _entry(
        _scaled(stellaris.scale_by_staleness, "staleness"),
        "step=coefficient staleness=round",
        {},
        {"smoothness": 1.0},
        scenes=NUMBERS,
    ),
    "staleness_threshold": _entry(
        stellaris.staleness_threshold,
        "round",
        {"max_staleness": 4.0, "decay": 0.95},
        {"max_staleness": math.inf, "decay": 0.5},
        {"max_staleness": 7.0, "decay": 1.0},
        scenes=NUMBERS,
    ),
    "demo_threshold": _entry(
        stellaris.demo_threshold,
        "round",
        {"max_staleness": 4.0, "decay": 0.95},
        {"max_staleness": math.inf, "decay": 0.5},
        {"max_staleness": 7.0, "decay": 0.9},
        scenes=NUMBERS,
    ),
    # Aggregators.
    "staleness_aware": _queue(
        stellaris.staleness_aware,
        {"group_size": 4, "capacity": 8, "decay": 0.9, "max_staleness": 3.0},
        {"group_size": 4, "capacity": 8, "decay": 0.9, "max_staleness": 3.0, "combine": "sequential"},
        {"group_size": 3, "capacity": 8, "decay": 0.8, "max_staleness": 2.0, "smoothness": 1.0, "threshold": "demo"},
        {"group_size": 8, "decay": 1.0, "smoothness": math.inf},
    ),
    "softsync": _queue(stellaris.softsync, {"group_size": 2, "capacity": 8}, {"group_size": 4}),
    "buffered": _queue(stellaris.buffered, {"group_size": 2, "capacity": 8}, {"group_size": 4}),
    "stale_synchronous": _queue(stellaris.stale_synchronous, {"max_lead": 2, "learners": 2, "capacity": 8}),
    "fully_asynchronous": _queue(stellaris.fully_asynchronous, {"capacity": 8}, {"capacity": 8, "drop_from": 4}),
    "synchronous": _queue(stellaris.synchronous, {"group_size": 2}, {"group_size": 4}),
    # Stale gradients.
    "delay_compensate": _entry(
        stellaris.delay_compensate,
        "gradient params_now params_then",
        {"strength": 0.5},
        {"strength": 0.0},
        {"strength": 2.0, "mean_square": Of("mean_square")},
    ),
    "reduce_by_gap": _entry(stellaris.reduce_by_gap, "gradient params_now params_then step_size"),
    "limit_alignment": _entry(
        stellaris.limit_alignment, "gradient previous=other_gradient", {"limit": 0.0}, {"limit": 0.3}, {"limit": 0.9}
    ),
    # Pacing and diagnostics.
    "rollout_capacity": _entry(
        stellaris.rollout_capacity,
        "version=staleness begun=version",
        *({"batch": n, "max_staleness": n - 8} for n in (8, 12, 16)),
    ),
    "lag_report": _entry(
        stellaris.lag_report,
        "lag=staleness log_ratio valid",
        {"lags": 4},
        {"lags": 4, "clipped": Of("clipped"), "truncated": Of("truncated")},
        scenes=(*PLAIN, *MASKED),
    ),
    "ratio_report": _entry(stellaris.ratio_report, "log_ratio", optional=_VALID),
    "version_span": _entry(stellaris.version_span, "version valid", scenes=(*PLAIN, *MASKED)),
    "gradient_cosine": _entry(stellaris.gradient_cosine, "first=gradient second=other_gradient"),
}

#: Public functions of the pure layer without vectors, each with the reason.
EXCLUDED: Mapping[str, str] = {
    "add_delay_compensation": "`delay_compensate` in a chain of optax",
    "gap_aware": "`reduce_by_gap` around an optimizer of optax, whose state it keeps",
    "apply_update": "steps of an optimizer of optax, scaled by the vectors' `scale`",
    "gradient": "depends on a network; the losses that it differentiates have vectors",
    "update": "training on a whole batch with a network and an optimizer",
    "Categorical.noise": "random numbers of JAX",
    "DiagonalGaussian.noise": "random numbers of JAX",
}
