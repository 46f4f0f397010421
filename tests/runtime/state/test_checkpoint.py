"""A folder of checkpoints: a platform and its user's state continue where they were saved."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from stellaris.runtime import (
    CheckpointError,
    Checkpoints,
    Faults,
    Function,
    FunctionError,
    FunctionSpec,
    Node,
    Outages,
    PriceSheet,
    Rate,
    Recording,
    Resources,
    Retry,
    SimulatedPlatform,
    StoreFaults,
    Transfer,
    Versioned,
    register_value,
)
from stellaris.runtime.delays import Exponential, Gamma
from stellaris.runtime.endings import RETRIABLE

SHEET = PriceSheet("demo", {"f": Rate(per_second=0.1, cold=True), "g": Rate(per_request=0.2)})


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("gs://bucket/run", r"folder='gs://bucket/run' is a URL: checkpoints are saved in a local folder"),
        (Path("gs://bucket/run"), r"folder='gs:/bucket/run' is a URL"),
        ("", r"folder='' is empty: name a folder"),
        ("{tmp}/file/below/it", r"folder='.*below/it': .*/file is a file"),
    ],
)
def test_invalid_folders(folder, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused when the argument is made, not at the first checkpoint, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=message):
        Checkpoints(folder.format(tmp=tmp_path) if isinstance(folder, str) else folder)
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "a" / "b").prepare()
    assert os.listdir(tmp_path / "a" / "b") == []
    with pytest.raises(CheckpointError, match=r"/proc/nowhere cannot be written to: "):
        Checkpoints("/proc/nowhere").prepare()


@pytest.mark.parametrize("name", ["every", "keep"])
def test_numbers_below_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 is below 1"):
        Checkpoints(tmp_path, **{name: 0})


def cold(**options: Any) -> SimulatedPlatform:
    """A platform with one function that starts cold."""
    return SimulatedPlatform({"f": FunctionSpec(Exponential(1.0), cold_start=Exponential(0.5))}, threads=1, **options)


def finish(of: SimulatedPlatform) -> list[Any]:
    """Everything that is still to complete, and when."""
    return [(d.number, of.now, d.cold, repr(d.result())) for d in iter(of.next_completion, None)]


def test_steps_go_up(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path / "run")
    with cold() as p:
        for step in (2, 3, 4):
            folder.save(step, p, None)
        for step in (4, 3, 0):
            with pytest.raises(ValueError, match=rf"step={step} is not larger than 4, the newest in '.*run'"):
                folder.save(step, p, None)
        with pytest.raises(ValueError, match="step=-1 is below 0"):
            folder.save(-1, p, None)
        folder.save(10, p, None)
    assert sorted(os.listdir(folder.folder)) == ["10", "4"]
    assert folder.newest() == 10


# A platform with everything: state that a part forgot to save would show.
EVERYTHING: dict[str, Any] = {
    "functions": {
        "f": FunctionSpec(
            Exponential(1.0),
            cold_start=Exponential(0.5),
            initialisation=Exponential(0.2),
            keep_alive=2.0,
            max_concurrency=4,
            timeout=3.0,
            queueing=Exponential(0.1),
            transfer=Transfer(Exponential(0.1), bandwidth=1e5),
            resources=Resources(memory=1.0, vcpus=1.0, gpu_slots=1),
            provisioned=1,
            retry=Retry(limit=99, first=0.1, jitter=0.5),
        ),
        "g": FunctionSpec(
            Gamma(0.5, 1.0), reuse="least_recent", reserved_concurrency=2, resources=Resources(memory=2.0)
        ),
    },
    "nodes": (Node("gpus", memory=8.0, vcpus=8.0, gpus=1, slots_per_gpu=4, gpu_sharing=0.5), Node("large", memory=9.0)),
    "placement": "spread",
    "max_concurrency": 5,
    "keep_versions": 3,
    "threads": 1,
}
GOES_WRONG: dict[str, Any] = {
    "faults": {
        "f": Faults(
            *(0.1, 0.1, 0.1, 0.1, 0.1),
            notice_after=Exponential(0.3),
            duplicate=0.2,
            straggle=0.2,
            lifetime=Exponential(4.0),
            at={3: ("lose", "duplicate")},
            lose_containers_at=(2.0, 7.0),
        )
    },
    "store_faults": StoreFaults(slow=Outages(every=Exponential(1.0)), refuse=Outages(at=((1.0, 1.5), (6.0, 6.2)))),
}


def learn(context: Any, version: Versioned, held: tuple[Versioned, ...], extra: Any) -> Any:
    """A body that keeps a state and draws random numbers."""
    context.state = [*(context.state or ()), context.number][-3:]
    drawn = float(jax.random.uniform(context.key))
    return [*context.state, version.version, *(other.version for other in held), float(np.sum(extra)), drawn]


def seen(context: Any, version: Versioned) -> int:
    """A body whose calls are batched."""
    return version.version + context.slot


FULL = {
    "learn": Function(learn, init=lambda slot, key: [slot], upload=lambda *arguments: 4000),
    "seen": Function(seen, batched=lambda contexts, of: [seen(c, *a) for c, a in zip(contexts, of, strict=True)]),
}


def submit(p: SimulatedPlatform) -> None:
    """Calls both functions, now and later, on versions that are newest, fixed, lagged or held, and on objects."""
    store = p.store
    for i in range(3):
        store.publish("p", np.full(500, float(i)))
    thing = store.put(np.arange(300))
    references = (store.latest("p"), store.at("p", 1), store.lagged("p", 1), store.latest("p"))
    for i in range(24):
        extra = thing if i % 3 else np.full(50, i)
        p.invoke("f", FULL["learn"], references[i % 4], store.held("p", slots=3), extra, at=0.3 * i, tag={"i": i})
        p.invoke("g", FULL["seen"], store.latest("p"), work=1.0 + i % 2)
    store.drop(thing)
    store.put(np.zeros(3))  # never dropped
    p.prewarm("f", 2, at=5.0)


def go_on(p: SimulatedPlatform, loop: dict[str, Any], *, until: float) -> None:
    """Handles completions: retries, publishes and sometimes cancels."""
    while (done := p.next_completion(until=until)) is not None:
        loop["seen"].append((done.number, done.key, p.now, done.status, repr(done.value)))
        if done.status in RETRIABLE and done.key not in loop["retries"]:
            loop["retries"][done.key] = p.retry(done)
        elif done.status == "completed" and done.number % 5 == 0:
            p.store.publish("p", np.full(500, p.now))
            for again in list(loop["retries"].values())[-1:]:
                p.cancel(again)


def everything(seed: int, replay: Recording | None) -> SimulatedPlatform:
    """A platform with everything; its faults are drawn, or repeat a recorded run."""
    faults = GOES_WRONG if replay is None else {"replay": replay}
    return SimulatedPlatform(**EVERYTHING, **faults, seed=seed)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("until", [0.0, 1.2, 3.7, 6.1, 9.0])
def test_a_platform_with_everything_goes_on(until: float, replayed: bool, tmp_path: Path) -> None:
    """Saved at any instant, with its user's state, it ends as the one that was never saved."""
    recording = None
    if replayed:
        with everything(7, None) as recorded:
            submit(recorded)
            go_on(recorded, {"seen": [], "retries": {}}, until=30.0)
            recording = Recording(recorded.trace)
    with everything(0, recording) as p:
        submit(p)
        whole: dict[str, Any] = {"seen": [], "retries": {}}
        go_on(p, whole, until=30.0)
        rows = list(p.trace.rows())
    assert len({row[1] for row in rows}) >= 15  # kinds of events
    with everything(0, recording) as p:
        submit(p)
        loop: dict[str, Any] = {"seen": [], "retries": {}}
        go_on(p, loop, until=until)
        Checkpoints(tmp_path).save(0, p, loop, externals=FULL)
        go_on(p, loop, until=30.0)  # the platform that was saved is unchanged
        assert loop["seen"] == whole["seen"]
    with everything(0, recording) as q:
        q.invoke("g", FULL["seen"], 0)  # its earlier state is replaced
        q.bill(SHEET)
        loop = Checkpoints(tmp_path).load(q, externals=FULL)
        go_on(q, loop, until=30.0)
        assert loop["seen"] == whole["seen"]
        assert list(q.trace.rows()) == rows
        assert q.bill(SHEET) == p.bill(SHEET)
    other = everything(0, None if replayed else Recording(p.trace))
    with other, pytest.raises(CheckpointError, match=r"faults\S*: the platform has|replay: the platform has"):
        Checkpoints(tmp_path).load(other, externals=FULL)


