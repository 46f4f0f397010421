"""Nodes: where containers are placed, GPUs that are shared, and idle containers that make room."""

import math

import numpy as np
import pytest

from stellaris.runtime import Faults, FunctionSpec, Node, Resources, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant
from stellaris.runtime.engine.placement import Nodes, Place
from tests.runtime.helpers import drain, nothing


def spec(compute=1.0, *, memory=0.0, vcpus=0.0, gpu_slots=0, cold_start=0.0, **others) -> FunctionSpec:
    """Of a function with resources."""
    resources = Resources(memory, vcpus, gpu_slots)
    return FunctionSpec(Constant(compute), Constant(cold_start), resources=resources, **others)


def ended(platform: SimulatedPlatform) -> list[tuple[float, str, int]]:
    """When which containers ended."""
    log = platform.trace.to_dataframe()
    log = log[log["event"] == "container_ended"]
    return list(log[["time", "function", "container"]].itertuples(index=False, name=None))


TWO = (Node("a", memory=4.0, vcpus=2.0), Node("b", memory=8.0, vcpus=8.0))


def test_pack_fills_the_first_node_first():
    cluster, need = Nodes(TWO), Resources(memory=0.5, vcpus=0.5)
    assert [cluster.place(need).node for _ in range(6)] == [0, 0, 0, 0, 1, 1]


def test_spread_takes_the_emptiest():
    """By the shares of memory and processors in use: an eighth and a sixteenth more on b, twice a quarter on a."""
    cluster, need = Nodes(TWO, "spread"), Resources(memory=1.0, vcpus=0.5)
    # In use before each: 0 and 0; 1/2 and 0; 1/2 and 3/16; 1/2 and 3/8; 1/2 and 9/16; 1 and 9/16; 1 and 3/4.
    assert [cluster.place(need).node for _ in range(7)] == [0, 1, 1, 1, 0, 1, 1]


def test_spread_takes_the_emptiest_by_gpu_slots():
    nodes = [Node(name, gpus=1, slots_per_gpu=2) for name in "ab"]
    cluster, need = Nodes(nodes, "spread"), Resources(gpu_slots=1)
    assert [cluster.place(need).node for _ in range(4)] == [0, 1, 0, 1]


def test_gpu_slots():
    cluster, one, two = Nodes([Node("n", gpus=2, slots_per_gpu=2)]), Resources(gpu_slots=1), Resources(gpu_slots=2)
    assert cluster.place(one) == Place(0, 0)
    assert cluster.place(two) == Place(0, 1)
    assert cluster.place(two) is None
    assert cluster.place(one) == Place(0, 0)
    assert cluster.place(one) is None
    assert cluster.place(Resources(memory=1.0)) == Place(0, -1)  # needs no GPU
    cluster.free(Place(0, 1), two)
    assert [cluster.place(one), cluster.place(one)] == [Place(0, 1), Place(0, 1)]
    cluster.free(Place(0, 0), one)
    cluster.free(Place(0, 1), one)
    assert cluster.place(two) is None  # one slot is free on each


@pytest.mark.parametrize("what", ["memory", "vcpus"])
def test_fractions_add_up(what):
    """Three tenths fit into 0.3, though 0.3 - 0.1 - 0.1 is less than 0.1: rounding lets no fourth in, either."""
    cluster, tenth = Nodes([Node("n", **{what: 0.3})]), Resources(**{what: 0.1})
    for _ in range(3):
        places = [cluster.place(tenth) for _ in range(4)]
        assert places == [Place(0, -1)] * 3 + [None]
        for place in places[:3]:
            cluster.free(place, tenth)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_no_node_is_ever_overfull(placement, seed):
    """Sums by hand: a place is refused if and only if there is no node with room."""
    rng = np.random.default_rng(seed)
    nodes = [
        Node(str(i), memory=float(rng.integers(1, 9)), vcpus=float(rng.integers(1, 9)), gpus=i % 3, slots_per_gpu=2)
        for i in range(4)
    ]
    cluster, held = Nodes(nodes, placement), []

    def room(i: int, gpu: int, need: Resources) -> bool:
        there = [(place, other) for place, other in held if place.node == i]
        return (
            sum(other.memory for _, other in there) + need.memory <= nodes[i].memory
            and sum(other.vcpus for _, other in there) + need.vcpus <= nodes[i].vcpus
            and (gpu < 0 or sum(other.gpu_slots for place, other in there if place.gpu == gpu) + need.gpu_slots <= 2)
        )

    refused = 0
    for _ in range(150):
        if held and rng.random() < 0.4:
            cluster.free(*held.pop(rng.integers(len(held))))
            continue
        need = Resources(float(rng.integers(4)), float(rng.integers(4)), int(rng.integers(3)))
        place = cluster.place(need)
        gpus = {i: range(node.gpus) if need.gpu_slots else [-1] for i, node in enumerate(nodes)}
        possible = [Place(i, gpu) for i in gpus for gpu in gpus[i] if room(i, gpu, need)]
        if place is None:
            refused += 1
            assert possible == []
        else:
            assert place in possible
            assert placement == "spread" or place.node == possible[0].node
            held.append((place, need))
    assert refused > 10


