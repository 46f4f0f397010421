"""Diagnostics of staleness: by policy lag, by trajectory, and between gradients.

*Data lag* is the learning policy's version minus the version that chose an action. *Gradient lag*, or staleness, is the
newest version when a gradient is applied minus the version on which it was computed. The sum of both lags is the age
of the data when their gradient is applied; the library reports the two separately.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks, order_statistics
from stellaris._core.sharding import replicated
from stellaris.corrections.effective_samples import effective_sample_fraction
from stellaris.corrections.ratios import importance_ratio, saturated
from stellaris.losses import approximate_kl
from stellaris.types import Array, JaxArray, Tree, at_least_float32


class LagReport(NamedTuple):
    """Sums over a batch's samples, grouped by policy lag: index `k` holds the samples of lag `k`.

    The last index also holds the samples of all larger lags. The properties `kl`, `weight_mean`, `weight_std`,
    `chi_squared`, `effective_sample_size` and `effective_sample_fraction`, and the field `count`, have the meaning that
    they have in `RatioReport`; `clip_fraction` and `truncation_fraction` exist here only. All are 0 for a lag
    without samples. Ratios saturate as in `importance_ratio`, also in the effective sample fraction, which
    `ratio_report` computes from unbounded ones: for log-ratios of whole answers beyond 30, use that of `ratio_report`.

    Add the reports of several batches or devices by `jax.tree.map(jnp.add, first, second)`.

    Example:
      >>> import jax.numpy as jnp
      >>> report = lag_report(jnp.array([0, 0, 1]), jnp.log(jnp.array([1.0, 3.0, 2.0])), valid=jnp.ones(3), lags=2)
      >>> print(report.count, report.effective_sample_size)
      [2. 1.] [1.6 1. ]
    """

    count: Float[Array, "lags"]  # type: ignore[assignment]  #: number of valid samples.
    kl_sum: Float[Array, "lags"]  #: sum of `approximate_kl` to the behaviour policy.
    clipped: Float[Array, "lags"]  #: samples whose ratio is outside the trust region.
    truncated: Float[Array, "lags"]  #: samples whose ratio is above its cap.
    weight_sum: Float[Array, "lags"]  #: sum of the importance ratios.
    weight_square_sum: Float[Array, "lags"]  #: sum of the squared importance ratios.

    # The properties use only what NumPy arrays and PyTorch's tensors also have, so a report stays where it is.

    @property
    def kl(self) -> Float[Array, "lags"]:
        """Mean of `approximate_kl`: the divergence `KL(mu || pi)` from the behaviour policy, in nats."""
        return self.kl_sum / self.count.clip(min=1)

    @property
    def clip_fraction(self) -> Float[Array, "lags"]:
        """Fraction of the samples whose ratio is outside the trust region."""
        return self.clipped / self.count.clip(min=1)

    @property
    def truncation_fraction(self) -> Float[Array, "lags"]:
        """Fraction of the samples whose ratio is above its cap."""
        return self.truncated / self.count.clip(min=1)

    @property
    def effective_sample_size(self) -> Float[Array, "lags"]:
        """`(sum w)^2 / sum w^2`: the equivalent number of samples of equal weight, between 1 and `count`."""
        no_sample = _in_type_of(self.weight_square_sum, self.weight_square_sum == 0)
        return self.weight_sum * self.weight_sum / (self.weight_square_sum + no_sample)

    @property
    def effective_sample_fraction(self) -> Float[Array, "lags"]:
        """The effective sample size divided by `count`."""
        return self.effective_sample_size / self.count.clip(min=1)

    @property
    def weight_mean(self) -> Float[Array, "lags"]:
        """Mean of the importance ratios, 1 in expectation."""
        return self.weight_sum / self.count.clip(min=1)

    @property
    def weight_std(self) -> Float[Array, "lags"]:
        """Standard deviation of the importance ratios; in float32 from sums that resolve it to 3e-4 of the mean."""
        variance = self.weight_square_sum / self.count.clip(min=1) - self.weight_mean * self.weight_mean
        return variance.clip(min=0) ** 0.5

    @property
    def chi_squared(self) -> Float[Array, "lags"]:
        """Mean of the squared importance ratios minus 1, an estimate of the divergence `chi^2(pi || mu)`."""
        return (self.weight_square_sum - self.count) / self.count.clip(min=1)


def lag_report(
    lag: Int[Array, "*batch"],
    log_ratio: Float[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"],
    clipped: Shaped[Array, "*batch"] | None = None,
    truncated: Shaped[Array, "*batch"] | None = None,
    lags: int = 8,
) -> LagReport:
    """Reports counts, divergence, clipping, truncation and effective sample size of a batch, by policy lag.

    Args:
      lag: `[...]`, the learning policy's version minus that of the policy that chose the action. A number below 0, as
        if the two were exchanged, counts as 0.
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      valid: `[...]`, False for samples to ignore.
      clipped: `[...]` whether a sample is outside the trust region; by default False.
      truncated: `[...]` whether a sample is above its cap; by default False.
      lags: the number of lags to distinguish, at least 1; a larger lag counts as lag `lags - 1`.

    Returns:
      A `LagReport` of arrays `[lags]`. Gradients flow through the divergence only.

    Raises:
      TypeError: if `log_ratio` holds integers, or `lag` does not.
      ValueError: if the shapes differ, a lag is beyond int32, or `lags` is below 1.

    Source:
      Kong 1992, A Note on Importance Sampling using Standardized Weights, for the effective sample size.

    Example:
      >>> import jax.numpy as jnp
      >>> lag, ratio, valid = jnp.array([0, 3, 9]), jnp.array([1.0, 0.5, 1.5]), jnp.array([True, True, False])
      >>> report = lag_report(lag, jnp.log(ratio), valid=valid, truncated=ratio > 1, lags=3)
      >>> report.count.tolist(), report.truncation_fraction.tolist()
      ([1.0, 0.0, 1.0], [0.0, 0.0, 0.0])
    """
    checks.floats(log_ratio=log_ratio)
    checks.same_shape(log_ratio, "log_ratio", lag=lag, valid=valid, clipped=clipped, truncated=truncated)
    valid = checks.mask(valid, log_ratio)
    checks.integers(lag=lag)
    checks.int32(lag=lag)
    if lags < 1:
        raise ValueError(f"lags={lags} is below 1: pass the number of lags to distinguish")
    bucket = replicated(jnp.clip(jnp.asarray(lag).astype(jnp.int32), 0, lags - 1)).ravel()
    # Sums are in float32 at least, because in narrower types counts saturate and squares of ratios overflow.
    wide = jnp.asarray(log_ratio, at_least_float32(jnp.result_type(log_ratio)))
    # No gradient flows where a ratio saturates in the given dtype, because the gradient of the float32 ratio may be
    # too large for float16.
    log_ratio = jnp.where(saturated(jnp.asarray(log_ratio)) < log_ratio, jax.lax.stop_gradient(wide), wide)
    log_ratio = jnp.where(valid, log_ratio, 0.0)
    ratio = jax.lax.stop_gradient(importance_ratio(log_ratio))
    nothing = jnp.zeros_like(ratio)
    columns = (
        jnp.ones_like(ratio),
        approximate_kl(log_ratio),
        nothing if clipped is None else checks.mask(clipped, log_ratio),
        nothing if truncated is None else checks.mask(truncated, log_ratio),
        ratio,
        jnp.square(ratio),
    )
    counted = [jnp.where(valid, column.astype(ratio.dtype), 0.0) for column in columns]
    samples = jnp.stack([replicated(column).ravel() for column in counted], axis=-1)
    return LagReport(*_sums(samples, bucket, lags).T)


def _sums(samples: jax.Array, bucket: jax.Array, lags: int, block: int = 4096) -> jax.Array:
    """The sums `[lags, columns]` of the samples `[n, columns]` in each bucket.

    Blocks of samples are summed first: a float32 to which ones are added one after the other stays at 2**24.
    """
    blocks = -(-len(samples) // block)
    place = jnp.arange(len(samples), dtype=jnp.int32) // block * lags + bucket
    sums = jax.ops.segment_sum(samples, place, num_segments=blocks * lags)
    return jnp.sum(sums.reshape(blocks, lags, samples.shape[1]), axis=0)


def _in_type_of(numbers: Array, x: Any) -> Array:
    """Converts an array to another's type; in PyTorch too, whose tensors lack `astype`."""
    converted: Array = x.astype(numbers.dtype) if hasattr(x, "astype") else x.to(numbers.dtype)
    return converted