def test_programs_are_given_again(tmp_path: Path) -> None:
    """Whole or as the functions they are made of, by name; a missing one is named before anything is written."""

    def closure(context: Any) -> int:
        return context.number

    program = Function(closure)
    with cold() as p:
        p.invoke("f", program)
        message = r"pending\[0\]\.program\.body: \S+test_programs_are_given_again\.<locals>\.closure is code, which is"
        with pytest.raises(CheckpointError, match=message):
            Checkpoints(tmp_path).save(0, p, None)
        with pytest.raises(CheckpointError, match=r"state: \S+<locals>\.<lambda> is code, which is not saved"):
            Checkpoints(tmp_path).save(0, p, lambda: None, externals={"program": program})
        assert Checkpoints(tmp_path).newest() is None
        Checkpoints(tmp_path).save(0, p, None, externals={"program": program})
        Checkpoints(tmp_path).save(1, p, None, externals={"closure": closure})
    for given in ({}, {"program": program}, {"closed": closure}):
        with cold() as q, pytest.raises(CheckpointError, match=r"tmp.*/1 cannot be loaded: .*lacks 'closure'"):
            Checkpoints(tmp_path).load(q, externals=given)
    with cold() as q:
        Checkpoints(tmp_path).load(q, externals={"closure": closure})
        assert q.next_completion().result() == 0