@pytest.mark.parametrize(
    ("sharing", "factors"), [(0.0, [1, 1, 1, 1]), (0.5, [1, math.sqrt(2), math.sqrt(3), 2]), (1.0, [1, 2, 3, 4])]
)
def test_invocations_on_one_gpu_slow_each_other_down(sharing, factors):
    """By `k ** gpu_sharing`, the one that starts included; idle containers and transfers do not count."""
    nodes = [Node("n", gpus=1, slots_per_gpu=4, gpu_sharing=sharing)]
    transfer = Transfer(Constant(0.5), math.inf)
    with SimulatedPlatform({"f": spec(2.0, gpu_slots=1, transfer=transfer)}, nodes=nodes) as platform:
        for _ in range(4):
            platform.invoke("f", nothing)
        assert [i.finished for i in drain(platform)] == pytest.approx([0.5 + 2 * factor for factor in factors])
        platform.invoke("f", nothing, at=20.0)  # four containers are there, and none runs
        assert platform.next_completion().finished == 22.5
        platform.invoke("f", nothing, at=30.0, work=10.0)
        platform.invoke("f", nothing, at=40.0)
        assert platform.next_completion().finished == pytest.approx(40.5 + 2 * factors[1])


def test_each_gpu_is_shared_by_itself():
    nodes = [Node("n", gpus=2, slots_per_gpu=2, gpu_sharing=1.0)]
    specs = {"gpu": spec(1.0, gpu_slots=1, timeout=2.5), "cpu": spec(1.0)}
    with SimulatedPlatform(specs, nodes=nodes) as platform:
        for work in (9.0, 0.25, 1.0):  # GPUs 0, 1 and 0
            platform.invoke("gpu", nothing, work=work)
        platform.invoke("cpu", nothing)
        platform.invoke("gpu", nothing, at=2.5)
        done = {i.number: (i.status, i.finished) for i in drain(platform)}
        assert done == {
            0: ("timed_out", 2.5),
            1: ("completed", 0.25),
            2: ("completed", 2.0),
            3: ("completed", 1.0),
            4: ("completed", 3.5),
        }


def test_an_unknown_placement(unchecked):
    with pytest.raises(ValueError, match="placement='best' is neither 'pack' nor 'spread'"):
        Nodes([], "best")


def test_a_function_that_no_node_could_hold():
    nodes = [Node("a", memory=4.0), Node("b", vcpus=2.0, memory=2.0)]
    with pytest.raises(ValueError, match=r"function 'large': no node could ever hold its Resources\(memory=8.0"):
        SimulatedPlatform({"small": spec(memory=4.0), "large": spec(memory=8.0)}, nodes=nodes)
    SimulatedPlatform({"fits": spec(memory=2.0, vcpus=2.0)}, nodes=nodes[1:]).close()
    with pytest.raises(ValueError, match="function 'f': no room for provisioned=4"):
        SimulatedPlatform({"f": spec(memory=2.0, provisioned=4)}, nodes=nodes)


def test_who_waits_for_a_node_is_woken_by_another_functions_end():
    for timeout, end in [(None, 3.0), (2.0, 2.0)]:
        specs = {"f": spec(memory=3.0, timeout=timeout), "g": spec(memory=2.0, cold_start=0.5)}
        with SimulatedPlatform(specs, nodes=[Node("n", memory=4.0)]) as platform:
            platform.invoke("f", nothing, work=3.0)
            platform.invoke("g", nothing, at=0.25)
            done = drain(platform)
            assert [(i.function, i.started, i.finished) for i in done] == [("f", 0.0, end), ("g", end + 0.5, end + 1.5)]
            assert ended(platform) == [(end, "f", 0)]


