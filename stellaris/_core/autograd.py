"""Calls of JAX functions with PyTorch tensors, as one operation of PyTorch's autograd."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch


class _Constants(NamedTuple):
    """All about a call but the tensors: the tree of its arguments, and the leaves that are not tensors."""

    structure: Any
    leaves: tuple[Any, ...]  #: None in the place of each tensor.
    kinds: tuple[type, ...]  #: of the leaves: 1, 1.0 and True are equal, and not the same setting.
    tensors: tuple[int, ...]  #: the places of the tensors.


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a JAX function with tensors in place of arrays; see `stellaris.torch.differentiable`."""
    paths, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    places = tuple(i for i, (_, leaf) in enumerate(paths) if isinstance(leaf, torch.Tensor))
    names = [functools.partial(_name, function, path) for path, _ in paths]
    tensors = [_narrow(names[i], paths[i][1]) for i in places]
    leaves = tuple(None if isinstance(leaf, torch.Tensor) else leaf for _, leaf in paths)
    for name, leaf in zip(names, leaves, strict=True):
        _check_constant(name, leaf)
    constants = _Constants(structure, leaves, tuple(map(type, leaves)), places)
    outputs: list[Any] = []  # their tree, which autograd cannot return
    found = _Call.apply(function, constants, outputs, *tensors)
    return jax.tree.unflatten(outputs[0], found)


class _Call(torch.autograd.Function):  # type: ignore[misc]
    """One call. The gradient is computed from the arguments, so nothing but the arguments is kept."""

    @staticmethod
    def forward(ctx: Any, function: Any, constants: _Constants, outputs: list[Any], *tensors: Any) -> Any:
        with jax.enable_x64(_wide(tensors)):
            found = _programs(function)[0](constants, [*map(_to_jax, tensors)])
        leaves, structure = jax.tree.flatten(found)
        outputs.append(structure)
        ctx.function, ctx.constants = function, constants
        ctx.save_for_backward(*tensors)
        return (*map(_to_torch, leaves),)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        if torch.is_grad_enabled():  # PyTorch's `once_differentiable` would omit the second derivative without an error
            raise RuntimeError("create_graph=True: stellaris.torch has first derivatives only")
        tensors = ctx.saved_tensors
        wanted = tuple(i for i in range(len(tensors)) if ctx.needs_input_grad[3 + i])
        with jax.enable_x64(_wide(tensors)):
            given = [_to_jax(x) for x in cotangents if x.is_floating_point()]
            found = _programs(ctx.function)[1](ctx.constants, wanted, [*map(_to_jax, tensors)], given)
        gradients = dict(zip(wanted, map(_to_torch, found), strict=True))
        return None, None, None, *map(gradients.get, range(len(tensors)))


@functools.lru_cache(maxsize=128)
def _programs(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The compiled value and the compiled gradient of a function."""

    def value(constants: _Constants, tensors: Sequence[jax.Array]) -> Any:
        leaves = [*constants.leaves]
        for place, x in zip(constants.tensors, tensors, strict=True):
            leaves[place] = x
        args, kwargs = jax.tree.unflatten(constants.structure, leaves)
        return function(*args, **kwargs)

    def gradient(
        constants: _Constants, wanted: tuple[int, ...], tensors: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> Any:
        def floats(chosen: Sequence[jax.Array]) -> list[jax.Array]:
            replaced = dict(zip(wanted, chosen, strict=True))
            found = jax.tree.leaves(value(constants, [replaced.get(i, x) for i, x in enumerate(tensors)]))
            return [x for x in map(jnp.asarray, found) if jnp.issubdtype(x.dtype, jnp.floating)]

        _, pull = jax.vjp(floats, [tensors[i] for i in wanted])
        return pull([*cotangents])[0]

    return jax.jit(value, static_argnums=0), jax.jit(gradient, static_argnums=(0, 1))


def _wide(tensors: Sequence[Any]) -> bool:
    """Whether to compute in float64."""
    return jnp.result_type(float) == np.float64 or any(x.dtype == torch.float64 for x in tensors)


def _narrow(name: Callable[[], str], tensor: Any) -> Any:
    """Checks that JAX has the tensor's device, and makes int64 int32. The name is looked up for errors only."""
    try:
        jax.devices(tensor.device.type)
    except RuntimeError as error:
        there = f"{jax.default_backend()} is there"
        raise ValueError(f"{name()} is on {tensor.device}, for which JAX has no device: {there}") from error
    if tensor.dtype != torch.int64:
        return tensor
    beyond = tensor[(tensor < -(2**31)) | (tensor >= 2**31)]
    if beyond.numel():
        raise ValueError(f"{name()}={int(beyond[0])} does not fit into int32: pass a number in [-2**31, 2**31)")
    return tensor.to(torch.int32)


def _check_constant(name: Callable[[], str], leaf: Any) -> None:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"{name()} is a {type(leaf).__name__}: pass a torch.Tensor, or a Python number")
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(f"{name()} is a {type(leaf).__name__}, which cannot be hashed: pass a torch.Tensor") from error


def _name(function: Callable[..., Any], path: Sequence[Any]) -> str:
    """The name of the argument at a path of `(args, kwargs)`."""
    by_keyword, key, *within = path[0].idx == 1, *path[1:]
    # A function with `*args` may have fewer parameters than arguments.
    parameters = dict(enumerate(inspect.signature(function).parameters))
    name = key.key if by_keyword else parameters.get(key.idx, f"argument {key.idx}")
    return f"{name}{jax.tree_util.keystr(tuple(within))}"


def _to_jax(tensor: Any) -> jax.Array:
    array: jax.Array = jax.dlpack.from_dlpack(tensor.detach().contiguous())
    return array


def _to_torch(array: jax.Array) -> Any:
    # JAX computes asynchronously, and PyTorch may modify the arguments' memory as soon as the call returns.
    return torch.from_dlpack(array.block_until_ready())
