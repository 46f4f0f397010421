"""The table of the runs that were made."""

from collections.abc import Mapping, Sequence

from experiments.report.tables import minionsrl
from experiments.report.tables.results import REPLAYED, rows
from experiments.report.tables.table import Table

#: The folders of the runs at equal time, in the study's folder.
_EQUAL_TIME = (
    "",
    "/Hopper-v4-more",
    "/Hopper-v4-beyond",
    "/Hopper-v4-rivals",
    "/Hopper-v4-last",
    "/Hopper-v4-2048",
    "/Hopper-v4-larger-more",
    "/Hopper-v4-0012",
    "/HalfCheetah-v4",
    "/HalfCheetah-v4-beyond",
    "/Walker2d-v4",
    "/Walker2d-v4-beyond",
    "/Humanoid-v4",
)
#: Studies that one row of the table counts together: their folders, their names on the page, and their subject.
_STUDIES: Sequence[tuple[Sequence[str], str, str]] = (
    (
        ("small/stellaris-why", "small/stellaris-motivation"),
        "`stellaris-why`, `stellaris-motivation`",
        "[where a factor of 2.2 comes from](results/stellaris.md#where-a-factor-of-22-comes-from)",
    ),
    (
        ("small/stellaris-training", "small/stellaris-cost"),
        "`stellaris-training`, `stellaris-cost` on Hopper-v4 and Walker2d-v4",
        "[training curves and their cost](results/stellaris.md#training-and-cost)",
    ),
    (
        (
            *("small/stellaris-ablation", "small/stellaris-ablation/more"),
            *("small/stellaris-challenges", "small/stellaris-latency"),
        ),
        "`stellaris-ablation`, `stellaris-challenges`, `stellaris-latency`",
        "[the parts of Stellaris](results/stellaris.md#the-parts-of-stellaris)",
    ),
    (
        ("small/stellaris-aggregators",),
        "`stellaris-aggregators`",
        "[aggregators against each other](results/stellaris.md#aggregators-against-each-other)",
    ),
    (
        ("small/stellaris-sensitivity",),
        "`stellaris-sensitivity`",
        "[sensitivity to threshold, cap and weights](results/stellaris.md#sensitivity)",
    ),
    (
        ("small/stellaris-sweeps",),
        "`stellaris-sweeps`",
        "[when the ratios hold](results/deployments.md#when-the-ratios-hold)",
    ),
    (
        ("small/stellaris-demo-sweeps", "small/stellaris-demo-sweeps/more", "small/stellaris-hpc-sweeps"),
        "`stellaris-demo-sweeps`, `stellaris-hpc-sweeps`",
        "[when the ratios hold](results/deployments.md#when-the-ratios-hold)",
    ),
    (
        ("small/stellaris-scaling",),
        "`stellaris-scaling`",
        "[from one function to a thousand](results/deployments.md#from-one-function-to-a-thousand)",
    ),
    (
        minionsrl.TRAINING,
        "`minionsrl-training` on CartPole-v1, Hopper-v4 and HalfCheetah-v4",
        "[MinionsRL](results/minionsrl.md#on-the-event-loop-with-both-learners)",
    ),
    (
        tuple(f"small/minionsrl-{name}" for name in ("motivation", "latency", "scaling")),
        "`minionsrl-motivation`, `-latency`, `-scaling`",
        "[MinionsRL](results/minionsrl.md#the-papers-other-figures)",
    ),
    (
        ("small/stellaris-calibration",),
        "`stellaris-calibration`",
        "[bodies on this machine](results/deployments.md#bodies-on-this-machine)",
    ),
    (
        ("small/stellaris-hpc", "small/stellaris-hpc-tuning"),
        "`stellaris-hpc`, `stellaris-hpc-tuning`",
        "[PAR-RL](results/deployments.md#against-par-rl-with-960-cores-and-16-gpus)",
    ),
    (
        ("hopper",),
        "`stellaris-training --env Hopper-v4 --steps 1000000 --seeds 3`",
        "[four systems for a million steps](systems.md#hopper-for-a-million-steps)",
    ),
    (
        ("qbert",),
        "`stellaris-training --env Qbert-v5 --steps 200000 --seeds 3`, synchronous and Stellaris",
        "[Qbert](results/stellaris.md#qbert)",
    ),
    (
        ("atari",),
        "the same on SpaceInvaders-v5 and Gravitar-v5",
        "[SpaceInvaders and Gravitar](results/stellaris.md#spaceinvaders-and-gravitar)",
    ),
    (
        ("small/tuning-steps", "small/tuning-steps/at-equal-time"),
        "`tuning-steps`",
        "[return after as many steps](benchmarks.md#return-after-as-many-steps)",
    ),
    (
        (
            "small/tuning",
            *(f"small/tuning/{which}" for which in ("cartpole", "beyond", "rivals", "larger", "parts", "sampling-on")),
        ),
        "`tuning`",
        "[settings for equal time](systems.md#tuned-for-equal-time)",
    ),
    (
        tuple(f"small/stellaris-equal-time{of}" for of in _EQUAL_TIME),
        "`stellaris-equal-time` on Hopper-v4, HalfCheetah-v4, Walker2d-v4 and Humanoid-v4",
        "[at equal time](results/stellaris.md#at-equal-time)",
    ),
    (
        ("small/stellaris-map-rates", "small/stellaris-map-hopper"),
        "`stellaris-map-rates`, `stellaris-map-hopper`",
        "[the map on the event loop](results/stellaris-map.md#on-the-event-loop)",
    ),
)


