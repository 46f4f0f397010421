"""Tasks in text: prompts, solutions by hand, rewards, and the lengths of answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.lab.language import PAD, Addition, Sorting

PLUS, EQUALS, END = 12, 11, 10


def padded(tokens, length, *, left=False):
    padding = [PAD] * (length - len(tokens))
    return np.array([*padding, *tokens] if left else [*tokens, *padding], np.int32)


def sum_prompt(task, first, second):
    """The prompt of a sum, from Python's decimal digits."""
    tokens = [*map(int, str(first)), PLUS, *map(int, str(second)), EQUALS]
    return padded(tokens, task.prompt_length, left=True)


@pytest.mark.parametrize(
    ("first", "second", "digits"),
    [
        (0, 0, [0]),
        (3, 4, [7]),
        (5, 5, [0, 1]),  # a carry makes the sum longer
        (99, 1, [0, 0, 1]),  # a carry runs through a 9
        (1, 99, [0, 0, 1]),
        (57, 66, [3, 2, 1]),
        (999, 999, [8, 9, 9, 1]),
        (100, 5, [5, 0, 1]),  # zeros in the middle, and no carry
    ],
)
def test_sums_by_hand(first, second, digits):
    task = Addition(most=3, base=10)
    prompt = sum_prompt(task, first, second)
    assert task.solution(prompt).tolist() == padded([*digits, END], task.answer_length).tolist()
    assert bool(task.exact(prompt, padded([*digits, END], task.answer_length)))


@pytest.mark.slow
def test_sums_are_pythons():
    """Drawn prompts, read back as numbers; the summands' highest digits are not 0."""
    task = Addition(most=5, base=10)
    prompts = jax.vmap(task.draw)(jax.random.split(jax.random.key(0), 200))
    solutions = jax.jit(jax.vmap(task.solution))(prompts)
    for prompt, solution in zip(np.asarray(prompts).tolist(), np.asarray(solutions).tolist(), strict=True):
        symbols = "".join("0123456789 =+"[token] for token in prompt if token != PAD)
        first, second = symbols.removesuffix("=").split("+")
        assert (str(int(first)), str(int(second))) == (first, second)
        digits = [int(digit) for digit in reversed(str(int(first) + int(second)))]
        assert solution == padded([*digits, END], task.answer_length).tolist()


@pytest.mark.parametrize("task", [Sorting(most=3), Addition(most=3)])
def test_prompts_of_64_bits_have_the_same_solutions(task):
    prompt = task.draw(jax.random.key(0))
    with jax.enable_x64(True):
        solution = task.solution(np.asarray(prompt, np.int64))
    assert (solution.dtype, solution.tolist()) == (jnp.int32, task.solution(prompt).tolist())


def test_a_sum_without_its_carry_is_wrong():
    task = Addition(most=2, base=10, graded=False)
    prompt = sum_prompt(task, 57, 66)
    rewards = [
        float(task.reward(prompt, np.array(answer))) for answer in ([3, 2, 1, END], [3, 1, 1, END], [3, 2, END, PAD])
    ]
    assert rewards == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ([1, 3, 3, END], 1.0),
        ([1, 3, END], 2 / 4),  # ended too early: the right tokens are 1 and 3
        ([1, 3, 4, END], 3 / 4),
        ([1, 3, 3, 4, END], 3 / 5),  # ended too late: the longer of the two has five places
        ([1, 3, 3, 4, 5], 3 / 5),  # never ended
        ([END], 0.0),
    ],
)
def test_a_graded_reward_is_the_share_of_right_places(answer, share):
    prompt = padded([3, 1, 3, EQUALS], 5, left=True)
    answer = padded(answer, 5)
    assert float(Sorting(most=4, base=10, graded=True).reward(prompt, answer)) == pytest.approx(share)
    assert float(Sorting(most=4, base=10, graded=False).reward(prompt, answer)) == (share == 1.0)


@pytest.mark.slow
def test_lists_are_sorted():
    task = Sorting(most=6, base=10)
    prompts = np.asarray(jax.vmap(task.draw)(jax.random.split(jax.random.key(0), 200)))
    for prompt, solution in zip(prompts, np.asarray(jax.vmap(task.solution)(prompts)), strict=True):
        digits = [token for token in prompt.tolist() if token not in (PAD, EQUALS)]
        assert prompt.tolist() == padded([*digits, EQUALS], 7, left=True).tolist()
        assert solution.tolist() == padded([*sorted(digits), END], 7).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("tail", [0.0, 1.0, 2.0])
def test_lengths_follow_the_power_law(tail):
    task = Sorting(most=8, base=10, tail=tail)
    prompts = jax.jit(jax.vmap(task.draw))(jax.random.split(jax.random.key(1), 20_000))
    lengths = np.sum(np.asarray(prompts) != PAD, axis=1) - 1
    weights = np.arange(1, 9.0) ** -tail
    np.testing.assert_allclose(np.bincount(lengths, minlength=9)[1:] / 20_000, weights / weights.sum(), atol=0.012)


@pytest.mark.parametrize("task", [Sorting, Addition])
@pytest.mark.parametrize(("name", "value"), [("most", 0), ("most", 1.5), ("base", 1), ("tail", -1.0)])
def test_settings_are_checked(task, name, value):
    with pytest.raises((TypeError, ValueError), match=f"(?s){name}.*{value}"):
        task(**{name: value})


@pytest.mark.slow
def test_rewards_are_pure_functions_of_whole_batches():
    task = Addition(most=2, base=10)
    prompts = jax.vmap(task.draw)(jax.random.split(jax.random.key(0), 5))
    assert jax.vmap(task.reward)(prompts, jax.vmap(task.solution)(prompts)).tolist() == [1.0] * 5
    nothing = jnp.full((5, task.answer_length), PAD)
    assert jax.vmap(task.reward)(prompts, nothing).tolist() == [0.0] * 5
