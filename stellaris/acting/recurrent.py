"""Policies with memory, made of a recurrent cell of flax or Equinox."""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stellaris._core import checks
from stellaris._core.extras import needs
from stellaris.acting.cells import is_cell
from stellaris.acting.policies import Policy
from stellaris.acting.vector import EnvSpec
from stellaris.types import Tree


@dataclass(frozen=True)
class FlaxMemory:
    """A policy with the memory of a flax cell: tanh layers, the cell, and linear outputs for policy and value.

    Arrays of an observation are flattened and joined. Policy and value share the layers and the cell.

    Args:
      cell: a cell of `flax.linen` on vectors: its class, such as `nn.GRUCell`, the class's name, or a
        `functools.partial` of the class. Its memory at an episode's start is that of `initialize_carry`, zeros by
        default.
      width: the cell's number of features.
      hidden: widths of the tanh layers before the cell.
      normalise: whether observations are normalised by running statistics.
      scaling_discount: the discount of the returns by whose running deviation rewards are divided; see `Policy`.

    Raises:
      ModuleNotFoundError: without flax.
      TypeError: if `cell` is not a cell of `flax.linen` on vectors, or `width` or `hidden` is not of whole numbers.
      ValueError: if a width is below 1; when the policy is made, if `scaling_discount` is not in [0, 1].

    Source:
      Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder, for the GRU; Hochreiter & Schmidhuber
      1997, Long Short-Term Memory.

    Example:
      >>> import numpy as np
      >>> policy = FlaxMemory("GRUCell", 8)(EnvSpec("CartPole", np.zeros(4), actions=2, discrete=True))
      >>> policy.initial_memory(3).shape
      (3, 8)
    """

    cell: Any = "GRUCell"
    width: int = 64
    hidden: tuple[int, ...] = (64,)
    normalise: bool = True
    scaling_discount: float | None = None

    def __post_init__(self) -> None:
        _check_widths(self.width, self.hidden)
        with needs("FlaxMemory"):
            import flax.linen as nn
        # A class is kept by its name, so that the settings of a run can be written down and read.
        object.__setattr__(self, "cell", _by_name(self.cell, nn))
        try:
            cell = self._cell()
            fits = is_cell(cell) and cell.num_feature_axes == 1
        except TypeError:
            fits = False
        if not fits:
            raise TypeError(
                f"cell={self.cell!r} is not the class of a cell of flax.linen on vectors: pass one, such as "
                "nn.GRUCell, or write a stellaris.acting.RecurrentNetwork of your own"
            )

    def __call__(self, spec: EnvSpec) -> Policy:
        """Makes the policy for an environment."""
        from stellaris.acting.networks import Remembering

        network = Remembering(self._cell(), spec.actions, spec.discrete, self.hidden)
        return Policy(spec, network, self.normalise, self.scaling_discount)

    def _cell(self) -> Any:
        import flax.linen as nn

        make = getattr(nn, self.cell, None) if isinstance(self.cell, str) else self.cell
        if not callable(make) or is_cell(make):
            raise TypeError(f"cell={self.cell!r} is not a class")
        return make(features=self.width)


@dataclass(frozen=True)
class EquinoxMemory:
    """A policy with the memory of an Equinox cell: tanh layers, the cell, and linear outputs for policy and value.

    Arrays of an observation are flattened and joined. Policy and value share the layers and the cell. The memory at an
    episode's start is zero.

    Args:
      cell: `equinox.nn.GRUCell` or `equinox.nn.LSTMCell`, as the class or its name.
      width: the size of the cell's state.
      hidden: widths of the tanh layers before the cell.
      normalise: whether observations are normalised by running statistics.
      scaling_discount: the discount of the returns by whose running deviation rewards are divided; see `Policy`.

    Raises:
      ModuleNotFoundError: without equinox.
      TypeError: if `cell` is neither class, or `width` or `hidden` is not of whole numbers.
      ValueError: if a width is below 1; when the policy is made, if `scaling_discount` is not in [0, 1].

    Example:
      >>> import numpy as np
      >>> policy = EquinoxMemory("LSTMCell", 8)(EnvSpec("CartPole", np.zeros(4), actions=2, discrete=True))
      >>> [state.shape for state in policy.initial_memory(3)]  # the output and the cell state
      [(3, 8), (3, 8)]
    """

    cell: Any = "GRUCell"
    width: int = 64
    hidden: tuple[int, ...] = (64,)
    normalise: bool = True
    scaling_discount: float | None = None

    def __post_init__(self) -> None:
        _check_widths(self.width, self.hidden)
        import equinox as eqx

        object.__setattr__(self, "cell", _by_name(self.cell, eqx.nn))
        if self.cell not in ("GRUCell", "LSTMCell"):
            raise TypeError(
                f"cell={self.cell!r}: expected equinox.nn.GRUCell or equinox.nn.LSTMCell; for another cell, write a "
                "stellaris.acting.RecurrentNetwork of your own"
            )

    def __call__(self, spec: EnvSpec) -> Policy:
        """Makes the policy for an environment."""
        network = _EquinoxNetwork(self.cell, self.width, self.hidden, spec)
        return Policy(spec, network, self.normalise, self.scaling_discount)