def _exp(x: Any) -> Array:
    """The exponential of an array, or of a tensor of PyTorch, which JAX does not accept."""
    exponential: Array = x.exp() if hasattr(x, "exp") else jnp.exp(x)
    return exponential


class RatioReport(NamedTuple):
    """The distribution of importance ratios `r = pi / mu`, and how far the policies are apart; see `ratio_report`.

    Divergences are estimates from actions of `mu`; those but `chi_squared` are in nats. The fields, in order, are
    `log_quantiles`, `effective_sample_fraction`, `count`, `kl`, `k1`, `k2`, `jensen_shannon`, `weight_mean` and
    `weight_std`; computed from them are `quantiles`, `effective_sample_size`, `chi_squared` and `perplexity_ratio`.

    Example:
      >>> report = ratio_report(jnp.log(jnp.array([0.5, 1.5])))
      >>> print(f"{report.weight_mean:.2f} {report.weight_std:.2f} {report.chi_squared:.2f}")
      1.00 0.50 0.25
    """

    log_quantiles: Float[Array, "quantiles"]  #: quantiles of the log-ratios, unbounded.
    effective_sample_fraction: Float[Array, ""]  #: effective sample size divided by `count`.
    count: Int[Array, ""]  # type: ignore[assignment]  #: number of valid samples.
    kl: Float[Array, ""]  #: mean of `approximate_kl`: `KL(mu || pi)`, by the estimator k3.
    k1: Float[Array, ""]  #: the same divergence by the estimator k1, `-log r`.
    k2: Float[Array, ""]  #: the same divergence by the estimator k2, `(log r)^2 / 2`.
    jensen_shannon: Float[Array, ""]  #: mean of `r log(2r / (1 + r)) / 2 + log(2 / (1 + r)) / 2`.
    weight_mean: Float[Array, ""]  #: mean of `r`, 1 in expectation.
    weight_std: Float[Array, ""]  #: standard deviation of `r`.

    @property
    def quantiles(self) -> Float[Array, "quantiles"]:
        """Quantiles of the ratios; infinite where a log-ratio exceeds 88, in float32."""
        return _exp(self.log_quantiles)

    @property
    def effective_sample_size(self) -> Float[Array, ""]:
        """`(sum r)^2 / sum r^2`: the equivalent number of samples of equal weight, between 1 and `count`."""
        return self.effective_sample_fraction * _in_type_of(self.effective_sample_fraction, self.count)

    @property
    def chi_squared(self) -> Float[Array, ""]:
        """Mean of `r^2` minus 1: the divergence `chi^2(pi || mu)`."""
        present = _in_type_of(self.weight_mean, self.count > 0)
        return self.weight_std * self.weight_std + self.weight_mean * self.weight_mean - present

    @property
    def perplexity_ratio(self) -> Float[Array, ""]:
        """`exp(k1)`: of tokens, their perplexity under `pi` divided by that under `mu`."""
        return _exp(self.k1)


