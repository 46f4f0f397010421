"""The paper's motivation: reward and cost of PPO on reserved machines and on asynchronous serverless functions."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.study import curves, study, tidy, variants
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks.presets import paper
from experiments.toolkit import plots
from stellaris.systems import Evaluation

DESCRIPTION = "reward and cost of PPO, serverful against asynchronous serverless, with the demo's own settings"

#: The environment steps of the demo: 20 rounds of 16 x 256 steps.
_STEPS = 20 * 16 * 256
SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1),
    "small": Size(("Hopper-v4",), _STEPS, 10),
    "paper": Size(("Hopper-v4", "Humanoid-v4", "Walker2d-v4"), _STEPS, 10),
}
#: Evaluations have ten episodes, because the demo reports evaluations by ten workers.
EVALUATION = Evaluation(every=1, episodes=10)


def _variants(environment: str) -> Sequence[Variant]:
    """Returns the demo's Stellaris and its baseline, with evaluations."""
    rows = variants.of_preset(paper(environment), ("synchronous", "stellaris"))
    return [row._replace(evaluation=EVALUATION) for row in rows]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        curves.draw(groups, out / f"motivation_{environment}", title=environment, over=plots.TIME_AND_COST)
        for name, of in groups.items():
            final, seconds = curves.last(of, "episode_return"), curves.last(of, "seconds")
            evaluated = str(curves.last(of, "evaluation_return"))
            bills = [f"{curves.last(of, column).middle:.4f}" for column in ("cost_demo", "cost_pay_per_use")]
            interval = curves.interval(final)
            rows.append((environment, name, str(final), evaluated, f"{seconds.middle:,.1f}", *bills, interval))
    headings = ("environment", "system", "return", "evaluation", "virtual s", "USD demo", "USD use", "interval")
    tidy.show("the authors' demo's settings", headings, rows, out, console)


STUDY = Study("stellaris-motivation", SIZES, _variants, _report, ("motivation",))
add_arguments, main = STUDY.add_arguments, STUDY.main
