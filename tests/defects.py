"""Seeds defects into a copy of the project, one at a time, and shows which of them the tests catch.

    python -m tests.defects [--quick] [--only TEXT]

Each defect is one line of one file, changed as a slip of the keyboard would. A defect is *caught* if a test of its
room fails: with `--quick` one of those that `make test` runs, otherwise any.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Defect(NamedTuple):
    """One line that is wrong."""

    file: str
    right: str  #: occurs once in the file.
    wrong: str
    tests: str = ""  #: folders and files whose tests should notice, beside those that mirror the file.


DEFECTS = (
    # ---- losses, returns, distributions, diagnostics, pacing
    Defect("stellaris/losses.py", "jnp.where(ratio > high, high, ratio)", "jnp.where(ratio > low, high, ratio)"),
    Defect(
        "stellaris/losses.py",
        "loss = jnp.maximum(loss, error(near - target))",
        "loss = jnp.minimum(loss, error(near - target))",
    ),
    Defect("stellaris/losses.py", "jnp.where(kl > target * tolerance, increase,", "jnp.where(kl > target, increase,"),
    Defect(
        "stellaris/losses.py",
        "ratio_minus_one - jnp.clip(log_ratio, least, -least)",
        "ratio_minus_one + jnp.clip(log_ratio, least, -least)",
    ),
    Defect(
        "stellaris/losses.py",
        "jnp.where(jnp.asarray(advantage) > 0, temperature, negative_temperature)",
        "jnp.where(jnp.asarray(advantage) < 0, temperature, negative_temperature)",
    ),
    Defect(
        "stellaris/returns.py",
        "lambda_ * jnp.minimum(row(ratio), c_clip)",
        "lambda_ * jnp.minimum(row(ratio), rho_clip)",
        "tests/test_returns_vtrace.py",
    ),
    Defect(
        "stellaris/returns.py",
        "b = jnp.minimum(row(capped), rho_clip) * error",
        "b = jnp.minimum(row(ratio), rho_clip) * error",
        "tests/test_returns_vtrace.py",
    ),
    Defect(
        "stellaris/advantages.py", "members / jnp.maximum(members - 1.0, 1.0)", "members / jnp.maximum(members, 1.0)"
    ),
    Defect(
        "stellaris/advantages.py",
        "_total(there.astype(wide.dtype), number) - 1.0",
        "_total(there.astype(wide.dtype), number)",
    ),
    Defect("stellaris/reductions.py", '(one if over == "length" else share)', "share"),
    Defect("stellaris/advantages.py", "weight = jnp.square(jnp.exp(log_weight", "weight = (jnp.exp(log_weight"),
    Defect("stellaris/losses.py", "jnp.square(coefficient * bounded - advantage)", "jnp.square(bounded - advantage)"),
    Defect(
        "stellaris/returns.py",
        "discount_ * slope + by_lambda * d * later",
        "discount_ * slope + by_lambda * d",
        "tests/test_returns_formulations.py",
    ),
    Defect(
        "stellaris/returns.py",
        "return c[t] * now, _put(u, now, t)",
        "return c[t] * flow, _put(u, now, t)",
        "tests/test_returns_formulations.py",
    ),
    Defect(
        "stellaris/returns.py",
        "trace = jnp.where(_next(error) >= 0, discount, 0.0)",
        "trace = jnp.where(error >= 0, discount, 0.0)",
        "tests/test_returns_multistep.py",
    ),
    Defect(
        "stellaris/returns.py",
        "_next(lambda_ * jnp.minimum(importance_ratio(log_ratio), 1.0))",
        "(lambda_ * jnp.minimum(importance_ratio(log_ratio), 1.0))",
        "tests/test_returns_multistep.py",
    ),
    Defect(
        "stellaris/returns.py",
        "b = reward if valid is None else jnp.where(valid, reward, value[:-1])",
        "b = reward",
        "tests/test_returns_multistep.py",
    ),
    Defect("stellaris/distributions.py", "+ _LOG_SQRT_2PI + 0.5, axis=-1)", "+ _LOG_SQRT_2PI, axis=-1)"),
    Defect(
        "stellaris/distributions.py",
        "jnp.where(probs > 0, log_probs - _log_softmax(other.logits), 0.0)",
        "jnp.where(probs > 0, log_probs - other.logits, 0.0)",
    ),
    Defect(
        "stellaris/diagnostics.py",
        "bucket = replicated(jnp.clip(jnp.asarray(lag).astype(jnp.int32), 0, lags - 1)).ravel()",
        "bucket = replicated(jnp.clip(jnp.asarray(lag).astype(jnp.int32), 0, lags)).ravel()",
    ),
    Defect(
        "stellaris/diagnostics.py",
        "jnp.sqrt(tree_dot(a, a) * tree_dot(b, b))",
        "jnp.sqrt(tree_dot(a, a) + tree_dot(b, b))",
    ),
    Defect("stellaris/diagnostics.py", "jnp.exp(log_ratio) * half[0] + half[1]", "half[0] + half[1]"),
    Defect(
        "stellaris/diagnostics.py", "return (self.weight_square_sum - self.count)", "return (self.weight_square_sum)"
    ),
    # ---- corrections
    Defect(
        "stellaris/corrections/caps.py",
        "jnp.maximum(least, jnp.asarray(rho, least.dtype))",
        "jnp.minimum(least, jnp.asarray(rho, least.dtype))",
    ),
    Defect(
        "stellaris/corrections/caps.py", "jnp.where(ratio > cap, 0.0, tangent)", "jnp.where(ratio >= cap, 0.0, tangent)"
    ),
    Defect(
        "stellaris/corrections/effective_samples.py",
        "jnp.square(jnp.sum(weight)) / jnp.where",
        "jnp.sum(weight) / jnp.where",
    ),
    Defect("stellaris/corrections/masks.py", "return there & (~moved |", "return there & (moved |"),
    Defect(
        "stellaris/corrections/masks.py",
        "jnp.maximum(_bernoulli_kl(now, before), _bernoulli_kl(before, now))",
        "_bernoulli_kl(before, now)",
    ),
    Defect(
        "stellaris/corrections/masks.py",
        "step_totals(distance, segment) / steps > max_distance",
        "distance > max_distance",
    ),
    Defect(
        "stellaris/corrections/caps.py",
        "jnp.minimum(least, jnp.asarray(rho, least.dtype))",
        "jnp.maximum(least, jnp.asarray(rho, least.dtype))",
    ),
    Defect(
        "stellaris/corrections/clipping.py", "jnp.sum(jnp.minimum(square, cap)) < allowed", "jnp.sum(square) < allowed"
    ),
    Defect("stellaris/corrections/clipping.py", "lacks(max_low, highest),", "lacks(low, highest),"),
    Defect("stellaris/corrections/masks.py", 'if divergence == "tv" else', 'if divergence == "kl" else'),
    Defect("stellaris/corrections/ratios.py", "within * within.shape[1] + jnp.arange", "within + jnp.arange"),
    Defect("stellaris/corrections/ratios.py", "share = 1.0 - 1.0 / versions", "share = 1.0 / versions"),
    Defect(
        "stellaris/corrections/weights.py",
        "jnp.exp(k * log_ratio + rate * (1.0 - jnp.exp(log_ratio)))",
        "jnp.exp(k * log_ratio + rate * (jnp.exp(log_ratio) - 1.0))",
    ),
    Defect(
        "stellaris/corrections/weights.py",
        "jnp.where(dropped, 0.0, jnp.clip(ratio, least, most))",
        "jnp.where(dropped, least, jnp.clip(ratio, least, most))",
    ),
    # ---- aggregation
    Defect(
        "stellaris/aggregation/staleness.py",
        "jnp.maximum(_versions(staleness), 1.0) ** (-1.0 / smoothness)",
        "jnp.maximum(_versions(staleness), 1.0) ** (-1.0 * smoothness)",
    ),
    Defect(
        "stellaris/aggregation/staleness_aware.py",
        "(state.count > 0) & (fresh | (state.count >= self.group_size))",
        "(state.count > 0) & (fresh & (state.count >= self.group_size))",
    ),
    Defect(
        "stellaris/aggregation/staleness_aware.py",
        "memory.total // jnp.maximum(memory.gradients, 1) + 1",
        "memory.total // jnp.maximum(memory.gradients, 1)",
    ),
    Defect(
        "stellaris/aggregation/gradient_queue.py",
        "jnp.where(left > 0, (state.head + n) % state.capacity, 0)",
        "jnp.where(left > 0, state.head + n, 0)",
    ),
    Defect("stellaris/aggregation/gradient_queue.py", "overflow=state.overflow | ~free", "overflow=~free"),
    Defect(
        "stellaris/aggregation/synchronisation.py",
        "memory[learner] - jnp.min(memory) <=",
        "memory[learner] - jnp.min(memory) <",
    ),
    Defect(
        "stellaris/aggregation/compensation.py",
        "started = jnp.where(seen > 0, seen, 1.0)",
        "started = jnp.where(seen > 0, 1.0, 1.0)",
    ),
    Defect(
        "stellaris/_core/order_statistics.py",
        "last = jnp.maximum(jnp.sum(there, dtype=jnp.int32), 1) - 1",
        "last = jnp.maximum(jnp.sum(there, dtype=jnp.int32), 1)",
        "tests/corrections",
    ),
    # ---- algorithms
    Defect("stellaris/algorithms/batch.py", "total = jnp.sum(jnp.where(mask, x, 0.0), ", "total = jnp.sum(x, "),
    # ---- acting
    Defect("stellaris/acting/normalisation.py", "share = other.count / count", "share = self.count / count"),
    Defect("stellaris/acting/normalisation.py", "jnp.where(self.reward > 0, self.reward, own.reward)", "own.reward"),
    Defect(
        "stellaris/acting/rollout.py", "scaling_discount * discounted + step.reward", "scaling_discount * discounted"
    ),
    Defect("stellaris/acting/rollout.py", "                float(discounted[i]),\n", "                0.0,\n"),
    Defect(
        "stellaris/lab/program.py",
        "starts != NONE, 0.0, jnp.take(carry.discounted",
        "starts == NONE, 0.0, jnp.take(carry.discounted",
    ),
    Defect("stellaris/acting/rollout.py", "ended = step.terminated | step.truncated", "ended = step.terminated"),
    # ---- replay
    Defect("stellaris/replay/table.py", "return number % table.capacity", "return number % (table.capacity - 1)"),
    Defect(
        "stellaris/replay/weight_tree.py",
        "point = random * functools.reduce(jnp.add, columns)",
        "point = random * columns[0]",
    ),
    Defect(
        "stellaris/replay/whole_numbers.py",
        "jnp.where(high * bound + left < left,",
        "jnp.where(high * bound + left > left,",
    ),
    # ---- runtime
    Defect("stellaris/runtime/engine/agenda.py", "self._serial += 1", "self._serial += 0"),
    Defect(
        "stellaris/runtime/engine/fleet.py",
        "idle.sort(key=lambda c: (c.idle_since, c.number))",
        "idle.sort(key=lambda c: (-c.idle_since, c.number))",
    ),
    Defect(
        "stellaris/runtime/engine/fleet.py",
        "return pool.busy < pool.spec.reserved_concurrency",
        "return pool.busy <= pool.spec.reserved_concurrency",
    ),
    Defect("stellaris/runtime/engine/placement.py", "and node.vcpus >= need.vcpus", "and node.vcpus > need.vcpus"),
    Defect(
        "stellaris/runtime/engine/departures.py",
        'if dies and container is not None and call.status == "running" and',
        'if dies and container is not None and call.status == "pending" and',
    ),
    Defect(
        "stellaris/runtime/engine/transfers.py",
        "if self._slow is not None and self._slow.now(now):",
        "if self._slow is not None and not self._slow.now(now):",
    ),
    Defect("stellaris/runtime/engine/platform.py", "attempt=call.attempt + 1,", "attempt=call.attempt,"),
    Defect(
        "stellaris/runtime/engine/faults.py",
        "return self._begin <= instant < self._end or",
        "return self._begin < instant < self._end or",
    ),
    Defect(
        "stellaris/runtime/store/store.py", "return max(self.newest(name) - lag, 0)", "return self.newest(name) - lag"
    ),
    Defect("stellaris/runtime/store/versions.py", "if v <= oldest and not self._is_held((name, v))", "if v <= oldest"),
    Defect(
        "stellaris/runtime/costs/usage.py",
        "abs(units - whole) <= 1e-9 * (1 + units)",
        "abs(units - whole) <= 1e-2 * (1 + units)",
    ),
    Defect("stellaris/runtime/trace/timeline.py", "if cold and started > acquired:", "if cold and started < acquired:"),
    Defect(
        "stellaris/runtime/trace/views.py",
        "there = np.flatnonzero(function >= 0)",
        "there = np.flatnonzero(function > 0)",
    ),
    Defect("stellaris/runtime/delays.py", "variance = math.log1p(self.cv**2)", "variance = math.log1p(self.cv)"),
    # ---- systems
    Defect(
        "stellaris/systems/staleness_control.py",
        "accepted + running < (self.pace + learned + 1) * batch",
        "accepted + running <= (self.pace + learned + 1) * batch",
    ),
    Defect("stellaris/systems/deliveries.py", "self.handled.add(again.number)", "self.handled.add(done.number)"),
    Defect(
        "stellaris/systems/batches.py",
        "self.unseen[indices[indices < len(self.unseen)]] = 0",
        "self.unseen[indices[:1]] = 0",
    ),
    Defect("stellaris/systems/circular_replay.py", "% period == 0", "% period == 1"),
    Defect("stellaris/systems/data_parallel.py", "2 * (n - 1) / n", "(n - 1) / n"),
    Defect("stellaris/systems/history.py", "self._gradients += 1", "self._gradients += 2"),
    Defect("stellaris/systems/central_inference.py", "steps=before.steps + 1,", "steps=before.steps,"),
    # ---- the lab
    Defect("stellaris/lab/program.py", "row = (number + 1) % self", "row = number % self"),
    Defect("stellaris/lab/program.py", "_evaluated(keys, version,", "_evaluated(keys, self._version(carry, number),"),
    Defect("stellaris/lab/program.py", "[number // every - 1]", "[number // every - 2]"),
    Defect("stellaris/lab/runs.py", "numbers[several[0]]}", "numbers[0]}"),
    Defect("stellaris/lab/program.py", "keys.batches, i + 1, carry", "keys.batches, i, carry"),
    Defect("stellaris/lab/program.py", "(keys.seed + where, starts)", "(keys.seed + 0 * where, starts)"),
    Defect("stellaris/lab/program.py", "chosen(starts != NONE, fresh", "chosen(starts == NONE, fresh"),
    Defect("stellaris/lab/program.py", "merged(carry.statistics, own)", "merged(own, own)"),
    Defect("stellaris/lab/program.py", "grads, plan.gradient_version[i],", "grads, plan.gradient_row[i],"),
    Defect("stellaris/lab/program.py", "pop(queue, number, plan.round[number])", "pop(queue, number, number)"),
    Defect("stellaris/lab/program.py", "pop(queue, number, plan", "pop(queue, number + 1, plan"),
    Defect(
        "stellaris/lab/program.py",
        "version = self._version(carry, plan.wave_version[i])",
        "version = self._version(carry, plan.wave_version[i] + 1)",
    ),
    Defect("stellaris/lab/program.py", "plan.batch_target[i])", "plan.batch_place[i])"),
    Defect("stellaris/lab/program.py", "plan.wave_offset[i] * self.length", "plan.wave_offset[i]"),
    Defect("stellaris/lab/plan.py", "free_from[place] = end + 1", "free_from[place] = end"),
    Defect("stellaris/lab/plan.py", 'side="left"', 'side="right"'),
    Defect("stellaris/lab/plan.py", "or slot in taken or", "or"),
    Defect(
        "stellaris/lab/recorded.py",
        "self.pushed[invocation] = len(self.update_round)",
        "self.pushed[invocation] = self.version",
    ),
    Defect("stellaris/lab/recorded.py", "NONE if own else", "NONE if not own else"),
    Defect("stellaris/lab/recorded.py", '("completed", "lost")', '("completed",)'),
    Defect("stellaris/lab/recorded.py", "self.acts and int(value) == invocation", "self.acts"),
    Defect("stellaris/lab/recorded.py", "[*start.others, *[start.version] * held]", "[*[start.version] * held]"),
    Defect("stellaris/lab/recorded.py", "int(value) - 1] = self.version", "int(value) - 1] = self.version + 1"),
    Defect("stellaris/lab/statistics.py", "(one.count * share)", "share"),
    Defect("stellaris/lab/dry_run.py", "Learned((), version.version", "Learned((), 0"),
    # ---- scheduling
    Defect("stellaris/scheduling/scheduler.py", "round_seconds=one.seconds - began", "round_seconds=one.seconds"),
    Defect(
        "stellaris/scheduling/rules.py",
        "np.clip(mean * most / self.target, 1, most)",
        "np.clip(mean * most / self.target, 0, most)",
    ),
    # ---- experiments, theory
    Defect(
        "experiments/toolkit/statistics.py",
        "return one / other if other > 0 else math.nan",
        "return one / other if other != 0 else math.nan",
    ),
    Defect(
        "experiments/study/curves.py",
        'at(one, "episode_return", end), at(other, "episode_return", end)',
        'at(one, "episode_return", end), at(one, "episode_return", end)',
    ),
    Defect("theory_checks/rates.py", "ENOUGH * (tau + 1.0) ** 2 *", "ENOUGH * (tau + 1.0) *"),
)


def rooms_of(defect: Defect) -> list[str]:
    """The tests that mirror a defect's file, its own doctests, and those that it names."""
    parts = Path(defect.file).with_suffix("").parts
    parts = parts[1:] if parts[0] == "stellaris" else parts
    mirror = ROOT / "tests" / Path(*parts[:-1])
    found = sorted(mirror.glob(f"test_{parts[-1]}*.py")) or [mirror]
    return [defect.file, *(str(path.relative_to(ROOT)) for path in found), *defect.tests.split()]


def caught(defect: Defect, copy: Path, *, quick: bool) -> bool:
    """Whether a test fails in a copy of the project that has the defect."""
    file = copy / defect.file
    text = file.read_text()
    file.write_text(text.replace(defect.right, defect.wrong))
    try:
        tests = rooms_of(defect)
        chosen = ["-m", "not slow"] if quick else []
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *chosen, *tests]
        run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text)
    if run.returncode not in (0, 1, 5):  # passed, failed, nothing was selected
        raise RuntimeError(f"{defect}: pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 1


def main() -> int:
    """Prints one line per defect, and the share that was caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the tests of `make test`")
    parser.add_argument("--only", default="", help="only defects in files whose path contains this")
    arguments = parser.parse_args()
    chosen = [defect for defect in DEFECTS if arguments.only in defect.file]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".venv", ".git", "results", ".*_cache", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for number, defect in enumerate(chosen, start=1):
            began = time.perf_counter()
            found = caught(defect, copy, quick=arguments.quick)
            missed += not found
            verdict = "caught" if found else "MISSED"
            seconds = time.perf_counter() - began
            print(f"{number:3d}/{len(chosen)} {verdict} {seconds:5.0f} s  {defect.file}: {defect.wrong}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} defects caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
