"""The JSON for marl-eval: its documented structure, and equally many steps in every run."""

import json
from pathlib import Path

import pytest

from experiments import command
from experiments.report.marl_eval import exported

COMMITTED = Path(__file__).parents[3] / "experiments" / "results" / "small" / "stellaris-training"


def curve(points, *, environment="Hopper-v4", system="stellaris", setting="", seed=0):
    """The rows of a run."""
    names = {"environment": environment, "system": system, "setting": setting, "seed": str(seed)}
    return [names | {"steps": str(steps), "episode_return": str(value)} for steps, value in points]


def test_by_hand():
    """Two seeds that report at other steps, another algorithm, and a return that is not known yet."""
    rows = curve([(100, "nan"), (200, 1.0), (300, 2.0), (400, 3.0), (500, 9.0)])
    rows += curve([(150, 5.0), (250, 6.0), (450, 7.0)], seed=1)
    rows += curve([(100, 10.0), (300, 20.0), (500, 30.0), (700, 40.0)], setting="learners=2")
    assert exported(rows) == {
        "gymnasium": {
            "hopper-v4": {
                "stellaris": {
                    "seed_0": {
                        "step_0": {"step_count": 200, "return": [1.0]},
                        "step_1": {"step_count": 325, "return": [2.0]},
                        "step_2": {"step_count": 450, "return": [3.0]},
                        "absolute_metrics": {"return": [9.0]},
                    },
                    "seed_1": {
                        "step_0": {"step_count": 200, "return": [5.0]},
                        "step_1": {"step_count": 325, "return": [6.0]},
                        "step_2": {"step_count": 450, "return": [7.0]},
                        "absolute_metrics": {"return": [7.0]},
                    },
                },
                "stellaris learners=2": {
                    "seed_0": {
                        "step_0": {"step_count": 200, "return": [10.0]},
                        "step_1": {"step_count": 325, "return": [20.0]},
                        "step_2": {"step_count": 450, "return": [20.0]},
                        "absolute_metrics": {"return": [40.0]},
                    },
                },
            }
        }
    }


def test_all_tasks_have_equally_many_steps():
    """As many as the run with the fewest points; a variant that names its system keeps its name, but for commas."""
    rows = curve([(1, 1.0), (2, 2.0), (3, 3.0)], setting="stellaris, slow")
    rows += curve([(10, 1.0), (20, 2.0)], environment="Walker2d-v4", setting="stellaris, slow")
    tasks = exported(rows)["gymnasium"]
    assert {task: [*algorithms] for task, algorithms in tasks.items()} == {
        "hopper-v4": ["stellaris; slow"],
        "walker2d-v4": ["stellaris; slow"],
    }
    runs = [run for algorithms in tasks.values() for runs in algorithms.values() for run in runs.values()]
    assert [[*run] for run in runs] == [["step_0", "step_1", "absolute_metrics"]] * 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no runs"),
        (curve([(1, "nan")]), "hopper-v4, stellaris, seed_0 has no return: train it for longer"),
        (
            curve([(1, "nan"), (2000, 1.0)]) + curve([(1, 0.0), (999, 1.0)], seed=1),
            "hopper-v4: one run has its first return after 2,000 steps, and another ended at 999",
        ),
    ],
)
def test_runs_that_cannot_be_compared(rows, message):
    with pytest.raises(ValueError, match=message):
        exported(rows)


def test_a_committed_study(tmp_path, capsys):
    """The file has what the README of marl-eval asks for, in every run: the last key is the absolute metrics."""
    (tmp_path / "curves.csv").write_bytes((COMMITTED / "curves.csv").read_bytes())
    assert command.main(["report", "--marl-eval", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'marl-eval.json'}\n"
    (tasks,) = json.loads((tmp_path / "marl-eval.json").read_text()).values()
    shapes = set()
    for task, algorithms in tasks.items():
        assert task == task.lower()
        assert not any("," in algorithm for algorithm in algorithms)
        for runs in algorithms.values():
            for run in runs.values():
                *steps, (last, absolute) = run.items()
                assert (last, [*absolute]) == ("absolute_metrics", ["return"])
                assert all([*metrics] == ["step_count", "return"] for _, metrics in steps)
                counts = [metrics["step_count"] for _, metrics in steps]
                assert counts == sorted(counts)
                assert all(isinstance(count, int) for count in counts)
                assert all(len(metrics["return"]) == 1 for _, metrics in steps)
                shapes.add((len(runs), tuple(name for name, _ in steps)))
    assert len(shapes) == 1


@pytest.mark.parametrize(("text", "message"), [(None, "holds no curves.csv"), ("seed\n0\n", "'environment' missing")])
def test_a_folder_without_curves(tmp_path, text, message, capsys):
    if text is not None:
        (tmp_path / "curves.csv").write_text(text)
    assert command.main(["report", "--marl-eval", str(tmp_path)]) == 2
    assert message.replace("'", "") in capsys.readouterr().err.replace("'", "")
    assert not (tmp_path / "marl-eval.json").exists()
