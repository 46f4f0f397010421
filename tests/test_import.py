"""`import stellaris` is light, and a package that is missing is named with the extra that brings it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stellaris
from stellaris._core.extras import EXTRAS

HEAVY = (
    "chex",
    "flax",
    "envpool",
    "gymnasium",
    "mujoco",
    "pandas",
    "matplotlib",
    "rich",
    "h5py",
    "safetensors",
    "torch",
)


def test_pure_functions_need_no_platform() -> None:
    """`import stellaris` imports no platform, system or environment; each name of theirs is there when asked for.

    Nor does asking import packages of environments, networks and files before they are used.
    """
    code = f"""
import sys, jax, optax
core = set(sys.modules)  # some versions of optax import chex
import stellaris
print([name for name in ("runtime", "systems", "acting") if "stellaris." + name in sys.modules])
print([name for name in dir(stellaris) if not hasattr(stellaris, name)])
print(stellaris.train is stellaris.systems.train, stellaris.Trace.__name__)
import stellaris.replay
print([name for name in {HEAVY} if name in sys.modules.keys() - core])
try:
    stellaris.no_such_name
except AttributeError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n[]\nTrue Trace\n[]\nNo stellaris attribute no_such_name\n"


def test_the_version_is_the_same_everywhere() -> None:
    """In the package, in the project's file and in the citation."""
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert stellaris.__version__ == project
    assert f"\nversion: {project}\n" in (root / "CITATION.cff").read_text()
    assert f"version = {{{project}}}," in (root / "docs" / "cite.md").read_text()


def test_ray_is_imported_when_its_platform_is_asked_for() -> None:
    """Not by anything else; without Ray the error names the extra, and all else works."""
    code = """
import sys, stellaris, stellaris.runtime, stellaris.systems
print("ray" in sys.modules)
sys.modules["ray"] = None
try:
    stellaris.runtime.RayPlatform
except ImportError as error:
    print(error)
print(stellaris.runtime.SimulatedPlatform.__name__)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\nRayPlatform needs ray: pip install 'stellaris-rl[ray]'\nSimulatedPlatform\n"


#: Blocks packages as if they were not installed; then the lines of a test follow.
WITHOUT = """
import sys
for name in {packages}:
    sys.modules[name] = None
def said(do):
    try:
        do()
    except ImportError as error:
        print(error)
"""


def without(*packages: str, code: str) -> list[str]:
    """The lines that a program prints where these packages are not installed."""
    program = WITHOUT.format(packages=packages) + code
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_the_table_of_extras_is_that_of_the_project() -> None:
    """Each package is in the extra that is named, and each of an extra, but for developers' tools, is in the table."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    imported = {"imageio-ffmpeg": "imageio_ffmpeg", "pygame-ce": "pygame"}
    listed = {
        imported.get(package := requirement.partition(">")[0], package): extra
        for extra in ("dask", "experiments", "lab", "ray", "replay", "tensorboard", "wandb", "video", "torch")
        for requirement in project["optional-dependencies"][extra]
    }
    assert listed == EXTRAS


@pytest.mark.slow
def test_without_envpool_names_are_gymnasiums() -> None:
    """A system trains; a name that only EnvPool knows says that it is missing, and how to install it."""
    code = """
from stellaris.acting import ActorCritic, configure, envs
from stellaris.systems import Budget, Evaluation, Synchronous, Workload, train
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant

functions = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.1))}
result = train(
    Synchronous(),
    Workload("CartPole-v1", ActorCritic(hidden=(8,)), actors=2, fragment=16),
    platform=SimulatedPlatform(functions),
    budget=Budget(steps=64),
    evaluation=Evaluation(every=1, episodes=1),
)
print(type(envs.make("CartPole-v1", slots=1)).__name__, result.history[-1]["steps"])
try:
    envs.make("Pong-v5", slots=1)
except ValueError as error:
    print(error)
said(lambda: envs.make(configure("Pong-v5", stack_num=3), slots=1))
"""
    trained, unknown, pool = without("envpool", code=code)
    assert trained == "GymnasiumEnv 64"
    assert re.fullmatch(
        r"unknown environment 'Pong-v5': .*; EnvPool, which has others, is not installed \(envpool: pip install "
        r"'stellaris-rl\[experiments\]'\)",
        unknown,
    )
    assert pool == "EnvPool's Pong-v5 needs envpool: pip install 'stellaris-rl[experiments]'"


@pytest.mark.slow
def test_without_envpool_the_papers_environments_are_gymnasiums() -> None:
    """They are the same tasks; without their physics, or without what that imports, the error names the package."""
    code = """
import warnings
import numpy as np
from stellaris.acting import envs

warnings.simplefilter("ignore")  # Gymnasium recommends newer versions of the environments
for name in ("Hopper-v4", "Walker2d-v4", "Humanoid-v4"):
    env = envs.make(name, slots=2, seed=3)
    observation = env.reset(np.arange(2))
    step = env.step(np.arange(2), np.zeros((2, env.spec.actions), np.float32))
    print(type(env).__name__, env.spec.name, env.spec.actions, observation.shape, bool((step.reward != 0).all()))
"""
    assert without("envpool", code=code) == [
        "GymnasiumEnv Hopper-v4 3 (2, 11) True",
        "GymnasiumEnv Walker2d-v4 6 (2, 17) True",
        "GymnasiumEnv Humanoid-v4 17 (2, 376) True",
    ]
    code = """
import warnings
from stellaris.acting import envs

warnings.simplefilter("ignore")
said(lambda: envs.make("Hopper-v4", slots=1))
"""
    for package in ("mujoco", "imageio"):
        assert without("envpool", package, code=code) == [
            f"environment 'Hopper-v4' needs {package}: pip install 'stellaris-rl[experiments]'"
        ]