def test_the_room_that_one_end_leaves_may_do_for_two():
    specs = {"large": spec(memory=4.0), "small": spec(memory=2.0)}
    with SimulatedPlatform(specs, nodes=[Node("n", memory=4.0)]) as platform:
        platform.invoke("large", nothing)
        platform.invoke("small", nothing)
        platform.invoke("small", nothing)
        assert [i.started for i in drain(platform)] == [0.0, 1.0, 1.0]


def test_who_waits_for_a_node_is_woken_when_a_container_is_lost_from_it():
    """A provisioned one, which makes no room by itself: what was lost is replaced only where there still is room."""
    specs = {"f": spec(1.0, memory=3.0, provisioned=1, cold_start=9.0), "g": spec(memory=1.0)}
    faults = {"f": Faults(lose_containers_at=(2.0,))}
    with SimulatedPlatform(specs, nodes=[Node("n", memory=3.0)], faults=faults) as platform:
        platform.invoke("g", nothing, at=0.5)
        platform.invoke("g", nothing, at=3.0)
        platform.invoke("f", nothing, at=3.0)
        platform.next_completion(until=1.9)
        assert [row[0] for row in ended(platform)] == []
        platform.next_completion(until=2.5)
        assert [row[:2] for row in ended(platform)] == [(2.0, "f")]
        # Its replacement is made before anybody else gets its room.
        assert platform.trace.select("container_created").time.tolist() == [0.0, 2.0]


def test_no_more_idle_containers_end_than_need_be():
    """A large one takes the room of both on its own node; the one on the other node, idle for longest, stays."""
    nodes = [Node("a", memory=2.0), Node("b", memory=4.0)]
    specs = {"f": spec(memory=2.0), "g": spec(memory=4.0), "h": spec(memory=2.0)}
    with SimulatedPlatform(specs, nodes=nodes) as platform:
        for work in (1.0, 3.0, 3.0):  # container 0 is on a, 1 and 2 are on b
            platform.invoke("f", nothing, work=work)
        platform.invoke("g", nothing, at=5.0)
        f = platform.invoke("f", nothing, at=5.5)
        assert [i.container.place.node for i in drain(platform)] == [0, 1, 1, 1, 0]
        assert ended(platform) == [(5.0, "f", 1), (5.0, "f", 2)]
        assert (f.container.number, f.cold) == (0, False)


def test_busy_and_provisioned_containers_make_no_room():
    """One is used, the other is paid for: the call is rejected."""
    specs = {"f": spec(4.0, memory=2.0, provisioned=1), "g": spec(memory=2.0, overflow="reject")}
    with SimulatedPlatform(specs, nodes=[Node("n", memory=5.0)]) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing)
        platform.invoke("g", nothing, at=1.0)  # both are busy
        platform.invoke("f", nothing, at=4.5)  # on the provisioned one
        platform.invoke("g", nothing, at=5.0)  # takes the place of the other
        platform.invoke("g", nothing, at=5.5)  # is busy itself, beside the provisioned one
        platform.invoke("g", nothing, at=9.0)
        done = {i.number: i.status for i in drain(platform) if i.function == "g"}
        assert done == {2: "throttled", 4: "completed", 5: "throttled", 6: "completed"}
        assert ended(platform) == [(5.0, "f", 1)]


@pytest.mark.parametrize("seed", range(20))
def test_containers_fit_on_their_node_and_everybody_gets_a_turn(seed):
    """Memory in use, read off the trace, never exceeds the node's; every call ends, though the largest fills it."""
    rng = np.random.default_rng(seed)
    memory = {"small": 1.0, "middle": 3.0, "large": 8.0}
    specs = {name: spec(memory=size, keep_alive=2.0, timeout=2.0) for name, size in memory.items()}
    with SimulatedPlatform(specs, seed=seed, nodes=[Node("n", memory=8.0)]) as platform:
        submitted = [
            platform.invoke(str(name), nothing, at=float(at), work=float(work))
            for name, at, work in zip(
                rng.choice(list(memory), 60),
                rng.choice(np.arange(0, 20, 0.5), 60),
                rng.uniform(0, 2.5, 60),
                strict=True,
            )
        ]
        drain(platform)
    assert {i.status for i in submitted} == {"completed", "timed_out"}
    used, fullest = 0.0, 0.0
    for row in platform.trace.to_dataframe().itertuples():
        used += {"container_created": 1, "container_ended": -1}.get(row.event, 0) * memory.get(row.function, 0.0)
        fullest = max(fullest, used)
        assert 0.0 <= used <= 8.0
    assert fullest == 8.0
