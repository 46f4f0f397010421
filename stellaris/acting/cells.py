"""Finds recurrent cells in networks without memory: such a cell would start from its first state at every step."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import jax

from stellaris.acting.vector import EnvSpec
from stellaris.types import Tree

_REMEDY = (
    "the network has no memory, so the cell would start anew at every step: pass policy=FlaxMemory(cell, width) or "
    "EquinoxMemory(cell, width), or give the network the methods of stellaris.acting.RecurrentNetwork"
)


def check_network(network: Any) -> None:
    """Checks that a network is not a bare cell.

    Raises:
      TypeError: if it is one of flax or Equinox.
    """
    if is_cell(network):
        raise TypeError(f"network={network!r} is a recurrent cell, which has no action distribution: {_REMEDY}")


@contextlib.contextmanager
def watched(network: Any, spec: EnvSpec) -> Iterator[None]:
    """Raises if a flax cell is called within the context, by a network without memory.

    A cell may run along an axis of an observation that is itself a sequence, so nothing is refused if the observation
    has an array of two or more axes.

    Raises:
      TypeError: if a cell is called.
    """
    linen = sys.modules.get("flax.linen")  # not imported: a network without flax calls no cell of flax
    if linen is None or _has_sequences(spec):
        yield
        return

    def refuse(call: Any, args: Any, options: Any, context: Any) -> Any:
        if context.method_name == "__call__" and is_cell(context.module):
            raise TypeError(_refusal(network, context.module, spec))
        return call(*args, **options)

    with linen.intercept_methods(refuse):
        yield


def check_params(params: Tree, network: Any, spec: EnvSpec) -> None:
    """Checks that the parameters of a network without memory hold no cell of Equinox.

    Raises:
      TypeError: if they hold one.
    """
    if _has_sequences(spec):
        return
    for node in jax.tree.leaves(params, is_leaf=is_cell):
        if is_cell(node):
            raise TypeError(_refusal(network, node, spec))


def is_cell(module: Any) -> bool:
    """Whether this is a recurrent cell of flax or Equinox; neither library is imported."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(module).__mro__}
    return not names.isdisjoint({("flax", "RNNCellBase"), ("equinox", "GRUCell"), ("equinox", "LSTMCell")})


def _refusal(network: Any, cell: Any, spec: EnvSpec) -> str:
    return f"{type(network).__name__} on {spec.name} has a recurrent cell, {type(cell).__name__}, but {_REMEDY}"


def _has_sequences(spec: EnvSpec) -> bool:
    return any(len(leaf.shape) > 1 for leaf in jax.tree.leaves(spec.observation))
