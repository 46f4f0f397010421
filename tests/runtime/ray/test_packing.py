"""What crosses to a container arrives as it was; what cannot is refused by name."""

import functools
import gc
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ray import cloudpickle

from stellaris.runtime import Function
from stellaris.runtime.ray.packing import LARGE, Kept, Packer, Unpacker, packed_program
from tests.runtime.ray.processes import references

pytestmark = pytest.mark.slow


class Pair(NamedTuple):
    """Of whatever."""

    left: object
    right: object


class Holder:
    """Has something that may not cross."""

    def __init__(self, content: object) -> None:
        self.content = content


def crossed(value: object) -> object:
    """A value as another process would have it."""
    return Unpacker().unpack(cloudpickle.loads(cloudpickle.dumps(Packer().pack(value, "it"))))


def test_values_arrive_as_they_were() -> None:
    """Of every kind: numbers, kinds of arrays, weak types, keys; and where they are in a tree."""
    tree = {
        "small": jnp.arange(3.0),
        "large": jnp.arange(LARGE, dtype=jnp.float32),
        "half": jnp.ones(5, jnp.bfloat16),
        "large half": jnp.full(LARGE, 0.5, jnp.bfloat16),
        "weak": jax.jit(lambda: 1.0)(),
        "host": np.arange(4, dtype=np.int8),
        "large on the host": np.arange(LARGE),
        "pair": Pair(jnp.zeros((2, 0)), (None, "text", 7)),
    }
    found = crossed(tree)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    assert isinstance(found["pair"], Pair)
    for given, got in zip(jax.tree.leaves(tree), jax.tree.leaves(found), strict=True):
        assert type(got) is type(given)
        if isinstance(given, jax.Array | np.ndarray):
            assert got.dtype == given.dtype
            assert np.array_equal(got, given)
    assert found["weak"].weak_type
    assert not found["small"].weak_type


def test_keys_arrive_as_keys() -> None:
    """And draw the same numbers, whether there is one or an array of them."""
    one = jax.random.key(3)
    many = jax.random.split(one, 4)
    found_one, found_many = crossed((one, many))
    assert found_one.dtype == one.dtype
    assert jax.random.normal(found_one) == jax.random.normal(one)
    assert np.array_equal(jax.random.key_data(found_many), jax.random.key_data(many))


def test_a_large_array_that_comes_twice_arrives_as_one() -> None:
    """Also with two calls: it is fetched once."""
    large = jnp.zeros(LARGE, jnp.int8)
    packer = Packer()
    unpacker = Unpacker()
    first, second = unpacker.unpack(packer.pack((large, [large]), "it"))
    assert first is second[0]
    assert unpacker.unpack(packer.pack(large, "it")) is first


def test_a_large_array_is_in_the_object_store_once_and_while_it_lives() -> None:
    """However often it is packed; forgotten when nobody has it any more."""
    packer = Packer()
    large = jnp.zeros(LARGE, jnp.int8)
    before = references()
    packed = [packer.pack((large, n), "it") for n in range(3)]
    new = references() - before
    assert len(new) == 1
    assert len({p.references[0].hex() for p in packed}) == 1
    assert all(len(p.content) < 200 for p in packed)
    del packed, large
    gc.collect()
    assert not new & references()


def test_an_array_below_the_limit_stays_out_of_it() -> None:
    """At the limit it goes there."""
    packer = Packer()
    below = packer.pack(jnp.zeros(LARGE - 1, jnp.int8), "it")
    assert (len(below.arrays), len(below.references)) == (1, 0)
    at = packer.pack(jnp.zeros(LARGE, jnp.int8), "it")
    assert (len(at.arrays), len(at.references)) == (0, 1)


def test_what_is_kept_crosses_as_its_place() -> None:
    """And arrives as the value, which is fetched once, of however many places it was."""
    kept = Kept({"w": jnp.arange(3.0), "names": ("a", "b")}, nbytes=12)
    packed = Packer().pack(Pair(kept, [kept]), "it")
    assert len({reference.hex() for reference in packed.references}) == 1
    assert not packed.arrays
    found = Unpacker().unpack(packed)
    assert found.left is found.right[0]
    assert found.left["names"] == ("a", "b")
    assert isinstance(found.left["w"], jax.Array)
    assert found.left["w"].tolist() == [0.0, 1.0, 2.0]


def test_what_was_fetched_is_remembered_for_the_next_values() -> None:
    """And forgotten when it was in none of the last ones."""
    packer = Packer()
    unpacker = Unpacker(remembered=2)
    a, b = (Kept([n], nbytes=8) for n in range(2))
    first, other, again, last = (unpacker.unpack(packer.pack(kept, "it")) for kept in (a, b, a, a))
    assert first is again is last
    assert other == [1]
    assert unpacker.unpack(packer.pack(b, "it")) is not other
    assert unpacker.unpack(packer.pack(a, "it")) is first
    assert Unpacker(remembered=0).unpack(packer.pack((a, a), "it")) == ([0], [0])


def _in_a_closure(content: object) -> Function:
    return Function(lambda context: content)


def _in_a_partial(content: object) -> Function:
    return Function(functools.partial(lambda content, context: content, content))


def _in_a_method(content: object) -> Function:
    def content_of(holder: Holder, context: object) -> object:
        return holder.content

    holder = Holder(content)
    return Function(content_of.__get__(holder))


def _beside_what_is_not_there_yet(content: object) -> Function:
    def body(context: object) -> object:
        return content, later()

    if content is None:

        def later() -> None:
            """Stands for what a body refers to before it is defined."""

    return Function(body)


@pytest.mark.parametrize(
    ("program", "where"),
    [
        (_in_a_closure, "body.content"),
        (_in_a_partial, r"body.args.0"),
        (_in_a_method, r"body.self.content"),
        (_beside_what_is_not_there_yet, "body.content"),
    ],
)
def test_a_program_that_holds_a_lock_is_refused_by_name(program, where: str) -> None:
    """Wherever it holds it."""
    assert packed_program(program(1), "the program of function 'f'")
    match = rf"^the program of function 'f' cannot go to another process: {where} is <unlocked _thread.lock"
    with pytest.raises(TypeError, match=match):
        packed_program(program(threading.Lock()), "the program of function 'f'")


def test_arguments_that_cannot_cross_are_refused_by_name(tmp_path) -> None:
    """With the way that leads to what is at fault: a lock, a compiled function, a file to be written."""
    pack = Packer().pack
    with pytest.raises(TypeError, match=r"an argument of function 'f' cannot go .* 1\.content\.a\.0 is <unlocked _thr"):
        pack((7, Holder({"a": [threading.Lock()]})), "an argument of function 'f'")
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    with pytest.raises(TypeError, match=r"cannot go .*: 0\.step is <jax.*Compiled.*have the body or `init` make it"):
        pack(({"step": compiled},), "an argument of function 'f'")
    with (tmp_path / "log").open("w") as file, pytest.raises(TypeError, match=r"cannot go .*: 0 is <_io.TextIOWrapper"):
        pack((file,), "an argument of function 'f'")


def test_a_function_that_is_compiled_when_called_crosses() -> None:
    """Unlike one that was compiled ahead: what `jax.jit` makes is compiled where it is called."""
    program = cloudpickle.loads(packed_program(Function(jax.jit(lambda context: context + 1)), "it"))
    assert program.body(1) == 2
