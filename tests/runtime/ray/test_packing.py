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
    tree = {
        "small": jnp.arange(3.0),
        "large": jnp.arange(LARGE, dtype=jnp.float32),
        "half": jnp.ones(5, jnp.bfloat16),
        "large half": jnp.full(LARGE, 0.5, jnp.bfloat16),
        "weak": jax.jit(lambda: 1.0)(),
        "host": np.arange(4, dtype=np.int8),
        "large on the host": np.arange(LARGE),
        "keys": jax.random.split(jax.random.key(3), 4),
        "pair": Pair(jnp.zeros((2, 0)), (None, "text", 7)),
    }
    found = crossed(tree)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    assert isinstance(found["pair"], Pair)
    for given, got in zip(jax.tree.leaves(tree), jax.tree.leaves(found), strict=True):
        assert type(got) is type(given)
        if isinstance(given, jax.Array | np.ndarray):
            assert got.dtype == given.dtype
            assert (got == given).all()
    assert found["weak"].weak_type
    assert not found["small"].weak_type


def test_a_large_array_is_in_the_object_store_once_and_while_it_lives() -> None:
    packer = Packer()
    large = jnp.zeros(LARGE, jnp.int8)
    before = references()
    packed = [packer.pack((large, n), "it") for n in range(3)]
    new = references() - before
    assert len(new) == 1
    assert len({p.references[0].hex() for p in packed}) == 1
    assert all(len(p.content) < 200 for p in packed)
    unpacker = Unpacker()
    assert unpacker.unpack(packed[0])[0] is unpacker.unpack(packed[1])[0]
    del packed, large, unpacker
    gc.collect()
    assert not new & references()


def test_what_is_kept_crosses_as_its_place() -> None:
    kept = Kept({"w": jnp.arange(3.0), "names": ("a", "b")}, nbytes=12)
    packed = Packer().pack(Pair(kept, [kept]), "it")
    assert len({reference.hex() for reference in packed.references}) == 1
    assert not packed.arrays
    found = Unpacker().unpack(packed)
    assert found.left is found.right[0]
    assert found.left["names"] == ("a", "b")
    assert isinstance(found.left["w"], jax.Array)
    assert found.left["w"].tolist() == [0.0, 1.0, 2.0]


def _in_a_closure(content: object) -> Function:
    return Function(lambda context: content)


def _in_a_partial(content: object) -> Function:
    return Function(functools.partial(lambda content, context: content, content))


def _in_a_method(content: object) -> Function:
    def content_of(holder: Holder, context: object) -> object:
        return holder.content

    holder = Holder(content)
    return Function(content_of.__get__(holder))


@pytest.mark.parametrize(
    ("program", "where"),
    [
        (_in_a_closure, "body.content"),
        (_in_a_partial, r"body.args.0"),
        (_in_a_method, r"body.self.content"),
    ],
)
def test_a_program_that_holds_a_lock_is_refused_by_name(program, where: str) -> None:
    assert packed_program(program(1), "the program of function 'f'")
    match = rf"^the program of function 'f' cannot be sent to another process: {where} is <unlocked _thread.lock"
    with pytest.raises(TypeError, match=match):
        packed_program(program(threading.Lock()), "the program of function 'f'")


def test_arguments_that_cannot_cross_are_refused_by_name(tmp_path) -> None:
    pack = Packer().pack
    with pytest.raises(
        TypeError, match=r"an argument of function 'f' cannot be sent .* 1\.content\.a\.0 is <unlocked _thr"
    ):
        pack((7, Holder({"a": [threading.Lock()]})), "an argument of function 'f'")
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    with pytest.raises(
        TypeError, match=r"cannot be sent .*: 0\.step is <jax.*Compiled.*have the body or `init` make it"
    ):
        pack(({"step": compiled},), "an argument of function 'f'")
    with (
        (tmp_path / "log").open("w") as file,
        pytest.raises(TypeError, match=r"cannot be sent .*: 0 is <_io.TextIOWrapper"),
    ):
        pack((file,), "an argument of function 'f'")


def test_a_function_that_is_compiled_when_called_crosses() -> None:
    program = cloudpickle.loads(packed_program(Function(jax.jit(lambda context: context + 1)), "it"))
    assert program.body(1) == 2
