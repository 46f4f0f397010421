"""The experiments by name: what each shows, of which paper, and how long it takes."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

STELLARIS = "Stellaris (SC 2024)"
MINIONSRL = "MinionsRL (AAAI 2024)"
GEAR = "GEAR (ICML 2023)"


@dataclass(frozen=True)
class Entry:
    """An experiment; its module has `DESCRIPTION`, `add_arguments(parser)` and `main(arguments) -> exit status`."""

    module: str  #: within `experiments`; imported when it is asked for.
    of: str = ""  #: the paper, and what of it.
    minutes: Mapping[str, str] = field(default_factory=dict)  #: by preset, on two cores; "" where there is none.

    def load(self) -> ModuleType:
        """Its module.

        Raises:
          ModuleNotFoundError: without a package that it needs; names the extra that brings it.
        """
        from stellaris._core.extras import (
            needs,  # here, because it takes seconds, and not all who ask for names load one
        )

        with needs(f"experiments.{self.module}"):
            return importlib.import_module(f"experiments.{self.module}")


#: Of five variants by five seeds; in proportion for more.
_VARIANTS = {"smoke": "1", "small": "20", "paper": "2,000"}

#: Of ten variants and more.
_MANY_VARIANTS = {"smoke": "1", "small": "40", "paper": "4,000"}

EXPERIMENTS: Mapping[str, Entry] = {
    "quickstart": Entry("quickstart", f"{STELLARIS}, the demo", {"tuned": "2", "paper": "3"}),
    "cluster": Entry("cluster.demo", "the quickstart on a Ray cluster, in real time", {"": "3"}),
    "cluster-vs-simulation": Entry("cluster.vs_simulation", "whether the simulator predicts a Ray cluster", {"": "8"}),
    "systems": Entry("systems", f"{STELLARIS}, the architectures of the slides", {"": "2"}),
    "tuning": Entry("tuning", "", {"smoke": "5", "small": "60", "paper": "400"}),
    "stellaris-calibration": Entry(
        "figures.stellaris.calibration", "how long bodies take here", {"smoke": "1", "small": "5", "paper": "20"}
    ),
    "stellaris-motivation": Entry(
        "figures.stellaris.motivation",
        f"{STELLARIS}, reward and cost of PPO on Hopper",
        {"smoke": "1", "small": "5", "paper": "30"},
    ),
    "stellaris-challenges": Entry(
        "figures.stellaris.challenges", f"{STELLARIS}, staleness, KL, learners in use", _VARIANTS
    ),
    "stellaris-training": Entry(
        "figures.stellaris.training",
        f"{STELLARIS}, training performance",
        {"smoke": "1", "small": "120", "paper": "3,000"},
    ),
    "stellaris-cost": Entry(
        "figures.stellaris.cost",
        f"{STELLARIS}, training cost (the runs of stellaris-training)",
        {"smoke": "1", "small": "120", "paper": "3,000"},
    ),
    "stellaris-ablation": Entry("figures.stellaris.ablation", f"{STELLARIS}, ablation", _VARIANTS),
    "stellaris-aggregators": Entry(
        "figures.stellaris.aggregators", f"{STELLARIS}, aggregators against each other", _MANY_VARIANTS
    ),
    "stellaris-sensitivity": Entry(
        "figures.stellaris.sensitivity", f"{STELLARIS}, sensitivity to d, rho and v", _MANY_VARIANTS
    ),
    "stellaris-latency": Entry("figures.stellaris.latency", f"{STELLARIS}, latency breakdown", _VARIANTS),
    "stellaris-sweeps": Entry(
        "figures.stellaris.sweeps", f"{STELLARIS}, when the headline ratios hold", _MANY_VARIANTS
    ),
    "stellaris-hpc": Entry("figures.stellaris.hpc", f"{STELLARIS}, PAR-RL on 960 cores and 16 GPUs", _VARIANTS),
    "stellaris-demo-sweeps": Entry(
        "figures.stellaris.demo_sweeps", f"{STELLARIS}, the same with the demo's settings", _MANY_VARIANTS
    ),
    "stellaris-hpc-sweeps": Entry(
        "figures.stellaris.hpc_sweeps", f"{STELLARIS}, the same against PAR-RL", _MANY_VARIANTS
    ),
    "stellaris-scaling": Entry("figures.stellaris.scaling", f"{STELLARIS}, 1 to 1,000 functions", _MANY_VARIANTS),
    "stellaris-frameworks": Entry("figures.stellaris.frameworks", f"{STELLARIS}, table of related systems"),
    "stellaris-why": Entry("figures.stellaris.why", f"{STELLARIS}, what 2.2 times the reward is made of", _VARIANTS),
    "minionsrl-motivation": Entry(
        "figures.minionsrl.motivation", f"{MINIONSRL}, Figure 2", {"smoke": "1", "small": "5", "paper": "5"}
    ),
    "minionsrl-training": Entry(
        "figures.minionsrl.training",
        f"{MINIONSRL}, Figures 4 to 6 and Table 2",
        {"smoke": "1", "small": "90", "paper": "10,000"},
    ),
    "minionsrl-scaling": Entry(
        "figures.minionsrl.scaling", f"{MINIONSRL}, Figure 7", {"smoke": "1", "small": "10", "paper": "200"}
    ),
    "minionsrl-latency": Entry(
        "figures.minionsrl.latency", f"{MINIONSRL}, Figure 8", {"smoke": "1", "small": "5", "paper": "200"}
    ),
    "minionsrl-finetuning": Entry(
        "figures.minionsrl.finetuning", f"{MINIONSRL}, Figure 9", {"smoke": "1", "small": "60", "paper": "10,000"}
    ),
    "minionsrl-scheduler": Entry("figures.minionsrl.scheduler", f"{MINIONSRL}, training of the scheduler", {"": "20"}),
    "gear-hopper": Entry("figures.gear.hopper", f"{GEAR}, learning from trajectories", {"smoke": "1", "small": "15"}),
    "cluster-faults": Entry("cluster.faults", "runs on a Ray cluster whose processes are killed", {"": "30"}),
    "simtest": Entry("simtest.command", "", {"": "1"}),
    "benchmarks": Entry("benchmarks.command", "", {"": "5"}),
    "reproduce": Entry(
        "reproduce", "all figures, one after the other", {"smoke": "5", "small": "480", "paper": "20,000"}
    ),
    "report": Entry("report.command", "all claims and figures on one page", {"": "1"}),
    "list": Entry("listing"),
}