@dataclass(frozen=True)
class _EquinoxNetwork:
    """The network of `EquinoxMemory`: the arrays of its modules are the parameters."""

    cell: str
    width: int
    hidden: tuple[int, ...]
    spec: EnvSpec

    def initial_memory(self) -> Tree:
        """Zeros: one array for a GRU; the output and the cell state for an LSTM."""
        zeros = jnp.zeros(self.width)
        return (zeros, zeros) if self.cell == "LSTMCell" else zeros

    def init(self, key: jax.Array, observation: Tree, memory: Tree) -> Tree:
        """Returns the arrays of new modules."""
        import equinox as eqx

        del observation, memory
        return eqx.filter(self._modules(key), eqx.is_array)

    def apply(self, params: Tree, observation: Tree, memory: Tree) -> tuple[Any, jax.Array, Tree]:
        """Takes one step."""
        import equinox as eqx

        from stellaris.acting.networks import joined

        modules = eqx.combine(params, self._static)

        def one(x: jax.Array, memory: Tree) -> tuple[Any, jax.Array, Tree]:
            for layer in modules["hidden"]:
                x = jnp.tanh(layer(x))
            memory = modules["cell"](x, memory)
            features = memory[0] if isinstance(memory, tuple) else memory
            return modules["policy"](features), modules["value"](features), memory

        output, value, memory = jax.vmap(one)(joined(observation), memory)
        return output if self.spec.discrete else (output, modules["log_std"]), value, memory

    def _modules(self, key: jax.Array) -> dict[str, Any]:
        import equinox as eqx

        keys = iter(jax.random.split(key, len(self.hidden) + 3))
        widths = [sum(leaf.size for leaf in jax.tree.leaves(self.spec.observation)), *self.hidden]
        modules = {
            "hidden": [eqx.nn.Linear(*pair, key=next(keys)) for pair in itertools.pairwise(widths)],
            "cell": getattr(eqx.nn, self.cell)(widths[-1], self.width, key=next(keys)),
            "policy": _scaled(eqx.nn.Linear(self.width, self.spec.actions, key=next(keys)), _POLICY_GAIN),
            "value": eqx.nn.Linear(self.width, "scalar", key=next(keys)),
        }
        return modules if self.spec.discrete else modules | {"log_std": jnp.full(self.spec.actions, _LOG_STD)}

    @functools.cached_property
    def _static(self) -> Any:
        """Everything in the modules that is not an array."""
        import equinox as eqx

        shapes = eqx.filter_eval_shape(self._modules, jax.random.key(0))
        return eqx.filter(shapes, lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))


#: The first policy is nearly uniform, and most first actions are within ±1, as with `ActorCritic`.
_POLICY_GAIN, _LOG_STD = 0.01, -0.5


def _scaled(module: Any, gain: float) -> Any:
    return jax.tree.map(lambda x: gain * x if isinstance(x, jax.Array) else x, module)


def _by_name(cell: Any, library: Any) -> Any:
    """Returns the name of a class that a library has under this name; anything else unchanged."""
    name = getattr(cell, "__name__", None)
    return name if isinstance(cell, type) and getattr(library, str(name), None) is cell else cell


def _check_widths(width: Any, hidden: Any) -> None:
    if not isinstance(hidden, tuple):
        raise TypeError(f"hidden={hidden!r} is not a tuple of widths, such as (64,)")
    checks.whole(at_least=1, width=width, **{f"hidden[{i}]": one for i, one in enumerate(hidden)})
