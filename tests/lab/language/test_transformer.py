"""The transformer: the cache against the full pass, causality, padding, and what is checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.lab.language import PAD, Addition, Observation, Sorting, Transformer

TASK = Addition(most=3, base=10)
MODEL = Transformer.of(TASK, width=16, layers=2, heads=2)


@pytest.fixture(scope="module")
def params():
    """Parameters of which every part matters, unlike in the first ones, whose head is small."""
    first = MODEL.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(first)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, moved)


@pytest.fixture(scope="module")
def texts():
    """Prompts of several lengths with answers of random tokens."""
    prompts = jax.vmap(TASK.draw)(jax.random.split(jax.random.key(2), 6))
    answers = jax.random.randint(jax.random.key(3), (6, TASK.answer_length), 0, TASK.answer_symbols)
    return jnp.concatenate([prompts, answers], axis=1)


@pytest.mark.slow
def test_the_cache_gives_the_logits_of_the_full_pass(params, texts):
    """The oracle: `apply` computes each place anew from the whole text."""
    memory = MODEL.recall(params, Observation(jnp.full(6, TASK.prompt_length), texts))
    for place in range(TASK.prompt_length, TASK.length):
        so_far = jnp.where(jnp.arange(TASK.length) < place, texts, PAD)
        there = Observation(jnp.full(6, place), so_far)
        (logits, value), memory = MODEL.resume(params, memory, there)
        expected_logits, expected_value = MODEL.apply(params, there)
        np.testing.assert_allclose(logits, expected_logits, atol=1e-5)
        np.testing.assert_allclose(value, expected_value, atol=1e-5)


@pytest.mark.slow
def test_one_pass_serves_all_places(params, texts):
    places = jnp.arange(TASK.prompt_length, TASK.length)
    logits, _ = MODEL.apply(params, Observation(places[:, None], texts[None]))
    assert logits.shape == (TASK.answer_length, 6, TASK.answer_symbols)
    one, _ = MODEL.apply(params, Observation(places[2], texts[4]))
    np.testing.assert_allclose(logits[2, 4], one, atol=1e-5)


@pytest.mark.slow
def test_later_tokens_do_not_matter(params, texts):
    place = jnp.int32(TASK.prompt_length + 1)
    changed = texts[0].at[place:].set((texts[0, place:] + 1) % 10)
    logits, _ = MODEL.apply(params, Observation(place, texts[0]))
    np.testing.assert_array_equal(logits, MODEL.apply(params, Observation(place, changed))[0])
    earlier = texts[0].at[place - 1].set((texts[0, place - 1] + 1) % 10)
    assert not np.allclose(logits, MODEL.apply(params, Observation(place, earlier))[0], atol=1e-2)


@pytest.mark.slow
def test_padding_does_not_matter(params, texts):
    """The same text after two more places of padding has the same logits, whatever its positions."""
    wider = jnp.concatenate([jnp.full(2, PAD), texts[1]])
    place = jnp.int32(TASK.length - 1)
    logits, _ = MODEL.apply(params, Observation(place, texts[1]))
    np.testing.assert_allclose(MODEL.apply(params, Observation(place + 2, wider))[0], logits, atol=1e-4)


@pytest.mark.slow
def test_gradients_are_finite_where_a_text_is_padding(params):
    blank = jnp.full((2, TASK.length), PAD).at[:, TASK.prompt_length - 1].set(11)

    def total(params):
        logits, value = MODEL.apply(params, Observation(jnp.full(2, TASK.prompt_length), blank))
        return logits.sum() + value.sum()

    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(jax.grad(total)(params)))


@pytest.mark.slow
def test_the_first_policy_is_nearly_uniform(texts):
    model = Transformer.of(Sorting(base=10))
    logits, value = model.apply(model.init(jax.random.key(0)), Observation(jnp.int32(17), jnp.arange(34) % 10))
    assert float(jnp.ptp(jax.nn.softmax(logits))) < 0.1
    assert float(value) == 0.0


def test_the_default_is_small():
    shapes = jax.eval_shape(Transformer.of(Sorting(base=10)).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) < 1_000_000


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"width": 0}, "width=0"), ({"layers": 1.5}, "(?s)layers.*1.5"), ({"width": 12, "heads": 4}, r"2 \* heads = 8")],
)
def test_sizes_are_checked(sizes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Transformer.of(TASK, **sizes)
