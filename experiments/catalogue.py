"""The experiments by name: what each shows, of which paper, and how long it takes."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

STELLARIS = "Stellaris (SC 2024)"


@dataclass(frozen=True)
class Entry:
    """An experiment; its module has `DESCRIPTION`, `add_arguments(parser)` and `main(arguments) -> exit status`."""

    module: str  #: within `experiments`; imported when it is asked for.
    of: str = ""  #: the paper, and what of it.
    minutes: Mapping[str, str] = field(default_factory=dict)  #: by preset, on two cores; "" where there is none.

    def load(self) -> ModuleType:
        """Its module."""
        return importlib.import_module(f"experiments.{self.module}")


EXPERIMENTS: Mapping[str, Entry] = {
    "quickstart": Entry("quickstart", f"{STELLARIS}, the demo", {"tuned": "2", "paper": "3"}),
    "systems": Entry("systems", f"{STELLARIS}, the architectures of the slides", {"": "2"}),
    "tuning": Entry("tuning", "", {"smoke": "5", "small": "60", "paper": "400"}),
    "stellaris-training": Entry(
        "stellaris_training", f"{STELLARIS}, training performance", {"smoke": "1", "small": "90", "paper": "3,000"}
    ),
    "simtest": Entry("simtest.command", "", {"": "1"}),
    "list": Entry("listing"),
}
