"""`stellaris.torch`: values and gradients in PyTorch, checked against the reference vectors."""

import zlib
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from experiments.vectors import files
from experiments.vectors.entries import ENTRIES
from stellaris.torch import differentiable

torch = pytest.importorskip(
    "torch", reason="PyTorch is not in requirements.lock: pip install torch, then run this file"
)

from stellaris._core import autograd  # noqa: E402

VECTORS = files.load(files.PATH)
ppo_loss = differentiable(stellaris.ppo_loss)


@pytest.mark.parametrize("name", ENTRIES)
def test_values_and_gradients_are_those_of_the_vectors(name: str) -> None:
    """In float64, while JAX computes in float32 by default; functions of whole numbers alone return float32."""
    function = differentiable(ENTRIES[name].function)
    for case in VECTORS[name][zlib.crc32(name.encode()) % 4 :: 4]:
        wide = any(x.dtype == np.float64 for x in case.inputs.values())
        exact = {"rtol": 1e-10, "atol": 1e-12} if wide else {"rtol": 1e-6}
        inputs = {key: torch.from_numpy(x.copy()) for key, x in case.inputs.items()}
        differentiated = [inputs[key].requires_grad_() for key in case.gradients]
        found = function(**inputs, **case.settings)
        outputs = (
            found._asdict() if hasattr(found, "_asdict") else found if isinstance(found, dict) else {"result": found}
        )
        for key, x in outputs.items():
            assert not wide or x.numpy(force=True).dtype == case.outputs[key].dtype
            np.testing.assert_allclose(x.numpy(force=True), case.outputs[key], **exact, err_msg=f"{case.about}: {key}")
        floats = {key: x for key, x in outputs.items() if x.is_floating_point()}
        if case.gradients and {*floats} == {*case.cotangents}:  # a report's vectors add gradients of its properties
            cotangents = [torch.from_numpy(case.cotangents[key].copy()) for key in floats]
            gradients = torch.autograd.grad([*floats.values()], differentiated, cotangents) if floats else []
            for key, gradient in zip(case.gradients, gradients, strict=bool(floats)):
                np.testing.assert_allclose(
                    gradient.numpy(), case.gradients[key], **exact, err_msg=f"{case.about}: {key}"
                )


