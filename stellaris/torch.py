"""The pure functions for PyTorch: a wrapper that passes tensors to JAX and gradients back, without copies on a CPU."""

import functools
from collections.abc import Callable
from typing import Any

from stellaris._core.extras import needs


def differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a pure function of JAX arrays into a function of PyTorch tensors that autograd can differentiate.

    JAX computes values and gradients, and compiles both once for the shapes and dtypes of the tensors and for the
    values of all other arguments. Wrap a function once, outside of the training loop.

    Args:
      function: any function of this library that takes and returns arrays, or a composition of them. It must be pure:
        JAX traces it. Named tuples and other trees of arrays are converted leaf by leaf.

    Returns:
      A function with the same arguments, positional or by keyword. Tensors may require gradients; the other arguments
      are numbers, strings, bools or None, and constants of the compiled program. Pass a number that changes in each
      step as a tensor without an axis.

      Tensors of floats keep their dtype. float64 is computed in float64, whether or not JAX has it enabled. int64
      tensors, PyTorch's default, become int32, the library's integers. On a CPU, memory is shared in both directions,
      but tensors that are not contiguous or not aligned to 64 bytes are copied. Results do not share memory with the
      arguments, so they may be modified in place. If the function stops a gradient, PyTorch's gradient is zero.

    Raises:
      ModuleNotFoundError: if PyTorch is not installed.
      TypeError: at a call, if an argument is an array of NumPy or JAX, or cannot be hashed.
      ValueError: at a call, if a number does not fit into int32, or JAX has no device for a tensor. The function's
        errors pass through; but errors about the *values* of tensors do not occur, because JAX traces the tensors.
      RuntimeError: at a gradient, if a tensor was modified in place after the call, or with `create_graph=True`.

    Source:
      The DLPack protocol, in `jax.dlpack` and `torch.utils.dlpack`, and `torch.autograd.Function`.

    Example:
      >>> import torch
      >>> from stellaris import ppo_loss
      >>> log_ratio = torch.tensor([0.0, 0.5], requires_grad=True)
      >>> loss = differentiable(ppo_loss)(log_ratio, torch.tensor([1.0, 1.0]), clip=0.2)
      >>> loss.sum().backward()
      >>> print(loss.detach(), log_ratio.grad)
      tensor([-1.0000, -1.2000]) tensor([-1.,  0.])
    """
    with needs("stellaris.torch"):
        from stellaris._core.autograd import call

    @functools.wraps(function)
    def with_tensors(*args: Any, **kwargs: Any) -> Any:
        return call(function, *args, **kwargs)

    return with_tensors
