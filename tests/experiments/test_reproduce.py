"""`python -m experiments reproduce`: every figure's study, whatever becomes of one of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import catalogue, command, reproduce


def test_what_is_reproduced() -> None:
    """All studies of the papers' figures."""
    figures = reproduce.figures()
    assert {"stellaris-training", "stellaris-why", "stellaris-motivation"} <= {*figures}
    assert not {"tuning", "quickstart", "reproduce"} & {*figures}


def test_every_figure_takes_the_options_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ones' own command lines, none of which runs."""
    seen: dict[str, Any] = {}

    def entry(name: str, real: Any) -> Any:
        def main(arguments: Any) -> int:
            seen[name] = arguments
            return 0

        module = SimpleNamespace(add_arguments=real.load().add_arguments, main=main)
        return SimpleNamespace(kind=real.kind, load=lambda: module)

    figures = {name: entry(name, real) for name, real in catalogue.EXPERIMENTS.items() if real.kind != "command"}
    monkeypatch.setattr(catalogue, "EXPERIMENTS", figures)
    for preset in ("smoke", "small", "paper"):
        seen.clear()
        words = SimpleNamespace(preset=preset, jobs=1, out=Path("there"))
        assert reproduce.main(words) == 0
        assert {*seen} == {*figures}
    assert (seen["gear-hopper"].preset, seen["gear-hopper"].out) == ("small", Path("there/gear-hopper"))
    assert seen["stellaris-why"].out == Path("there")


@pytest.mark.parametrize(
    ("ends", "status", "ran"), [((0, 0), 0, 2), ((1, 0), 1, 2), ((0, 1), 1, 2), ((130, 0), 130, 1)]
)
def test_one_that_fails(ends: tuple[int, int], status: int, ran: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are run all the same, but not after an interruption."""
    seen: list[Any] = []

    def entry(end: int) -> Any:
        def main(arguments: Any) -> int:
            seen.append(arguments)
            return end

        real = catalogue.EXPERIMENTS["stellaris-why"].load()
        module = SimpleNamespace(add_arguments=real.add_arguments, main=main)
        return SimpleNamespace(kind="study", load=lambda: module)

    studies = {"one": entry(ends[0]), "other": entry(ends[1])}
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {**studies, "reproduce": catalogue.EXPERIMENTS["reproduce"]})
    monkeypatch.setattr(command, "EXPERIMENTS", {"reproduce": catalogue.EXPERIMENTS["reproduce"]})
    assert command.main(["reproduce", "--preset", "smoke", "--jobs", "1"]) == status
    assert [(one.preset, one.jobs, one.resume) for one in seen] == [("smoke", 1, True)] * ran
