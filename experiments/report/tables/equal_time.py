"""The tables of the comparison at equal time, and of the tuning before it."""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from experiments import tuning
from experiments.figures.stellaris import hpc_tuning
from experiments.report.tables.results import estimated, first, middle, paired, rounded, rows, runs
from experiments.report.tables.table import Table
from experiments.tasks.presets import TARGETS

_STUDY = "small/stellaris-equal-time"
#: The folders of `tuning`'s results, by environment.
_TUNING = {"Hopper-v4": "small/tuning", "CartPole-v1": "small/tuning/cartpole"}
#: The system that has asynchronous actors, as Stellaris has, and no asynchronous learners.
_CONTROL = "asynchronous actors, PPO"
_FINAL, _MEAN = "final_return", "mean_return"
_BESIDE = ("return after 60 s", "mean over the 60 s")  #: the headings of these columns.
_LABELS = {
    "synchronous": "synchronous PPO",
    "asynchronous actors, PPO": "asynchronous actors, one PPO learner",
    "IMPACT": "`CircularReplay`, IMPACT",
    "asynchronous actors": "asynchronous actors, IMPALA",
    "stellaris": "Stellaris, PPO",
    "stellaris, IMPACT": "Stellaris, IMPACT",
    "PAR-RL": "PAR-RL",
}


def tuned(environment: str) -> Table:
    """Returns the best setting of each system, and the next best, by the mean outcome over the tuning seeds."""
    of = tuning.of(environment)
    column = _MEAN if of.over_the_run else _FINAL
    outcome = f"mean return over {of.seconds:g} s" if of.over_the_run else f"return after {of.seconds:g} s"
    groups = runs(_TUNING[environment], environment)
    return _ranked((environment, outcome), of.settings, groups, column)


def beyond() -> Table:
    """Returns the settings beyond the grids on the tuning seeds, and their ratios to the chosen settings."""
    several = [runs(f"{_TUNING['Hopper-v4']}/{which}", "Hopper-v4") for which in ("beyond", "rivals", "larger")]
    groups = {variant: of for one in several for variant, of in one.items()}
    lines = []
    for system, settings in tuning.BEYOND.items():
        chosen = groups[f"{system}: {tuning.of('Hopper-v4').chosen[system]}"]
        lines += [(_LABELS[system], setting, *_beside(groups[f"{system}: {setting}"], chosen)) for setting in settings]
    headings = ("Hopper-v4", "setting", *_BESIDE, "ratio to the chosen setting", "ratio of the means over the 60 s")
    return Table(headings, lines, left=("setting",))


def sampling_on() -> Table:
    """Returns the settings of one PPO learner that synchronous PPO's grid has and its own lacks, sampling on."""
    lines = []
    for environment in ("Hopper-v4", "CartPole-v1"):
        groups = runs("small/tuning/sampling-on", environment)
        chosen = groups[f"{_CONTROL}: {tuning.of(environment).chosen[_CONTROL]}"]
        for i, setting in enumerate(tuning.SAMPLING_ON[_CONTROL]):
            own = groups[f"{_CONTROL}: {setting}"]
            lines.append(("" if i else environment, setting, *_beside(own, chosen)))
    outcomes = ("return at the end", "mean over the run", "ratio to the chosen setting", "ratio of the means")
    return Table(("task", "setting of one PPO learner", *outcomes), lines, left=("setting",))


def parts() -> Table:
    """Returns Stellaris' best setting beyond the grid on the tuning seeds, and with one part changed at a time."""
    base, *changed = (f"stellaris: {setting}" for setting in tuning.PARTS["stellaris"])
    of = runs(f"{_TUNING['Hopper-v4']}/parts", "Hopper-v4")
    lines = [("none", *_beside(of[base], of[base]))]
    lines += [(name.removeprefix("stellaris: "), *_beside(of[name], of[base])) for name in changed]
    return Table(("the part that is changed", *_BESIDE, "ratio", "ratio of the means over the 60 s"), lines)


