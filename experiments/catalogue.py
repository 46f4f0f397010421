"""The experiments by name: their modules, the papers they reproduce, and how long they take."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Literal

STELLARIS = "Stellaris (SC 2024)"
MINIONSRL = "MinionsRL (AAAI 2024)"
GEAR = "GEAR (ICML 2023)"


@dataclass(frozen=True)
class Entry:
    """An experiment; its module has `DESCRIPTION`, `add_arguments(parser)` and `main(arguments) -> exit status`."""

    module: str  #: dotted path within `experiments`, imported on `load`.
    of: str = ""  #: the paper, and the part of it that the experiment reproduces.
    #: Estimated minutes by preset, on two cores. An experiment without presets has one estimate, with the key "".
    minutes: Mapping[str, str] = field(default_factory=dict)
    #: `reproduce` runs studies, which share one folder of cached runs (cells), and figures, each with a separate
    #: results folder. Tunings are studies that no figure shows: with `--check` it repeats a run of each. It skips
    #: commands.
    kind: Literal["study", "tuning", "figure", "command"] = "command"

    def load(self) -> ModuleType:
        """Imports the module.

        Raises:
          ModuleNotFoundError: if a package that the module needs is missing; the message names the extra to install.
        """
        # Imported here, because the import takes seconds and is not needed for a list of the experiments' names.
        from stellaris._core.extras import needs

        with needs(f"experiments.{self.module}"):
            return importlib.import_module(f"experiments.{self.module}")


#: Minutes for five variants and five seeds; more variants take proportionally longer.
_VARIANTS = {"smoke": "1", "small": "20", "paper": "2,000"}

#: Minutes for ten variants or more.
_MANY_VARIANTS = {"smoke": "1", "small": "40", "paper": "4,000"}

EXPERIMENTS: Mapping[str, Entry] = {
    "quickstart": Entry("quickstart", f"{STELLARIS}, the demo", {"tuned": "2", "paper": "3"}),
    "cluster": Entry("cluster.demo", "the quickstart on a Ray cluster, in real time", {"": "3"}),
    "cluster-vs-simulation": Entry("cluster.vs_simulation", "whether the simulator predicts a Ray cluster", {"": "8"}),
    "train": Entry("train", "one system, any settings, sweeps", {"": "1"}),
    "play": Entry("play", "the policies that `train` has saved"),
    "study": Entry("own_study", "a study in a file of your own"),
    "systems": Entry("systems", f"{STELLARIS}, the slides' architectures", {"": "2"}),
    "tuning": Entry("tuning", "", {"smoke": "5", "small": "100", "paper": "450"}, kind="tuning"),
    "tuning-steps": Entry("tuning_steps", "", {"smoke": "2", "small": "20"}, kind="tuning"),
    "stellaris-calibration": Entry(
        "figures.stellaris.calibration",
        "measured time of function bodies",
        {"smoke": "1", "small": "5", "paper": "20"},
        kind="study",
    ),
    "stellaris-motivation": Entry(
        "figures.stellaris.motivation",
        f"{STELLARIS}, reward and cost of PPO on Hopper",
        {"smoke": "1", "small": "5", "paper": "30"},
        kind="study",
    ),
    "stellaris-challenges": Entry(
        "figures.stellaris.challenges", f"{STELLARIS}, staleness, KL, learners in use", _VARIANTS, kind="study"
    ),
    "stellaris-training": Entry(
        "figures.stellaris.training",
        f"{STELLARIS}, training performance",
        {"smoke": "1", "small": "120", "paper": "3,000"},
        kind="study",
    ),
    "stellaris-equal-time": Entry(
        "figures.stellaris.equal_time",
        f"{STELLARIS}, reward at equal time, every system at its best setting",
        {"smoke": "1", "small": "150", "paper": "500"},
        kind="study",
    ),
    "stellaris-cost": Entry(
        "figures.stellaris.cost",
        f"{STELLARIS}, training cost (the runs of stellaris-training)",
        {"smoke": "1", "small": "120", "paper": "3,000"},
        kind="study",
    ),
    "stellaris-ablation": Entry("figures.stellaris.ablation", f"{STELLARIS}, ablation", _VARIANTS, kind="study"),
    "stellaris-aggregators": Entry(
        "figures.stellaris.aggregators", f"{STELLARIS}, aggregators against each other", _MANY_VARIANTS, kind="study"
    ),
    "stellaris-sensitivity": Entry(
        "figures.stellaris.sensitivity", f"{STELLARIS}, sensitivity to d, rho and v", _MANY_VARIANTS, kind="study"
    ),
    "stellaris-latency": Entry("figures.stellaris.latency", f"{STELLARIS}, latency breakdown", _VARIANTS, kind="study"),
    "stellaris-sweeps": Entry(
        "figures.stellaris.sweeps", f"{STELLARIS}, when the headline ratios hold", _MANY_VARIANTS, kind="study"
    ),
    "stellaris-hpc": Entry(
        "figures.stellaris.hpc", f"{STELLARIS}, PAR-RL on 960 cores and 16 GPUs", _VARIANTS, kind="study"
    ),
    "stellaris-hpc-tuning": Entry("figures.stellaris.hpc_tuning", "", {"smoke": "1", "small": "60"}, kind="tuning"),
    "stellaris-demo-sweeps": Entry(
        "figures.stellaris.demo_sweeps", f"{STELLARIS}, the same with the demo's settings", _MANY_VARIANTS, kind="study"
    ),
    "stellaris-hpc-sweeps": Entry(
        "figures.stellaris.hpc_sweeps", f"{STELLARIS}, the same against PAR-RL", _MANY_VARIANTS, kind="study"
    ),
    "stellaris-scaling": Entry(
        "figures.stellaris.scaling", f"{STELLARIS}, 1 to 1,000 functions", _MANY_VARIANTS, kind="study"
    ),
    "stellaris-frameworks": Entry("figures.stellaris.frameworks", f"{STELLARIS}, table of related systems"),
    "stellaris-why": Entry(
        "figures.stellaris.why", f"{STELLARIS}, the causes of 2.2 times the reward", _VARIANTS, kind="study"
    ),
    "stellaris-map": Entry(
        "figures.map.command",
        f"{STELLARIS}, where asynchronous learners win",
        {"smoke": "1", "small": "90"},
        kind="figure",
    ),
    "stellaris-map-rates": Entry("figures.map.rates", "", {"smoke": "5", "small": "60"}, kind="tuning"),
    "stellaris-map-hopper": Entry(
        "figures.map.hopper",
        f"{STELLARIS}, the map on the event loop",
        {"smoke": "2", "small": "30", "paper": "30"},
        kind="study",
    ),
    "minionsrl-motivation": Entry(
        "figures.minionsrl.motivation",
        f"{MINIONSRL}, Figure 2",
        {"smoke": "1", "small": "5", "paper": "5"},
        kind="study",
    ),
    "minionsrl-training": Entry(
        "figures.minionsrl.training",
        f"{MINIONSRL}, Figures 4 to 6 and Table 2",
        {"smoke": "2", "small": "1,500", "paper": "12,000"},
        kind="study",
    ),
    "minionsrl-scaling": Entry(
        "figures.minionsrl.scaling",
        f"{MINIONSRL}, Figure 7",
        {"smoke": "1", "small": "20", "paper": "200"},
        kind="study",
    ),
    "minionsrl-latency": Entry(
        "figures.minionsrl.latency",
        f"{MINIONSRL}, Figure 8",
        {"smoke": "1", "small": "10", "paper": "200"},
        kind="study",
    ),
    "minionsrl-ceiling": Entry(
        "figures.minionsrl.ceiling",
        f"{MINIONSRL}, the gap that a scheduler could close",
        {"smoke": "3", "small": "900"},
        kind="figure",
    ),
    "minionsrl-tuning": Entry(
        "figures.minionsrl.tuning",
        f"{MINIONSRL}, the settings of its tuned learner",
        {"smoke": "2", "small": "10"},
        kind="figure",
    ),
    "minionsrl-learning": Entry(
        "figures.minionsrl.learning",
        f"{MINIONSRL}, ways to train the scheduler",
        {"smoke": "4", "small": "1,000"},
        kind="figure",
    ),
    "minionsrl-scheduler": Entry("figures.minionsrl.scheduler", f"{MINIONSRL}, training of the scheduler", {"": "20"}),
    "minionsrl-numbers": Entry("report.numbers", f"{MINIONSRL}, Figure 6 and Table 2, relative to Max", {"": "1"}),
    "minionsrl-finetuning": Entry("figures.minionsrl.finetuning", f"{MINIONSRL}, Figure 9", {"": "1"}),
    "gear-hopper": Entry(
        "figures.gear.hopper", f"{GEAR}, learning from trajectories", {"smoke": "1", "small": "15"}, kind="figure"
    ),
    "lab": Entry("lab.command", "return against an imposed lag, for any setting of an algorithm", {"": "1"}),
    "lab-lag": Entry(
        "figures.lab.lag",
        "return against the lag of the data, for seven corrections",
        {"smoke": "1", "small": "70"},
        kind="figure",
    ),
    "lab-newest": Entry(
        "figures.lab.newest",
        "the newest policy's return against the lag of the data",
        {"smoke": "1", "small": "60"},
        kind="figure",
    ),
    "lab-corrections": Entry(
        "figures.lab.corrections",
        "every correction at every imposed lag, in the lab",
        {"smoke": "1", "small": "700"},
        kind="figure",
    ),
    "lab-language": Entry(
        "figures.lab.language",
        "every correction at every imposed lag on a language task, in the lab",
        {"smoke": "1", "small": "900"},
        kind="figure",
    ),
    "lab-gradients": Entry(
        "figures.lab.gradients",
        "corrections and weights of gradients at every imposed age, in the lab",
        {"smoke": "1", "small": "120"},
        kind="figure",
    ),
    "lab-cell": Entry("figures.lab.cell", "", {"": "1"}),
    "what-if": Entry("cluster.what_if", "a run that another stack logged, under other settings", {"": "2"}),
    "cluster-faults": Entry("cluster.faults", "runs on a Ray cluster whose processes are killed", {"": "30"}),
    "simtest": Entry("simtest.command", "", {"": "1"}),
    "benchmarks": Entry("benchmarks.command", "", {"": "5"}),
    "reproduce": Entry(
        "reproduce", "all figures, one after the other", {"smoke": "5", "small": "480", "paper": "20,000"}
    ),
    "report": Entry("report.command", "all claims and figures on one page", {"": "1"}),
    "pages": Entry("report.pages", "the tables of results in the documentation", {"": "1"}),
    "vectors": Entry("vectors.command", "the reference vectors of the pure functions", {"": "2"}),
    "list": Entry("listing"),
}