@dataclass
class Mine:
    """A class that nobody registered."""

    x: int = 0


@register_value
@dataclass
class Ours:
    """A class that its user registered."""

    x: int = 0


def remember(context: Any, own: Any) -> Any:
    """A body whose container keeps its argument."""
    context.state = own
    return own


def test_objects_of_a_users_class(tmp_path: Path) -> None:
    """As container state, tag, argument or result: saved if the class is registered, else refused with its place."""
    given = {"remember": remember}
    for place, own in (
        (r"state\.mine", lambda p: {"mine": Mine()}),
        (r"platform\.life\.departures\.pending\[1\]\.args\[0\]", lambda p: p.invoke("f", remember, Mine()) and None),
        (r"platform\.life\.pools\.f\.live\[1\]\.state", lambda p: [p.invoke("f", remember, Mine()), finish(p)][2:]),
    ):
        with cold() as p:
            p.invoke("f", remember, 0)
            state = own(p)
            with pytest.raises(CheckpointError, match=rf"^{place}: a \S+\.Mine cannot be saved: .*decorate its class"):
                Checkpoints(tmp_path / "mine").save(0, p, state, externals=given)
    with cold() as p:
        p.invoke("f", remember, Ours(1), tag=Ours(2))
        p.next_completion()
        p.invoke("f", remember, Ours(3), tag=Ours(4))
        Checkpoints(tmp_path / "ours").save(0, p, Ours(5), externals=given)
    with cold() as q:
        assert Checkpoints(tmp_path / "ours").load(q, externals=given) == Ours(5)
        done = q.next_completion()
        assert done is not None
        assert (done.result(), done.tag, done.cold) == (Ours(3), Ours(4), False)


def test_saving_and_loading_that_fail(tmp_path: Path) -> None:
    """An open file, another seed, a wall clock, an empty folder: an error, and the earlier checkpoint stays."""
    folder = Checkpoints(tmp_path, keep=1)
    with cold() as p:
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            folder.load(p)
        folder.save(0, p, "good")
        with open(__file__) as file, pytest.raises(CheckpointError, match=r"state: a _io\.TextIOW.* cannot be saved"):
            folder.save(1, p, file)
        with cold(seed=1) as other, pytest.raises(CheckpointError, match=r"seed: the platform has 1, but the .* 0"):
            folder.load(other)
        assert folder.load(p) == "good"
    with cold(clock="wall") as real:
        with pytest.raises(CheckpointError, match="clock='wall'"):
            folder.save(2, real, None)
        with pytest.raises(CheckpointError, match="clock: the platform has wall, but the checkpoint has virtual"):
            folder.load(real)


def test_a_body_that_failed_is_saved_as_failed(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path)
    program = Function(lambda context, text: json.loads(text))
    with cold() as p:
        call = p.invoke("f", program, "no number")
        p.next_completion(until=1.0)
        assert call.status == "running"
        folder.save(0, p, None, externals={"body": program})
    with cold() as q:
        folder.load(q, externals={"body": program})
        done = q.next_completion()
        assert done is not None
        assert done.status == "failed"
        with pytest.raises(FunctionError, match="SavedError: JSONDecodeError: Expecting"):
            done.result()