def _beside(of: Sequence[Mapping[str, str]], chosen: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Returns the returns of a setting after 60 s and over them, and the ratios to another setting's."""
    returns = (_with_range(of, column) for column in (_FINAL, _MEAN))
    ratios = (
        "1.00" if of is chosen else f"{fmean(_column(of, column)) / fmean(_column(chosen, column)):.2f}"
        for column in (_FINAL, _MEAN)
    )
    return *returns, *ratios


def _column(of: Sequence[Mapping[str, str]], column: str) -> Sequence[float]:
    return [float(row[column]) for row in of]


def _with_range(of: Sequence[Mapping[str, str]], column: str) -> str:
    """Returns the mean, the least and the greatest of a column as text."""
    found = _column(of, column)
    return f"{fmean(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"


def tuned_for_hpc() -> Table:
    """Returns the best setting of Stellaris and of PAR-RL on the HPC testbed, and the next best."""
    groups = runs("small/stellaris-hpc-tuning", "Hopper-v4")
    outcome = f"return after {hpc_tuning.SECONDS:g} s"
    return _ranked(("960 cores, 16 GPUs", outcome), hpc_tuning.SETTINGS, groups, _FINAL)


def _ranked(
    headings: tuple[str, str],
    settings: Mapping[str, Collection[str]],
    groups: Mapping[str, Sequence[Mapping[str, str]]],
    column: str,
) -> Table:
    """Ranks each system's settings by the mean of a column over the runs of each setting."""
    outcomes = {setting: [float(row[column]) for row in group] for setting, group in groups.items()}
    lines = []
    for system in (system for system in _LABELS if system in settings):
        own = [f"{system}: {setting}" for setting in settings[system]]
        best, other, *_ = sorted(own, key=lambda setting: -fmean(outcomes[setting]))
        lines.append(
            (
                _LABELS[system],
                best.removeprefix(f"{system}: "),
                _with_range(groups[best], column),
                f"{middle(groups[best], 'steps'):,.0f}",
                f"{middle(groups[best], 'gradients'):,.0f}",
                f"{fmean(outcomes[other]):,.0f} ({other.removeprefix(f'{system}: ')})",
            )
        )
    setting, outcome = headings
    names = (setting, "best of eight settings", outcome, "steps", "gradients", "the next best")
    return Table(names, lines, left=("best of eight settings", "the next best"))


def compared(environment: str) -> Table:
    """Returns the study's numbers on one environment; the cost up to a target is shown where there is a target.

    Runs on environments on which nothing was tuned have a folder each.
    """
    folder, target = _STUDY if environment in _TUNING else f"{_STUDY}/{environment}", TARGETS.get(environment)
    groups = runs(folder, environment)
    lines = [
        (
            _LABELS[row["system"]],
            f"{estimated(groups[row['system']], _FINAL):,.0f}",
            *(rounded(row[column]) for column in ("ratio", "ratio of means")),
            _against(groups[row["system"]], groups[_CONTROL]),
            row["staleness"],
            f"{float(row['USD demo']):.3f}",
            f"{float(row['USD use']):.3f}",
            *([] if target is None else [_up_to_target(row)]),
        )
        for row in rows(f"{folder}/table.csv")
        if row["environment"] == environment
    ]
    ratios = ("ratio to synchronous", "of the means until then", "ratio to one PPO learner")
    headings = [environment, "return after 60 s", *ratios, "staleness", "USD, demo's bill", "USD by use"]
    return Table(headings if target is None else [*headings, f"USD by use up to {target:g}"], lines)


def continued() -> Table:
    """Returns the mean return over the run of the systems that ran on further seeds of Hopper-v4, and their ratios.

    Ratios are those of all seeds, paired by seed, and beside them those of the further seeds alone.
    """
    before, further = runs(_STUDY, "Hopper-v4"), runs(f"{_STUDY}/Hopper-v4-more", "Hopper-v4")
    together = {name: [*before[name], *rows] for name, rows in further.items()}
    lines = []
    for name in (name for name in _LABELS if name in further):
        ratios = (
            _against(groups[name], groups[other], column)
            for other, column in (("synchronous", _MEAN), (_CONTROL, _MEAN), ("synchronous", _FINAL))
            for groups in (together, further)
        )
        lines.append((_LABELS[name], f"{estimated(together[name], _MEAN):,.0f}", *ratios))
    seeds, new = (len(groups["synchronous"]) for groups in (together, further))
    alone = f"of the {new} new seeds"
    means = ("ratio to synchronous", alone, "ratio to one PPO learner", alone)
    return Table((f"{seeds} seeds", "mean return", *means, "ratio of returns after 60 s", alone), lines)


def beyond_the_grid() -> Table:
    """Returns Stellaris' settings beyond its grid on the further seeds of Hopper-v4, against runs of the same seeds."""
    further, own = (runs(f"{_STUDY}/Hopper-v4-{which}", "Hopper-v4") for which in ("more", "beyond"))
    rivals = {"synchronous": "ratio to synchronous", _CONTROL: "to one PPO learner"}
    lines = [
        (
            setting.removeprefix("stellaris: "),
            f"{estimated(of, _MEAN):,.0f}",
            *(_against(of, further[rival], _MEAN) for rival in (*rivals, "stellaris")),
            *(_against(of, further[rival], _FINAL) for rival in rivals),
        )
        for setting, of in own.items()
    ]
    names = (*rivals.values(), "to Stellaris' chosen setting")
    ends = (f"{name}, after 60 s" for name in rivals.values())
    seeds = {len(of) for of in own.values()}
    return Table((f"Stellaris, PPO; {max(seeds)} seeds", "mean return", *names, *ends), lines)


def larger() -> Table:
    """Returns the systems with settings beyond their grids, most with larger minibatches, on more seeds of Hopper."""
    several = ("more", "beyond", "rivals", "last", "2048", "0012")
    groups = {name: of for which in several for name, of in runs(f"{_STUDY}/Hopper-v4-{which}", "Hopper-v4").items()}
    lines = []
    for name in sorted((name for name in groups if ": " in name), key=_place):
        system, _, setting = name.partition(": ")
        chosen = _against(groups[name], groups[system], _MEAN) if system in groups else ""
        returns, ratios = _against_larger(name, groups)
        lines.append((_LABELS[system], setting, *returns, chosen, *ratios))
    seeds = {len(of) for of in groups.values()}
    means, ends = ("mean return", "ratio of means to the chosen setting", *_TO), (f"{one}, after 60 s" for one in _TO)
    headings = (f"{max(seeds)} seeds", "setting", "return after 60 s", *means, *ends)
    return Table(headings, lines, left=("setting",))


def larger_continued() -> Table:
    """Returns Stellaris and synchronous PPO with larger minibatches on twelve more seeds of Hopper, and their ratio.

    Ratios are those of all seeds, paired by seed, and beside them those of the further seeds alone.
    """
    further = runs(f"{_STUDY}/Hopper-v4-larger-more", "Hopper-v4")
    before = {**runs(f"{_STUDY}/Hopper-v4-beyond", "Hopper-v4"), **runs(f"{_STUDY}/Hopper-v4-rivals", "Hopper-v4")}
    together = {name: [*before[name], *of] for name, of in further.items()}
    rival = f"synchronous: {_LARGER['synchronous']}"
    lines = []
    for name in sorted(further, key=_place):
        system, _, setting = name.partition(": ")
        returns = [f"{estimated(together[name], column):,.0f}" for column in (_FINAL, _MEAN)]
        ratios = [
            _against(groups[name], groups[rival], column)
            for column in (_MEAN, _FINAL)
            for groups in (together, further)
        ]
        lines.append((_LABELS[system], setting, *returns, *ratios))
    seeds, new = (len(groups[rival]) for groups in (together, further))
    alone = f"of the {new} new seeds"
    means, ends = (f"ratio of means {_TO[0]}", alone), (f"{_TO[0]}, after 60 s", alone)
    headings = (f"{seeds} seeds", "setting", "return after 60 s", "mean return", *means, *ends)
    return Table(headings, lines, left=("setting",))


def larger_elsewhere() -> Table:
    """Returns three systems with larger minibatches on other tasks than Hopper."""
    lines, seeds = [], set()
    for environment in ("HalfCheetah-v4", "Walker2d-v4"):
        groups = runs(f"{_STUDY}/{environment}-beyond", environment)
        for i, name in enumerate(sorted(groups, key=_place)):
            system, _, setting = name.partition(": ")
            returns, ratios = _against_larger(name, groups)
            lines.append(("" if i else environment, _LABELS[system], setting, *returns, *ratios))
            seeds.add(len(groups[name]))
    means, ends = ("mean return", *(f"ratio of means {one}" for one in _TO)), (f"{one}, after 60 s" for one in _TO)
    headings = (f"{max(seeds)} seeds", "system", "setting", "return after 60 s", *means, *ends)
    return Table(headings, lines, left=("system", "setting"))


#: The rivals' larger minibatches, to which the tables of larger ones compare, and their headings.
_LARGER = {"synchronous": "0.0003, 10 x 2048", _CONTROL: "0.0006, 2048 items, sampling on"}
_TO = ("to synchronous, 2,048", "to one PPO learner, 2,048")


def _place(name: str) -> int:
    """Returns the place of a system's setting in the tables: that of the system."""
    return [*_LABELS].index(name.partition(": ")[0])


def _against_larger(name: str, groups: Mapping[str, Sequence[Mapping[str, str]]]) -> tuple[list[str], list[str]]:
    """Returns a setting's returns, at the end and in the mean, and its ratios to the rivals' larger minibatches."""
    rivals = [groups[f"{system}: {setting}"] for system, setting in _LARGER.items()]
    returns = [f"{estimated(groups[name], column):,.0f}" for column in (_FINAL, _MEAN)]
    return returns, [_against(groups[name], of, column) for column in (_MEAN, _FINAL) for of in rivals]


def _up_to_target(row: Mapping[str, str]) -> str:
    """Returns the mean cost by use up to the target if all runs reached it, otherwise how many did."""
    reached, seeds = row["reached"].split(" of ")
    return f"{first(row['USD to target']):.3f}" if reached == seeds else f"reached by {row['reached']}"


def _against(of: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]], column: str = _FINAL) -> str:
    """Returns the ratio of the returns of two systems, paired by seed; of a system to itself it is 1."""
    return f"{paired(of, others, column):.2f}"
