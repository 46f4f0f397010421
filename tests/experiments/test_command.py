"""`python -m experiments NAME`: the experiment is given its arguments, and its exit status is the command's."""

from types import SimpleNamespace

import pytest

from experiments import catalogue, command
from experiments.toolkit.options import Defaults, Parser


@pytest.fixture
def ran(monkeypatch):
    """What `--number` the only experiment was run with; its status is that number."""
    numbers = []

    def main(arguments):
        numbers.append(arguments.number)
        return numbers[-1]

    experiment = SimpleNamespace(
        DESCRIPTION="does nothing",
        add_arguments=lambda parser: parser.add_argument("--number", type=int, default=0, help="the status"),
        main=main,
    )
    monkeypatch.setattr(command, "EXPERIMENTS", {"it": SimpleNamespace(load=lambda: experiment)})
    return numbers


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "error: the following arguments are required: NAME"),
        (["other"], "error: NAME: invalid choice: 'other' (choose from "),
        (["itt"], "error: NAME: invalid choice: 'itt'; did you mean 'it'? (see python -m experiments --help)"),
        (["it", "--number", "x"], "error: --number: invalid int value: 'x'"),
        (["it", "--nothing"], "error: unrecognized arguments: --nothing"),
    ],
)
def test_what_makes_no_sense(ran, argv, said, capsys):
    """One line, status 2, and nothing is run."""
    assert command.main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith(said)
    assert (out, err.count("\n"), ran) == ("", 1, [])


def test_help(ran, capsys):
    """Of the command, which names its experiments; of an experiment, with the defaults of its options."""
    for argv, texts in (
        (["--help"], ["NAME it", "`list` describes"]),
        (["it", "--help"], ["does nothing", "status (default: 0)"]),
    ):
        with pytest.raises(SystemExit, match="0"):
            command.main(argv)
        out = " ".join(capsys.readouterr().out.split())
        assert all(text in out for text in texts)
    assert ran == []


def test_defaults_are_said_once():
    """None, False and an empty list are left out."""
    parser = Parser(prog="it", formatter_class=Defaults)
    parser.add_argument("--seeds", help="number of seeds (default: the preset's)")
    parser.add_argument("--size", default="small", help="by default the preset's")
    parser.add_argument("--resume", action="store_true", help="reuse runs")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    text = " ".join(parser.format_help().split())
    assert "number of seeds (default: the preset's) --size" in text
    assert "by default the preset's --resume reuse runs --first" in text
    assert "first seed (default: 0)" in text


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_every_experiment_has_what_a_command_needs(name, capsys):
    """A description, help, and a main function; the times are of presets that it has."""
    module = catalogue.EXPERIMENTS[name].load()
    assert "\n" not in module.DESCRIPTION
    assert callable(module.main)
    with pytest.raises(SystemExit, match="0"):
        command.main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"usage: python -m experiments {name} ")
    for preset in catalogue.EXPERIMENTS[name].minutes:
        assert not preset or preset in text