def test_gradients_are_finite_differences() -> None:
    """PyTorch's own check, which does not depend on JAX, agrees."""
    torch.manual_seed(0)
    reward, discount, value = (torch.rand(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 4, 5))
    assert torch.autograd.gradcheck(differentiable(stellaris.gae), (reward, discount, value))
    log_ratio, advantage = (torch.randn(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(differentiable(stellaris.sapo_loss), (log_ratio, advantage))


def test_memory_is_shared_in_both_directions() -> None:
    """Where a tensor is contiguous and aligned, as new tensors are; others are copied, to the same numbers."""
    tensor = torch.rand(64)
    assert autograd._to_jax(tensor).unsafe_buffer_pointer() == tensor.data_ptr()
    array = jnp.arange(64.0)
    assert autograd._to_torch(array).data_ptr() == array.unsafe_buffer_pointer()
    for view in (torch.rand(5, 6)[:, 1:], torch.rand(5, 6).T, torch.rand(1, 6).expand(5, 6), torch.rand(31)[1:]):
        np.testing.assert_array_equal(autograd._to_jax(view), view.numpy())


def test_results_are_separate_from_arguments_and_from_each_other() -> None:
    tensor = torch.ones(64)
    same, twice, again = differentiable(lambda x: (x, 2 * x, 2 * x))(tensor)
    for x in (same, twice, again):
        x.mul_(3)
    assert tensor.tolist() == [1.0] * 64
    assert [x[0].item() for x in (same, twice, again)] == [3.0, 6.0, 6.0]


def test_a_modified_argument_is_an_error() -> None:
    """Not a gradient at other numbers."""
    log_ratio, advantage = torch.zeros(3, requires_grad=True), torch.ones(3)
    loss = ppo_loss(log_ratio, advantage).sum()
    advantage.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_an_error() -> None:
    log_ratio = torch.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"create_graph=True: stellaris\.torch has first derivatives only"):
        torch.autograd.grad(ppo_loss(log_ratio, torch.ones(3)).sum(), log_ratio, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_dtype_stays(dtype) -> None:
    """In the value and in the gradient."""
    log_ratio = torch.zeros(3, dtype=dtype, requires_grad=True)
    loss = ppo_loss(log_ratio, torch.ones(3, dtype=dtype))
    loss.sum().backward()
    assert loss.dtype == log_ratio.grad.dtype == dtype
    assert log_ratio.grad.tolist() == [-1.0] * 3
    assert jnp.ones(1).dtype == jnp.float32  # the setting of JAX has not changed


def test_whole_numbers_are_int32() -> None:
    reward, group = torch.tensor([1.0, 0.0, 3.0, 1.0]), torch.tensor([0, 0, 5, 5])
    advantage = differentiable(stellaris.group_relative_advantage)
    assert group.dtype == torch.int64
    np.testing.assert_allclose(advantage(reward, group), [0.7071, -0.7071, 0.7071, -0.7071], atol=1e-3)
    with pytest.raises(ValueError, match="group=2147483648 does not fit into int32"):
        advantage(reward, group=group + 2**31 - 5)


def test_a_stopped_gradient_is_zero() -> None:
    log_ratio = torch.zeros(2, requires_grad=True)
    found = differentiable(stellaris.bounded_importance_weight)(log_ratio)
    assert isinstance(found, stellaris.corrections.BoundedImportanceWeight)
    assert found.kept.dtype == torch.bool
    assert not found.kept.requires_grad
    found.weight.sum().backward()
    assert log_ratio.grad.tolist() == [0.0, 0.0]


def test_without_gradients() -> None:
    with torch.no_grad():
        assert not ppo_loss(torch.zeros(2, requires_grad=True), torch.ones(2)).requires_grad
    assert not ppo_loss(torch.zeros(2), torch.ones(2)).requires_grad


def test_it_compiles_once() -> None:
    """For the same shapes and numbers; a tensor without an axis may change, and 1.0 is not 1."""
    traced = []

    def scaled(x, factor):
        traced.append(factor)
        return x * factor

    scale = differentiable(scaled)
    for _ in range(3):
        scale(torch.ones(2), 2.0)
    assert len(traced) == 1
    for number in (2.0, 3.0, 4.0):
        assert scale(torch.ones(2), torch.tensor(number)).tolist() == [number] * 2
    assert len(traced) == 2
    scale(torch.ones(2), 1.0)
    scale(torch.ones(2), 1)
    assert traced[2:] == [1.0, 1]
    assert type(traced[3]) is int


def test_trees_are_converted_leaf_by_leaf() -> None:
    gradient = {"w": torch.tensor([3.0, 0.0]), "b": (torch.tensor([4.0]),)}
    cosine = differentiable(stellaris.gradient_cosine)
    assert cosine(gradient, gradient).item() == pytest.approx(1.0)
    moved = differentiable(stellaris.reduce_by_gap)(gradient, gradient, gradient, gradient)
    assert moved["b"][0].tolist() == [4.0]


@pytest.mark.usefixtures("unchecked")
def test_errors_name_the_argument() -> None:
    log_ratio, ones = torch.zeros(3), torch.ones(3)
    with pytest.raises(ValueError, match=r"advantage has shape \(2,\): expected log_ratio's \(3,\)"):
        ppo_loss(log_ratio, torch.ones(2))
    with pytest.raises(ValueError, match=r"clip=-1\.0 is not positive"):
        ppo_loss(log_ratio, ones, clip=-1.0)
    with pytest.raises(TypeError, match=r"advantage is a ndarray: pass a torch\.Tensor"):
        ppo_loss(log_ratio, np.ones(3))
    with pytest.raises(TypeError, match=r"clip is a ArrayImpl: pass a torch\.Tensor"):
        ppo_loss(log_ratio, ones, clip=jnp.ones(3))
    with pytest.raises(TypeError, match=r"clip\[0\] is a bytearray, which cannot be hashed"):
        ppo_loss(log_ratio, ones, clip=[bytearray()])
    with pytest.raises(ValueError, match=r"advantage is on meta, for which JAX has no device: cpu is there"):
        ppo_loss(log_ratio, torch.ones(3, device="meta"))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'advantage'"):
        ppo_loss(log_ratio)


def test_it_looks_like_the_function() -> None:
    assert ppo_loss.__name__ == "ppo_loss"
    assert ppo_loss.__doc__ == stellaris.ppo_loss.__doc__


def test_it_computes_in_parallel_threads() -> None:
    """The setting for float64 belongs to one thread."""

    def gradient(number: float) -> float:
        log_ratio = torch.full((100,), number, dtype=torch.float64, requires_grad=True)
        ppo_loss(log_ratio, torch.ones(100, dtype=torch.float64), clip=9.0).sum().backward()
        return log_ratio.grad[0].item()

    with ThreadPoolExecutor(4) as pool:
        numbers = [0.01 * i for i in range(40)]
        np.testing.assert_allclose([*pool.map(gradient, numbers)], -np.exp(numbers), rtol=1e-12)
    assert not jax.config.jax_enable_x64
