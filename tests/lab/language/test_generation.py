"""Generation: log-probabilities against the full pass, ends of answers, and parameters that change in mid-sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.lab.language import PAD, Addition, Sorting, TextPolicy, Transformer, WarmStart

TASK = Addition(most=2, base=10)
POLICY = TextPolicy(TASK, Transformer.of(TASK, width=16, layers=2, heads=2))
KEY = jax.random.key(7)


def moved(seed):
    """Parameters of which every part matters."""
    leaves, tree = jax.tree.flatten(jax.jit(POLICY.network.init)(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(
        tree, [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    )


@pytest.fixture(scope="module")
def older():
    return moved(1)


@pytest.fixture(scope="module")
def newer():
    return moved(2)


@pytest.fixture(scope="module")
def prompts():
    return POLICY.prompts(jax.random.key(3), 32)


@pytest.fixture(scope="module")
def texts(older, prompts):
    return POLICY.generate(older, prompts, KEY)


@pytest.mark.slow
def test_log_probs_of_the_cache_are_those_of_the_full_pass(older, newer, texts):
    np.testing.assert_allclose(texts.log_prob, POLICY.log_probs(older, texts.text), atol=1e-5)
    assert not np.allclose(texts.log_prob, POLICY.log_probs(newer, texts.text), atol=0.1)


@pytest.mark.slow
def test_nothing_follows_the_end(texts):
    answers = np.asarray(texts.text)[:, TASK.prompt_length :]
    for answer, written, log_prob, version in zip(answers, texts.written, texts.log_prob, texts.version, strict=True):
        ends = np.flatnonzero(answer == TASK.end)
        length = ends[0] + 1 if len(ends) else TASK.answer_length
        assert int(written) == length
        assert ((answer != PAD) == (np.arange(TASK.answer_length) < length)).all()
        assert ((np.asarray(log_prob) < 0) == (answer != PAD)).all()
        assert version.tolist() == [0] * length + [-1] * (TASK.answer_length - length)
    assert len(set(np.asarray(texts.written).tolist())) > 1
    assert bool(texts.ended.all())


@pytest.mark.slow
def test_prompts_are_kept(texts, prompts):
    np.testing.assert_array_equal(texts.text[:, : TASK.prompt_length], prompts)


@pytest.mark.slow
def test_a_refresh_in_mid_sequence_records_the_version_of_each_token(older, newer, prompts):
    first = POLICY.generate(older, prompts, KEY, tokens=2, version=4)
    both = POLICY.generate(newer, first, jax.random.key(8), version=5)
    versions = np.asarray(both.version)
    written = np.asarray(both.written)[:, None]
    places = np.arange(TASK.answer_length)
    np.testing.assert_array_equal(versions, np.where(places >= written, -1, np.where(places < 2, 4, 5)))
    assert (versions == 5).any()
    np.testing.assert_array_equal(both.text[:, : TASK.prompt_length + 2], first.text[:, : TASK.prompt_length + 2])
    # Each token has the log-probability of the whole text so far under the parameters that wrote it.
    expected = np.where(versions == 4, POLICY.log_probs(older, both.text), POLICY.log_probs(newer, both.text))
    np.testing.assert_allclose(both.log_prob, np.where(versions >= 0, expected, 0.0), atol=1e-5)


@pytest.mark.slow
def test_a_refresh_with_equal_parameters_changes_no_probability(older, prompts):
    """Greedy, so that the random numbers do not matter."""
    whole = POLICY.generate(older, prompts, KEY, greedy=True)
    parts = POLICY.generate(older, prompts, KEY, tokens=1, greedy=True)
    parts = POLICY.generate(older, parts, KEY, tokens=2, greedy=True)
    parts = POLICY.generate(older, parts, KEY, greedy=True)
    np.testing.assert_array_equal(parts.text, whole.text)
    np.testing.assert_allclose(parts.log_prob, whole.log_prob, atol=1e-5)


@pytest.mark.slow
def test_samples_have_the_probabilities_of_the_logits(older):
    """The first tokens of many answers to one prompt, against the policy's probabilities."""
    n = 4000
    prompt = jnp.broadcast_to(TASK.draw(jax.random.key(5)), (n, TASK.prompt_length))
    texts = POLICY.generate(older, prompt, KEY, tokens=1)
    tokens = np.asarray(texts.text)[:, TASK.prompt_length]
    each = jnp.full((TASK.answer_symbols, TASK.answer_length), PAD).at[:, 0].set(jnp.arange(TASK.answer_symbols))
    alone = jnp.concatenate([prompt[: TASK.answer_symbols], each], axis=1)
    probabilities = np.exp(np.asarray(POLICY.log_probs(older, alone))[:, 0])
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(np.bincount(tokens, minlength=11) / n, probabilities, atol=0.03)


@pytest.mark.slow
def test_a_warm_start_imitates_solutions():
    task = Sorting(most=2, base=3)
    network = Transformer.of(task, width=16, layers=1, heads=2)
    shares = []
    for steps in (0, 150):
        policy = TextPolicy(task, WarmStart(network, task, steps=steps, batch=32, learning_rate=1e-2))
        params = jax.jit(policy.network.init)(jax.random.key(0))
        shares.append(float(policy.accuracy(params, KEY, n=200)))
    assert shares[0] < 0.5
    assert shares[1] > 0.9


@pytest.mark.slow
def test_arguments_are_checked(older, prompts):
    longer = jnp.zeros((4, POLICY.task.length + 1), jnp.int32)
    for call in (POLICY.rewards, lambda text: POLICY.log_probs(older, text)):
        with pytest.raises(ValueError, match=rf"text has the shape \(4, {POLICY.task.length + 1}\): expected \[N, "):
            call(longer)
    with pytest.raises(ValueError, match="n=0 is below 1"):
        POLICY.accuracy(older, jax.random.key(0), n=0)
    with pytest.raises(ValueError, match=r"prompts have the shape \(32, 5\): expected \[N, 6\]"):
        POLICY.generate(older, prompts[:, 1:], KEY)
    with pytest.raises(ValueError, match="tokens=0"):
        POLICY.generate(older, prompts, KEY, tokens=0)
    with pytest.raises(TypeError, match="task"):
        TextPolicy("sorting", POLICY.network)
    with pytest.raises(TypeError, match="network"):
        TextPolicy(TASK, None)
