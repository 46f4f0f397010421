"""`python -m experiments list`."""

from experiments import catalogue, command


def test_all_are_listed(capsys):
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in catalogue.EXPERIMENTS:
        assert f"\u2502 {name} " in printed
    assert "small 120" in printed


def test_what_cannot_be_imported(monkeypatch, capsys):
    monkeypatch.setitem(catalogue.EXPERIMENTS, "odd", catalogue.Entry("benchmarks.nothing"))
    assert command.main(["list"]) == 0
    assert "(No module named" in capsys.readouterr().out
