"""Return at equal time, by each system with the best of its eight settings, on seeds that chose nothing.

Registered before the runs. Outcomes: the mean return of the last 100 training episodes after 60 virtual seconds (first)
and its mean over these seconds (second), as ratios to the synchronous system, paired by seed. Questions:

1. Is Stellaris ahead of synchronous PPO, as the paper claims (2.2 times the reward at equal time)?
2. Is it ahead of asynchronous actors with one PPO learner? If not, its gain is due to its actors, not to its learners.
3. Do fresh seeds give the order of the tuning seeds: one PPO learner, IMPACT and synchronous PPO; then, at about half
   their return, Stellaris with either loss, and IMPALA?

"Ahead" means a ratio whose 95 % interval excludes 1. Between tuning seeds a return varies by 10 to 50 %, so ten seeds
show ratios of 1.2 to 1.5 and no smaller. Nothing was tuned on Walker2d, HalfCheetah and Humanoid. Humanoid was
registered after Hopper's runs, before its first.

Registered on 2026-11-30, before their first run: fourteen more seeds of Hopper-v4, 10 to 23, as the power analysis of
`docs/results.md` asks. From the variation of the first ten seeds, 24 seeds show a ratio of 1.2 between Stellaris and
synchronous PPO in the mean return over the 60 seconds with a power of 0.8. Four systems run, in this order: synchronous
PPO, Stellaris with IMPACT's loss, asynchronous actors with one PPO learner, and Stellaris with PPO's loss. First
outcome: the ratio of mean returns, paired by seed, of all 24 seeds, whose number follows from the variation and not
from the ratios seen; beside it the ratio of the fourteen new seeds alone. Second outcome: the return at the end.
Questions:

4. Is Stellaris, with either loss, behind synchronous PPO?
5. Are asynchronous actors with one PPO learner ahead of synchronous PPO?
6. Is Stellaris, with either loss, behind asynchronous actors with one PPO learner?

A ratio of 1.1 would need 87 seeds; smaller differences remain unseen.

Registered later on 2026-11-30, before their first run: on the four tuning seeds two settings of Stellaris with PPO's
loss that lie beyond its grid (`tuning.BEYOND`) have 1.2 times the return of the chosen one, or more. So both run on the
seeds 10 to 23 (preset `beyond`, `--seed 10`), first the larger minibatch, then half of the learning rate. Outcomes and
rivals' runs are those of the fourteen seeds above. Questions:

7. Is Stellaris with such a setting behind, level with or ahead of synchronous PPO?
8. And of asynchronous actors with one PPO learner?

The rivals' settings are at the ends of their grids as well, and were not tuned further: an answer in favour of
Stellaris is no claim that it is ahead of rivals that are tuned as far.

Registered later on 2026-11-30, before their first run: each rival got two settings beyond its grid as well, by the same
rule. Synchronous PPO and asynchronous actors with one PPO learner have 1.2 and 1.3 times the return of their chosen
settings with minibatches of 2,048, so both run so on the seeds 10 to 23. (The runs of IMPACT and IMPALA, of which
neither ran on these seeds, were not finished then.) Outcomes are those above. Questions:

9. Is Stellaris, with the larger minibatch, behind synchronous PPO with its larger one?
10. And behind asynchronous actors with one PPO learner, with their larger one?
11. Are these actors ahead of synchronous PPO, both with the larger minibatch?

Registered after the tuning runs of IMPACT's larger minibatch, which have 2.4 times the return of its chosen setting,
and before its first run here: it runs on the same fourteen seeds. Its chosen setting does not, so that its ratios are
to the other systems' alone. Question:

12. Is `CircularReplay` with IMPACT and its larger minibatch ahead of synchronous PPO and of asynchronous actors with
    one PPO learner, each with its larger one, and of Stellaris?

Registered on 2026-12-01, before their first run: the two settings beyond the grids that were better in tuning and have
not run here, on the same fourteen seeds: `CircularReplay` with IMPACT and the larger learning rate, 0.0024, and
Stellaris with PPO's loss and minibatches of 2,048. Outcomes are those above. Questions:

13. Is IMPACT with the larger learning rate ahead of IMPACT with the larger minibatch?
14. Is Stellaris with minibatches of 2,048 ahead of Stellaris with 1,024?

Registered later on 2026-12-01, before their first run: the larger minibatches of synchronous PPO, of one PPO learner
and of Stellaris with PPO's loss on HalfCheetah-v4, whose runs above have Hopper's chosen settings; seeds 0 to 9, as
those. Outcomes are those above. Question:

15. Is Stellaris behind synchronous PPO and behind one PPO learner there as well, all with larger minibatches?

(Added later on 2026-12-01: question 13 was answered. The runs of 14 and 15 were not made in that session: other runs
took the time. They were made in the next.)

Registered later on 2026-12-01, before their first run: the same three systems on Walker2d-v4, seeds 0 to 9. Question:

16. Is the answer to question 15 the same there?

Registered later on 2026-12-01, before their first run: twelve more seeds of Hopper-v4, 24 to 35, of the three systems
with larger minibatches: in this order synchronous PPO with 2,048, Stellaris with PPO's loss and 1,024, and one PPO
learner with 2,048. By the variation of the fourteen seeds, 26 show a ratio of 1.1 in the mean return over the 60
seconds with a power of 0.8, for each of the three pairs. First outcome: the ratio of mean returns, paired by seed, of
all 26 seeds, whose number follows from the variation and not from the ratios seen; beside it the ratio of the twelve
new seeds alone. Second outcome: the return at the end. Question:

17. Are the answers to questions 9, 10 and 11 the same, and by how much is a system ahead of another?

Registered later on 2026-12-01, before its first run: one of the four settings that one PPO learner got last
(`tuning.SAMPLING_ON`), minibatches of 1,024 at twice the learning rate, has 1.45 times the return of the chosen setting
on the tuning seeds, and more than minibatches of 2,048. So it runs on the seeds 10 to 23. Outcomes are those above.
Question:

18. Is it ahead of one PPO learner with minibatches of 2,048, of synchronous PPO with them, and of Stellaris?
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments import tuning
from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks.presets import TARGETS
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate

DESCRIPTION = "return at equal time of each system with its best setting, on fresh seeds"

#: Settings beyond the grids that were better than the chosen ones in tuning.
_BETTER = {
    "stellaris": (
        "0.0003, 1024 items, sampling on",
        "0.00015, 512 items, sampling on",
        "0.0003, 2048 items, sampling on",
    ),
    "synchronous": ("0.0003, 10 x 2048",),
    "asynchronous actors, PPO": ("0.0006, 2048 items, sampling on", "0.0012, 1024 items, sampling on"),
    "IMPACT": ("0.0012, 1024 items, sampling on", "0.0024, 512 items, sampling on"),
}


def _beyond(environment: str) -> Sequence[Variant]:
    """Returns the systems with these settings beyond their grids."""
    ran = {system: {**tuning.BEYOND[system], **tuning.SAMPLING_ON.get(system, {})} for system in _BETTER}
    better = {system: {name: ran[system][name] for name in names} for system, names in _BETTER.items()}
    return tuning.named(environment, better)


SIZES = {
    "smoke": Size(("CartPole-v1",), 12_288, 1),
    "small": Size(("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Humanoid-v4"), 10_000_000, 10),
    "paper": Size(("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Humanoid-v4"), 10_000_000, 20),
    "beyond": Size(("Hopper-v4",), 10_000_000, 14, _beyond),
}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per system."""
    return [tuning.variant(environment, name, setting) for name, setting in tuning.of(environment).chosen.items()]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        seeds = max(map(len, groups.values()))
        drawn = [plots.Curves(of[0].cell.contender, [one.history for one in of]) for of in groups.values()]
        title = f"{environment}, {tuning.of(environment).seconds:g} virtual s, {seeds} seed{'s' if seeds > 1 else ''}"
        plots.learning(drawn, out / f"equal_time_{environment}", title=title, over=plots.TIME_AND_COST)
        for name, of in groups.items():
            rows.append((environment, name, *_row(environment, of, groups.get(tuning.BASELINE, ()))))
    ratios = ("ratio", "ratio of means")
    spent = ("staleness", "USD demo", "USD use", "reached", "USD to target")
    headings = ("environment", "system", "return", *ratios, *spent)
    tidy.show("return at equal time", headings, rows, out, console)


def _row(environment: str, of: Sequence[Finished], baseline: Sequence[Finished]) -> tuple[str, ...]:
    """Returns a system's numbers as text; ratios to the baseline are empty without its runs."""
    target = TARGETS.get(environment)
    paired = [
        str(estimate(ratios)) if ratios else ""
        for ratios in (
            curves.at_equal_time(of, baseline),
            curves.means(of, baseline, "episode_return", tuning.of(environment).seconds),
        )
    ]
    staleness = estimate([one.summary["staleness_mean"] or 0.0 for one in of]).middle
    bills = (f"{curves.last(of, column).middle:.4f}" for column in ("cost_demo", "cost_pay_per_use"))
    spent = [] if target is None else [cost for one in of if (cost := curves.cost_to(one, target)) is not None]
    return (
        str(curves.last(of, "episode_return")),
        *paired,
        f"{staleness:.2f}",
        *bills,
        "" if target is None else f"{len(spent)} of {len(of)}",
        str(estimate(spent)) if spent else "",
    )


STUDY = Study("stellaris-equal-time", SIZES, _variants, _report, ("equal_time",))
add_arguments, main = STUDY.add_arguments, STUDY.main
