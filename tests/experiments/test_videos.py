"""`play --video`: every frame of every episode, in order, and an early error if there can be no frames."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import gymnasium
import jax
import numpy as np
import pytest

from experiments import command, videos
from experiments.toolkit.shell import UsageError
from stellaris.acting import ActorCritic, PolicyVersion, envs, save_policy


class Counting(gymnasium.Env):
    """Episodes of four steps after seed 0, five after seed 1, ...; the shade of a frame is the number of the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium's own
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.length = 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        self.length = self.length if seed is None else 4 + seed
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == self.length, False, {}

    def render(self):
        return np.full((32, 48, 3), 20 * self.count, np.uint8) if self.render_mode else None


class Blind(Counting):
    """An environment that does not render, whatever it is asked for."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    for name, kind in (("Counting-v0", Counting), ("Blind-v0", Blind)):
        gymnasium.register(name, entry_point=kind)


@pytest.fixture
def filmed(monkeypatch):
    """The frames of every file and its rate, in place of ffmpeg, which is not installed everywhere."""
    written = {}

    @contextmanager
    def writer(path, rate):
        frames = []
        yield frames.append
        path.write_bytes(b"mp4")
        written[path.name.partition(".mp4")[0].split(".")[-1]] = (rate, [int(frame[0, 0, 0]) // 20 for frame in frames])

    monkeypatch.setattr(videos, "_writer", writer)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", SimpleNamespace(get_ffmpeg_exe=lambda: "ffmpeg"))
    return written


def saved(path, environment="Counting-v0"):
    """A policy's file, as `train` writes it."""
    env = envs.make("Counting-v0", slots=1)
    policy = ActorCritic(hidden=(4,))(env.spec)
    env.close()
    version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_policy(path, version, {"environment": repr(environment), "policy": "ActorCritic(hidden=(4,))"})


def play(*words):
    return command.main(["play", *map(str, words)])


@pytest.mark.slow
def test_a_video_has_every_frame_of_every_episode(filmed, tmp_path, capsys):
    """From the reset to the end, the seeds counting up, and nothing of what follows the end; the table is of them."""
    saved(tmp_path / "one.safetensors")
    assert play(tmp_path, "--episodes", "2", "--seed", "1", "--video", tmp_path / "out.mp4") == 0
    assert filmed == {"out": (10.0, [*range(6), *range(7)])}
    assert (tmp_path / "out.mp4").exists()
    shown = capsys.readouterr().out
    assert [cell.strip() for cell in shown.splitlines()[3].split("│")[2:-1]] == [
        *("'Counting-v0'", "5.5", "5.0", "6.0", "5.5")
    ]
    assert f"video: {tmp_path / 'out.mp4'}" in shown


def test_several_policies_have_a_video_each(filmed, tmp_path):
    saved(tmp_path / "in" / "a" / "policy.safetensors")
    saved(tmp_path / "in" / "b" / "policy.safetensors")
    assert play(tmp_path / "in", "--episodes", "1", "--video", tmp_path / "out.mp4") == 0
    assert filmed == {name: (10.0, [*range(5)]) for name in ("out_a_policy", "out_b_policy")}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("Blind-v0", "--video: Blind-v0 does not render: its frame is object"),
        ("Pong-v5", "--video: Pong-v5 cannot be recorded: "),
        (envs.configure("Pong-v5"), "does not render: Gymnasium makes environments by name only"),
    ],
)
def test_an_environment_that_does_not_render(filmed, environment, message):
    with pytest.raises(UsageError) as error:
        videos.Rendered.checked(environment)
    assert message in str(error.value)


def test_nothing_is_played_if_one_environment_does_not_render(filmed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(videos, "evaluate", lambda *_, **__: pytest.fail("played"))
    saved(tmp_path / "a.safetensors")
    saved(tmp_path / "b.safetensors", "Blind-v0")
    assert play(tmp_path, "--video", tmp_path / "out.mp4") == 2
    assert "--video: Blind-v0 does not render" in capsys.readouterr().err
    assert filmed == {}


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    saved(tmp_path / "a.safetensors")
    assert play(tmp_path, "--video", tmp_path / "out.mp4") == 2
    assert "it needs imageio_ffmpeg: pip install 'stellaris-rl[video]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("video", "message"),
    [("out.avi", "out.avi does not end in .mp4"), ("nowhere/out.mp4", "nowhere is not a folder: make it first")],
)
def test_a_path_that_is_no_video(tmp_path, video, message, capsys):
    assert play(tmp_path, "--video", tmp_path / video) == 2
    assert message in capsys.readouterr().err


def test_ffmpeg_writes_as_many_frames(tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    saved(tmp_path / "one.safetensors")
    assert play(tmp_path, "--episodes", "2", "--video", tmp_path / "out.mp4") == 0
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "out.mp4"))
    assert (frames, seconds) == (5 + 6, pytest.approx(1.1, abs=0.11))