def ran() -> Table:
    """Returns the number of runs by study, and its subject."""
    lines = [(names, f"{count(studies):,}", subject) for studies, names, subject in _STUDIES]
    seeds = {row["seed"] for row in rows("gear/played.csv")}
    lines.append(
        ("`gear-hopper`", f"{len(seeds)}", "[learning from trajectories](replay.md#learning-from-trajectories)")
    )
    lines.append(("`lab-lag`", f"{len(rows('lab-lag/runs.csv')):,}", "[return against lag](results/lab-lag.md)"))
    where = "[return of the newest policy against lag](results/lab-lag.md#the-newest-policy)"
    lines.append(("`lab-newest`", f"{len(rows('lab-newest/runs.csv')):,}", where))
    tasks = ("CartPole", "Acrobot-v1", "Breakout-MinAtar")
    parts = ("lags", "patterns", "border")
    several = sum(len(rows(f"lab-corrections/{part}_{task}.csv.gz")) for part in parts for task in tasks)
    further = [f"{part}_{task}" for part in ("newest", "mixed") for task in tasks[:2]]  # Breakout lacks these
    several += sum(len(rows(f"lab-corrections/{name}.csv.gz")) for name in further)
    where = "[every correction at every lag](results/lab-corrections.md)"
    lines.append(("`lab-corrections`", f"{several:,}", where))
    where = "[corrections on a language task](results/lab-language.md)"
    language = sum(len(rows(f"lab-language/{part}.csv")) for part in (*parts, "dip"))
    lines.append(("`lab-language`", f"{language:,}", where))
    aged = sum(len(rows(f"lab-gradients/runs_{task}.csv.gz")) for task in ("CartPole", "Acrobot-v1"))
    where = "[gradient lag](results/lab-gradients.md)"
    lines.append(("`lab-gradients`", f"{aged:,}", where))
    learned = sum(len(rows(f"stellaris-map/learning_{task}.csv.gz")) for task in ("CartPole", "Acrobot-v1"))
    dry = len(rows("stellaris-map/speed.csv"))
    where = "[where asynchronous learners win](results/stellaris-map.md)"
    lines.append(("`stellaris-map`", f"{learned:,}, and {dry:,} dry runs", where))
    return Table(("study", "runs", "subject"), lines, left=("subject",))


def count(studies: Sequence[str]) -> int:
    """Counts runs once that several settings share: as a run is deterministic, their results are equal."""
    return len({_identity(row) for study in studies for row in rows(f"{study}/runs.csv")})


def _identity(row: Mapping[str, str]) -> tuple[object, ...]:
    """Returns a run's results; a run that repeats another's schedule may have equal results, and is another run."""
    results = {name: value for name, value in row.items() if name != "setting"}
    return (row["setting"].endswith(REPLAYED), *sorted(results.items()))