def test_every_optional_package_is_tested_as_missing() -> None:
    """What the library imports from the extras is what the tests of this file hide."""
    imported = set()
    for path in Path(stellaris.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names} & EXTRAS.keys()
    assert imported == {"envpool", *HIDDEN}


#: What the next test hides.
HIDDEN = (
    *("cloudpickle", "distributed", "flax", "gymnasium", "gymnax", "h5py", "pandas", "pyarrow", "ray", "safetensors"),
    *("tensorboardX", "torch", "wandb", "xarray"),
)


@pytest.mark.slow
def test_what_is_missing_is_named_with_its_extra(tmp_path: Path) -> None:
    """By whoever needs it; nothing is written."""
    code = f"""
import importlib, numpy as np, os
from stellaris import PPO, ActorCritic, EnvSpec, Trace, Workload, lab, ppo_loss, replay, runtime, systems, torch
from stellaris.acting import Pixels, envs
from stellaris.replay import datasets, files
class Own:
    reset = step = action_space = observation_space = None
spec, images = (EnvSpec("Own-v0", np.zeros(shape), 2, True) for shape in (2, (8, 8)))
said(lambda: ActorCritic()(spec))
said(lambda: Pixels()(images))
said(lambda: envs.make("CartPole-v1", slots=1))
said(lambda: envs.make(Own, slots=1))
said(lambda: lab.Gymnax("Acrobot-v1"))
said(lambda: lab.sweep(Workload(lab.CartPole()), PPO(), lab.imposed(1, actors=1, data=lab.Constant(0))))
table = replay.init(dict(x=np.zeros(1, np.float32)), capacity=2, length=2)
said(lambda: files.save(table, "{tmp_path}/table"))
said(lambda: files.load("{tmp_path}/table"))
said(lambda: runtime.RayPlatform)
said(lambda: runtime.DaskPlatform)
said(lambda: importlib.import_module("stellaris.runtime.engine.messages"))
said(lambda: torch.differentiable(ppo_loss))
said(lambda: Trace().to_dataframe())
said(lambda: Trace().save("{tmp_path}/x.parquet"))
said(lambda: Trace().save("{tmp_path}/x.csv"))
said(lambda: Trace.load("{tmp_path}/x.parquet"))
said(lambda: Trace.load("{tmp_path}/x.csv"))
said(lambda: datasets.read("{tmp_path}/x.hdf5"))
said(lambda: systems.TensorBoard("{tmp_path}/a"))
said(lambda: systems.WandB("{tmp_path}/b"))
print(os.listdir("{tmp_path}"))
"""
    experiments = "pip install 'stellaris-rl[experiments]'"
    assert without(*HIDDEN, code=code) == [
        f"a network of ActorCritic or Pixels needs flax: {experiments}",
        f"a network of ActorCritic or Pixels needs flax: {experiments}",
        f"environment 'CartPole-v1' needs gymnasium: {experiments}",
        f"environment Own needs gymnasium: {experiments}",
        "environment 'Acrobot-v1' needs gymnax: pip install 'stellaris-rl[lab]'",
        "lab.sweep needs xarray: pip install 'stellaris-rl[lab]'",
        "a saved table needs safetensors: pip install 'stellaris-rl[replay]'",
        "a saved table needs safetensors: pip install 'stellaris-rl[replay]'",
        "RayPlatform needs ray: pip install 'stellaris-rl[ray]'",
        "DaskPlatform needs distributed: pip install 'stellaris-rl[dask]'",
        "MessageBodies needs cloudpickle: pip install 'stellaris-rl[dask]'",
        "stellaris.torch needs torch: pip install 'stellaris-rl[torch]'",
        f"a trace's table needs pandas: {experiments}",
        f"{tmp_path}/x.parquet needs pyarrow: {experiments}",
        f"a trace's table needs pandas: {experiments}",
        f"{tmp_path}/x.parquet needs pandas: {experiments}",
        f"{tmp_path}/x.csv needs pandas: {experiments}",
        "reading a dataset needs h5py: pip install 'stellaris-rl[replay]'",
        "a log for TensorBoard needs tensorboardX: pip install 'stellaris-rl[tensorboard]'",
        "a log for Weights & Biases needs wandb: pip install 'stellaris-rl[wandb]'",
        "[]",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_the_command_line_says_what_is_missing(package: str) -> None:
    """In one line on stderr, and the status of a usage that is impossible."""
    code = """
sys.stderr = sys.stdout
from experiments import command
print(command.main(["stellaris-motivation"]))
"""
    assert without(package, code=code) == [
        f"error: experiments.figures.stellaris.motivation needs {package}: pip install 'stellaris-rl[experiments]'",
        "2",
    ]
