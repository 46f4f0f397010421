"""What the platform on Ray has of its own: how it connects, what it refuses, and what stays of it."""

import os
from pathlib import Path

import numpy as np
import pytest
import ray

from experiments.cluster.faults import descendants
from stellaris.runtime import FunctionSpec, Node, RayPlatform, Resources
from stellaris.runtime.delays import Constant, Measured
from stellaris.runtime.ray import platform as module
from stellaris.runtime.ray import session
from stellaris.runtime.ray.platform import connect
from tests.runtime.ray.processes import listening
from tests.runtime.store.stores import bytes_of

pytestmark = pytest.mark.slow

SPEC = FunctionSpec(Measured())


def test_nothing_listens_beyond_loopback() -> None:
    """Neither this process nor any that `connect` has started, on IPv4 or IPv6."""
    processes = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants(os.getpid())}
    assert {"raylet", "gcs_server"} <= set(processes.values())
    found = [address for pid in (os.getpid(), *processes) for address in listening(pid)]
    assert len(found) >= 3
    assert not [address for address in found if not address.is_loopback]


def test_a_machine_is_connected_to_once() -> None:
    assert not connect()
    RayPlatform({"f": SPEC}).close()
    assert ray.is_initialized()


def test_ray_is_started_for_this_machine_alone_or_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options))
    assert connect()
    assert connect("head:6379")
    here, there = started
    assert here["include_dashboard"] is False
    assert here["address"] == "local"
    assert there["address"] == "head:6379"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_rays_client_is_refused() -> None:
    with pytest.raises(ValueError, match=r"address='ray://head:10001': .* run the program on a machine of the cluster"):
        connect("ray://head:10001")


def test_ray_is_shut_down_by_a_platform_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    shut = []
    monkeypatch.setattr(module, "connect", lambda address: True)
    monkeypatch.setattr(ray, "shutdown", lambda: shut.append(True))
    with pytest.raises(ValueError, match="no node could ever hold"):
        RayPlatform({"f": FunctionSpec(Measured(), resources=Resources(gpu_slots=1))})
    assert shut == [True]


def test_ray_stays_for_the_platforms_that_still_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shut = []
    started = iter([True, False, False])
    monkeypatch.setattr(module, "connect", lambda address: next(started))
    monkeypatch.setattr(ray, "shutdown", lambda: shut.append(True))
    first = RayPlatform({"f": SPEC})
    second = RayPlatform({"f": SPEC})
    with pytest.raises(ValueError, match="no node could ever hold"):
        RayPlatform({"f": FunctionSpec(Measured(), resources=Resources(gpu_slots=1))})
    first.close()
    first.close()
    assert not shut
    second.invoke("f", lambda context, x: 2 * x, 21)
    done = second.next_completion()
    assert done is not None
    assert done.result() == 42
    second.close()
    assert shut == [True]


@pytest.mark.parametrize("how", ["shut down", "shut down and initialised again"])
def test_a_platform_whose_ray_is_gone_says_so(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It neither has Ray initialise itself nor takes part in another Ray, whatever is asked of it; it can be closed."""
    anew = []
    with RayPlatform({"f": SPEC, "g": SPEC}) as platform:
        platform.invoke("f", bool)  # no container is made for it yet
        with monkeypatch.context() as patch:
            patch.setattr(ray, "init", lambda **options: anew.append(options))
            if how == "shut down":
                patch.setattr(ray, "is_initialized", lambda: False)
            else:
                patch.setattr(session, "_number", lambda: ("another:6379", "02000000"))
            for use in (
                lambda: platform.invoke("f", bool),
                lambda: platform.store.publish("p", bytes_of(7)),
                lambda: platform.store.put(bytes_of(7)),
                platform.next_completion,
            ):
                with pytest.raises(RuntimeError, match=r"Ray was shut down .* make another platform"):
                    use()
            platform.close()
    assert anew == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"functions": {"f": Constant(1.0)}}, TypeError, "'f'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"placement": "far"}, ValueError, "placement='far'"),
        ({"slots_per_gpu": 0}, ValueError, "slots_per_gpu=0"),
        ({"hang_after": 0.0}, ValueError, "hang_after=0.0"),
    ],
)
def test_arguments_out_of_their_range_are_named(unchecked: None, arguments, error, message: str) -> None:
    with pytest.raises(error, match=message):
        RayPlatform(**({"functions": {"f": SPEC}} | arguments))


def test_the_machines_are_those_of_the_cluster() -> None:
    needy = {"f": FunctionSpec(Measured(), resources=Resources(vcpus=0.5, memory=0.1))}
    with RayPlatform(needy, slots_per_gpu=3) as platform:
        (node,) = platform.deployment.nodes
        (known,) = ray.nodes()
        memory = known["Resources"]["memory"] / 1e9
        assert node == Node(known["NodeID"], memory=memory, vcpus=4.0, gpus=0, slots_per_gpu=3)
    with RayPlatform({"f": SPEC}) as platform:
        assert platform.deployment.nodes == ()


def test_more_versions_than_rays_store_holds_pass_through_it() -> None:
    """Of 100 MB, which is this session's: a version that nobody needs any more takes no room, in no process.

    If one did, Ray would map files on the disk beside its shared memory, once that is full.
    """
    assert not files_of_the_store()
    with RayPlatform({"f": FunctionSpec(Measured(), max_concurrency=1)}, keep_versions=1) as platform:
        for n in range(18):
            platform.store.publish("p", np.full(10_000_000, n, np.uint8))
            call = platform.invoke("f", lambda context, p: (p.version, int(p.value[-1])), platform.store.latest("p"))
            assert platform.next_completion() is call
            assert call.result() == (n, n)
        assert not files_of_the_store()


def files_of_the_store() -> list[str]:
    """What Ray's store has mapped beside shared memory."""
    (raylet,) = (pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet")
    mapped = (line.split()[5:] for line in Path(f"/proc/{raylet}/maps").read_text().splitlines())
    return [words[0] for words in mapped if words and "/plasma" in words[0] and not words[0].startswith("/dev/shm/")]