def ratio_report(
    log_ratio: Float[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
    quantiles: tuple[float, ...] = (0.0, 0.01, 0.5, 0.99, 1.0),
) -> RatioReport:
    """Quantiles, moments and effective sample fraction of importance ratios, and divergences between the policies.

    Pass raw log-ratios: clamped or masked ones would hide a policy that diverges.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy: one number
        for each step or, from `sequence_log_ratio`, for each sequence.
      valid: `[...]`, False for samples to ignore; all count by default.
      quantiles: numbers in [0, 1]; 0 gives the smallest ratio and 1 the largest.

    Returns:
      A `RatioReport`, without a gradient. Quantiles are interpolated between samples. Quantiles and the effective
      sample fraction are computed from unbounded ratios; in moments and divergences ratios saturate as in
      `importance_ratio`. If no sample is valid, all are 0 but for `quantiles` and a `perplexity_ratio` of 1. verl's
      `ppl_ratio` is `jnp.mean(jnp.exp(-sequence_log_ratio(l, valid=valid, over="mean")), where=valid.any(0))`.

    Raises:
      TypeError: if `log_ratio` holds integers, or `quantiles` is not a sequence.
      ValueError: if the shapes differ, or a quantile lies outside [0, 1].

    Source:
      Kong 1992, A Note on Importance Sampling using Standardized Weights, for the effective sample size; Schulman 2020,
      Approximating KL Divergence; Lin 1991, Divergence Measures Based on the Shannon Entropy, for the Jensen-Shannon
      divergence, here as the mean under `mu` of a function of the ratio. (NeMo RL's `js_divergence_error` is another
      quantity: k3 of both halves, without the weight `r`.) The other metrics have verl's definitions:
      `chi2_token`, `chi2_seq`, `rollout_is_mean` and, without its bound, `rollout_is_std`.

    Example:
      >>> import jax.numpy as jnp
      >>> report = ratio_report(jnp.log(jnp.array([0.5, 1.0, 8.0])), quantiles=(0.0, 0.5, 1.0))
      >>> print(report.quantiles, f"{report.effective_sample_fraction:.3f}")
      [0.5 1.  8. ] 0.461
    """
    checks.floats(log_ratio=log_ratio)
    checks.same_shape(log_ratio, "log_ratio", valid=valid)
    if isinstance(quantiles, int | float | str):
        raise TypeError(f"quantiles={quantiles!r} is not a sequence of numbers, such as (0.5,)")
    for quantile in quantiles:
        checks.between_zero_and_one(quantile=quantile)
    wide = jax.lax.stop_gradient(jnp.asarray(log_ratio, at_least_float32(jnp.result_type(log_ratio))))
    there = checks.mask(valid, wide)
    at = jnp.asarray(quantiles, wide.dtype)
    count = jnp.sum(there, dtype=jnp.int32)

    def mean(x: Array) -> jax.Array:
        return jnp.sum(jnp.where(there, x, 0.0)) / jnp.maximum(count, 1).astype(wide.dtype)

    ratio = importance_ratio(wide)
    weight_mean = mean(ratio)
    unknown = jnp.any(there & jnp.isnan(wide))  # in the order of floats NaN is above infinity, where it would hide
    return RatioReport(
        log_quantiles=jnp.where(unknown, jnp.nan, order_statistics.quantiles(wide, there, at)),
        effective_sample_fraction=effective_sample_fraction(wide, valid=there),
        count=count,
        **{name: mean(approximate_kl(wide, estimator=k)) for name, k in (("kl", "k3"), ("k1", "k1"), ("k2", "k2"))},
        jensen_shannon=mean(_jensen_shannon(saturated(wide))),
        weight_mean=weight_mean,
        weight_std=jnp.sqrt(mean(jnp.square(ratio - weight_mean))),
    )


def _jensen_shannon(log_ratio: jax.Array) -> jax.Array:
    """The Jensen-Shannon divergence's integrand relative to the behaviour policy, accurate for ratios near 1."""
    # log(2r / (1 + r)) = -log1p((1/r - 1) / 2), and log(2 / (1 + r)) = -log1p((r - 1) / 2).
    half = [jnp.log1p(0.5 * jnp.expm1(x)) for x in (-log_ratio, log_ratio)]
    return -0.5 * (jnp.exp(log_ratio) * half[0] + half[1])


class VersionSpan(NamedTuple):
    """The versions that chose a trajectory's actions; see `version_span`.

    Example:
      >>> VersionSpan(mean=jnp.array([1.5]), oldest=jnp.array([1])).oldest.tolist()
      [1]
    """

    mean: Float[Array, "*batch"]  #: mean version over the valid steps.
    oldest: Int[Array, "*batch"]  #: smallest version of a valid step.


def version_span(version: Int[Array, "T *batch"], *, valid: Shaped[Array, "T *batch"]) -> VersionSpan:
    """The mean and the oldest of the versions that chose each trajectory's actions.

    Args:
      version: `[T, ...]`, the behaviour policy's version at every step.
      valid: `[T, ...]`, False for steps that are not transitions.

    Returns:
      `VersionSpan(mean, oldest)`, each `[...]`. A trajectory without a valid step has the mean 0 and the largest int32
      as its oldest version.

    Raises:
      TypeError: if `version` holds no integers.
      ValueError: if the shapes differ, or a version is beyond int32.

    Source:
      Stellaris (SC 2024): every step of a trajectory is tagged with the version that chose its action.

    Example:
      >>> import jax.numpy as jnp
      >>> version_span(jnp.array([3, 3, 5, 0]), valid=jnp.array([True, True, True, False]))
      VersionSpan(mean=Array(3.6666667, dtype=float32), oldest=Array(3, dtype=int32))
    """
    checks.integers(version=version)
    checks.same_shape(version, "version", valid=valid)
    checks.int32(version=version)
    version, valid = jnp.asarray(version, jnp.int32), checks.mask(valid, version)
    total = jnp.sum(jnp.where(valid, version, 0).astype(float), axis=0)
    oldest = jnp.min(version, axis=0, where=valid, initial=2**31 - 1)
    return VersionSpan(total / jnp.maximum(jnp.sum(valid, axis=0), 1).astype(total.dtype), oldest)


def gradient_cosine(first: Tree, second: Tree) -> Float[JaxArray, ""]:
    """The cosine of the angle between two gradients: `<a, b> / (|a| |b|)` over all their leaves.

    Args:
      first: a tree of arrays, such as a stale gradient.
      second: a tree of the same structure, such as the gradient at fresh parameters on the same samples.

    Returns:
      A scalar in [-1, 1]: 1 for the same direction, 0 for orthogonal gradients or if one is zero.

    Raises:
      TypeError: if a leaf holds integers.
      ValueError: if the trees differ in structure or shape.

    Source:
      Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation, which asks how far a stale
      gradient is from a fresh one.

    Example:
      >>> import jax.numpy as jnp
      >>> print(f"{gradient_cosine({'w': jnp.array([3.0, 0.0])}, {'w': jnp.array([3.0, 4.0])}):.4f}")
      0.6000
    """
    checks.same_structure(first, "first", second=second)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True):
        name = jax.tree_util.keystr(path)
        checks.floats(**{f"first{name}": a, f"second{name}": b})
        checks.same_leaf(a, f"first{name}", **{f"second{name}": b})
    # Both gradients are divided by their largest magnitudes, so that squares neither underflow nor overflow.
    (a, _), (b, _) = scale_to_largest(first), scale_to_largest(second)
    norms = jnp.sqrt(tree_dot(a, a) * tree_dot(b, b))
    return jnp.clip(tree_dot(a, b) / jnp.where(norms > 0, norms, 1.0), -1.0, 1.0)  # rounding may exceed the bounds


def scale_to_largest(tree: Tree) -> tuple[Tree, jax.Array]:
    """Divides a tree by its largest magnitude, in float32 at least, so that squares neither underflow nor overflow.

    Returns the scaled tree and the magnitude, which is 1 for a tree of zeros.
    """
    wide = jax.tree.map(lambda x: jnp.asarray(x, at_least_float32(jnp.result_type(x))), tree)
    maxima = [jnp.max(jnp.abs(x), initial=0.0) for x in jax.tree.leaves(wide)]
    largest = jnp.max(jnp.stack(maxima)) if maxima else jnp.zeros(())
    largest = jnp.where(largest > 0, largest, 1.0)
    return jax.tree.map(lambda x: x / largest.astype(x.dtype), wide), largest


def tree_dot(first: Tree, second: Tree) -> jax.Array:
    """The inner product of two trees, in float32 at least."""

    def dot(x: Any, y: Any) -> jax.Array:
        wide = at_least_float32(jnp.result_type(x))
        return jnp.sum(jnp.asarray(x, wide) * jnp.asarray(y, wide))

    products = [dot(x, y) for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)]
    return jnp.sum(jnp.stack(products)) if products else jnp.zeros(())
