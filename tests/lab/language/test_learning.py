"""Learning from groups of answers: the environment, masks, advantages, versions, corrections, and runs of the lab."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import Trajectory
from stellaris.acting import jax_env
from stellaris.acting.policies import PolicyVersion
from stellaris.lab import Constant, imposed, statistics, sweep
from stellaris.lab import language as lab
from stellaris.lab.language import GRPO, PAD, Answering, Sorting, TextPolicy, Transformer, workload
from stellaris.lab.language.learning import Tokens
from stellaris.lab.sampling import sample
from stellaris.reductions import reduce_loss

TASK = Sorting(most=3, base=10, graded=False)
END = TASK.end
ENV = Answering(TASK, group=4)
MODEL = Transformer.of(TASK, width=16, layers=1, heads=2)
SAMPLED = Answering(Sorting(most=3, base=10), group=4)
RUNS = workload(SAMPLED, MODEL, actors=2)


@functools.partial(jax.jit, static_argnums=0)
def steps_of(env, slot, tokens):
    """The last state of an environment, and its observations and steps, under given tokens."""

    def step(slot, action):
        after, stepped = jax_env.advance(env, slot, action)
        return after, (slot.observation, stepped)

    return jax.lax.scan(step, slot, tokens)


def write(env, answers, seed=0):
    """A trajectory `[T, 1]` in which one actor writes these answers to a prompt; each is a function of the solution."""
    slot = jax_env.start(env, seed, 0)
    solution = np.asarray(env.task.solution(slot.state.text[: env.task.prompt_length])).tolist()
    solution = [token for token in solution if token != PAD]
    window = env.task.answer_length + 1
    tokens = [token for answer in answers for token in [*answer(solution), *[0] * window][:window]]
    last, (observation, stepped) = steps_of(env, slot, jnp.asarray(tokens, jnp.int32))
    joined = jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]])[:, None], observation, last.observation)
    steps = len(tokens)
    return Trajectory(
        observation=joined,
        action=jnp.asarray(tokens, jnp.int32)[:, None],
        reward=stepped.reward[:, None],
        terminated=stepped.terminated[:, None],
        valid=stepped.valid[:, None],
        log_prob=jnp.full((steps, 1), -1.0),
        value=jnp.zeros((steps + 1, 1)),
        version=jnp.arange(steps, dtype=jnp.int32)[:, None],
    )


def right(solution):
    return solution


def wrong(solution):
    return [END]


def endless(solution):
    return [9] * 20


@pytest.mark.slow
def test_an_answer_is_rewarded_at_its_last_token():
    played = write(ENV, [right, wrong, endless, right])
    rewards = np.asarray(played.reward)[:, 0].reshape(4, 5)
    length = int(np.flatnonzero(rewards[0])[0]) + 1
    assert rewards[0].tolist() == [0.25 if t == length - 1 else 0.0 for t in range(5)]
    assert not rewards[1:3].any()
    assert rewards[3].tolist() == rewards[0].tolist()
    # The step after the last answer poses the next prompt.
    assert np.flatnonzero(~np.asarray(played.valid)[:, 0]).tolist() == [19]
    assert np.flatnonzero(np.asarray(played.terminated)[:, 0]).tolist() == [18]


@pytest.mark.slow
def test_tokens_after_the_end_are_masked():
    answers = GRPO(ENV).prepare(write(ENV, [right, wrong, endless, right]))
    length = np.asarray(answers.valid).sum(axis=0)
    assert length[1:3].tolist() == [1, 4]
    assert 2 <= length[0] == length[3]
    texts = np.asarray(answers.text)[TASK.prompt_length :]
    assert ((texts != PAD) == np.asarray(answers.valid)).all()
    # Each text is that of one answer, after its own prompt.
    prompt = np.asarray(answers.text)[: TASK.prompt_length]
    assert (prompt == prompt[:, :1]).all()
    assert texts[:, 2].tolist() == [9] * 4
    np.testing.assert_array_equal(answers.action[:, 2], [9] * 4)
    assert answers.exact.tolist() == [True, False, False, True]
    assert answers.reward.tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.slow
def test_what_is_masked_does_not_matter():
    """Tokens, versions and log-probabilities after the ends, even NaN, change neither loss nor gradient."""
    learner = GRPO(ENV, discard=50)
    batch = learner.prepare(write(ENV, [right, wrong, wrong, right]))
    valid = jnp.asarray(batch.valid)
    spoilt = batch._replace(
        action=jnp.where(valid, batch.action, 3),
        log_prob=jnp.where(valid, batch.log_prob, jnp.nan),
        advantage=jnp.where(valid, batch.advantage, jnp.nan),
        version=jnp.where(valid, batch.version, -1000),
    )
    params = jax.jit(MODEL.init)(jax.random.key(0))

    @jax.jit
    def gradient(batch):
        return jax.grad(lambda p: learner.loss(MODEL.apply, p, batch, version=20)[0])(params)

    for one, other in zip(*map(jax.tree.leaves, (gradient(batch), gradient(spoilt))), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ("leave-one-out", [1 / 3, -1.0, 1 / 3, 1 / 3]),  # 1 - 2/3, and 0 - 1
        ("group-mean", [0.25, -0.75, 0.25, 0.25]),
        ("group-relative", [0.5, -1.5, 0.5, 0.5]),  # the standard deviation is 1/2
    ],
)
def test_advantages_by_hand(advantage, expected):
    answers = GRPO(ENV, advantage=advantage).prepare(write(ENV, [right, wrong, right, right]))
    np.testing.assert_allclose(answers.advantage, np.broadcast_to(expected, (4, 4)), atol=1e-5)


@pytest.mark.slow
def test_groups_are_not_mixed():
    """Two prompts side by side: a group whose answers are all right has no advantage."""
    one, other = write(ENV, [right] * 4), write(ENV, [right, wrong, right, right], seed=1)
    both = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), one, other)
    answers = GRPO(ENV, advantage="group-mean").prepare(both)
    # Answer by answer, and within an answer prompt by prompt.
    assert answers.advantage[0].tolist() == [0.0, 0.25, 0.0, -0.75, 0.0, 0.25, 0.0, 0.25]


@pytest.mark.slow
def test_a_column_that_is_no_group_is_invalid():
    """Its first steps were lost, so that a later part of the episode fills the fragment."""
    played = write(ENV, [right] * 4)
    late = jax.tree.map(lambda x: jnp.roll(x, -7, axis=0), played)
    answers = GRPO(ENV).prepare(jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), played, late))
    assert np.asarray(answers.valid).any(axis=0).tolist() == [True, False] * 4
    with pytest.raises(TypeError, match=r"GRPO learns from texts: make the workload by language\.workload"):
        GRPO(ENV).prepare(played._replace(observation=jnp.zeros((21, 1, 4))))
    with pytest.raises(ValueError, match="fragment=15: a group of 4 answers has 20 steps; set fragment=20"):
        GRPO(ENV).prepare(jax.tree.map(lambda x: x[:15], played))


@pytest.mark.slow
def test_old_answers_are_discarded():
    """By their oldest token: the four answers were written from the versions 0, 5, 10 and 15 on."""
    batch = GRPO(ENV).prepare(write(ENV, [right, wrong, endless, right]))
    params = jax.jit(MODEL.init)(jax.random.key(0))

    def learned(discard):
        return GRPO(ENV, discard=discard).loss(MODEL.apply, params, batch, version=18)[1]

    assert [int(learned(discard)["answers"]) for discard in (None, 18, 17, 8, 2)] == [4, 4, 3, 2, 0]
    assert int(learned(8)["version_oldest"]) == 10
    with pytest.raises(ValueError, match="version=None with discard=3"):
        GRPO(ENV, discard=3).loss(MODEL.apply, params, batch)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_answers_of_newer_versions_are_not_discarded():
    """Though differences of unsigned versions wrap."""
    batch = GRPO(ENV).prepare(write(ENV, [right, wrong, endless, right]))
    batch = batch._replace(version=batch.version.astype(jnp.uint32))
    params = jax.jit(MODEL.init)(jax.random.key(0))
    assert GRPO(ENV, discard=3).loss(MODEL.apply, params, batch, version=2)[1]["answers"] == 4


@pytest.mark.slow
def test_a_refresh_in_mid_sequence_records_each_tokens_version():
    """Pieces of 4 steps, windows of 5: each token has the log-probability of the version that wrote it."""
    policy = RUNS.make_policy(ENV.spec)
    normaliser = statistics.normaliser(statistics.empty(policy.statistics()))
    versions = [jax.tree.map(lambda x: 2.0 * x, jax.jit(MODEL.init)(jax.random.key(seed))) for seed in (1, 2)]
    slots = jax.jit(jax.vmap(lambda n: jax_env.start(ENV, n, 0)))(jnp.arange(3))
    piece = jax.jit(functools.partial(sample, ENV, policy, length=4))
    parts = []
    for number in range(5):
        version = PolicyVersion(versions[number % 2], normaliser)
        keys = jax.random.split(jax.random.key(number), 3)
        slots, columns, _ = piece(version, jnp.int32(6 + number), slots, keys)
        parts.append(columns)
    # A piece's last observation is the next piece's first.
    whole = jax.tree.map(lambda *x: jnp.concatenate([*(part[:4] for part in x[:-1]), x[-1]]), *parts)
    answers = GRPO(ENV).prepare(whole)
    valid, version = np.asarray(answers.valid), np.asarray(answers.version)
    step = 5 * np.repeat(np.arange(4), 3) + np.arange(4)[:, None]  # three prompts, answer by answer
    np.testing.assert_array_equal(version, 6 + step // 4)
    texts = TextPolicy(TASK, MODEL)
    even, odd = (np.asarray(texts.log_probs(params, answers.text.T)).T for params in versions)
    expected = np.where(version % 2 == 0, even, odd)
    np.testing.assert_allclose(np.where(valid, answers.log_prob, 0.0), np.where(valid, expected, 0.0), atol=1e-5)
    assert np.abs(even - odd)[valid].max() > 0.1


CORRECTIONS = ["GRPO", "Truncated", "Decoupled", "Bounded", "GSPO", "TOPR", "VESPO", "DPPO", "M2PO", "SAPO"]


@pytest.mark.parametrize("name", CORRECTIONS)
def test_fresh_answers_need_no_correction(name):
    """Where every ratio is 1, all corrections have the policy gradient of the uncorrected loss."""
    behaviour = -jax.random.exponential(jax.random.key(0), (4, 6))
    valid = jnp.arange(4)[:, None] < jnp.array([4, 1, 2, 3, 4, 2])
    advantage = jnp.broadcast_to(jax.random.normal(jax.random.key(1), (6,)), (4, 6))

    def gradient(learner):
        def loss(log_prob):
            log_prob = jnp.where(valid, log_prob, 0.0)
            log_ratio = log_prob - jnp.where(valid, behaviour, 0.0)
            tokens = Tokens(log_prob, log_ratio, jnp.zeros((4, 6)), advantage, valid, cap=None)
            return reduce_loss(learner.policy_loss(tokens), valid=valid, over=learner.over)

        return jax.jit(jax.grad(loss))(behaviour)

    learner = getattr(lab, name)(ENV)
    np.testing.assert_allclose(gradient(learner), gradient(lab.Uncorrected(ENV, over=learner.over)), atol=1e-6)


TOKENS = Tokens(
    log_prob=jnp.log(jnp.array([[0.5, 0.2], [0.4, 0.9]])),
    log_ratio=jnp.log(jnp.array([[2.0, 0.5], [2.0, 1.0]])),
    proximal_log_ratio=jnp.log(jnp.array([[2.0, 0.5], [4.0, 1.0]])),
    advantage=jnp.array([[1.0, -1.0], [1.0, -1.0]]),
    valid=jnp.array([[True, True], [True, False]]),
    cap=None,
)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("Uncorrected", {}, -np.log([0.5, 0.4])),
        ("Truncated", {"ratio_cap": 1.5}, -1.5 * np.log([0.5, 0.4])),
        ("Bounded", {"high": 3.0}, [-2.0, -1.5]),  # 2 * 1 and 3 * 0.5
        ("Bounded", {"high": 3.0, "outside": "mask"}, [-2.0, 0.0]),
        ("Bounded", {"high": 5.0, "ratio": "sequence"}, [-5.0, -2.5]),  # 8, truncated
        ("Bounded", {"high": 5.0, "ratio": "mean"}, [-np.sqrt(8), -np.sqrt(8) / 2]),
        ("Decoupled", {"most": 3.0}, [-2.0, 0.0]),
        ("GSPO", {"clip": 0.5}, [-1.5, -1.5]),  # the geometric mean is 2
        ("TOPR", {}, -np.log([0.5, 0.4])),  # a positive advantage has weight 1
        ("GRPO", {"clip": 0.2, "clip_high": 0.3}, [-1.3, -1.3]),
        ("DPPO", {"max_distance": 0.22}, [0.0, -2.0 * np.log(0.4)]),  # they moved outward by 0.25 and 0.2
    ],
)
def test_stale_tokens_by_hand(name, settings, expected):
    """The first answer, of two tokens."""
    loss = getattr(lab, name)(ENV, **settings).policy_loss(TOKENS)
    np.testing.assert_allclose(loss[:, 0], expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Uncorrected", *CORRECTIONS])
def test_only_what_is_truncated_is_reported(name):
    """With a peer, either the loss changes and a truncated share is reported, or neither."""
    learner = getattr(lab, name)(ENV)
    own, peer = (jax.tree.map(lambda x: 2.0 * x, jax.jit(MODEL.init)(jax.random.key(seed))) for seed in (1, 2))
    played = write(ENV, [right, wrong, endless, right])
    batch = learner.prepare(played._replace(log_prob=jnp.full_like(played.log_prob, -3.0)), MODEL.apply, own)
    alone, _ = learner.loss(MODEL.apply, own, batch)
    capped, metrics = learner.loss(MODEL.apply, own, batch, (peer,))
    truncated = name in ("GRPO", "Decoupled", "M2PO", "SAPO")
    assert (float(metrics["truncation_fraction"]) > 0) == (float(capped) != float(alone)) == truncated


@pytest.mark.slow
def test_tokens_outside_of_the_trust_region_are_counted():
    """Its upper half has a width of its own; of a proximal correction it lies around the newest policy."""
    params = jax.jit(MODEL.init)(jax.random.key(0))
    played = write(ENV, [right, wrong, endless, right])
    log_prob = lab.Decoupled(ENV).prepare(played, MODEL.apply, params).proximal_log_prob - jnp.log(1.4)

    def outside(learner):
        batch = learner.prepare(played, MODEL.apply, params)._replace(log_prob=log_prob)  # every ratio is 1.4
        return float(learner.loss(MODEL.apply, params, batch)[1]["clip_fraction"])

    assert [outside(GRPO(ENV, clip=0.2, clip_high=high)) for high in (None, 0.3, 0.5)] == [1.0, 1.0, 0.0]
    assert outside(lab.Decoupled(ENV, clip=0.2)) == 0.0


@pytest.fixture(scope="module")
def result():
    """Two lags, with all answers and without those of more than one version ago."""
    algorithms = {"all": GRPO(SAMPLED), "fresh": GRPO(SAMPLED, discard=1)}
    result = sweep(RUNS, algorithms, lambda lag: imposed(5, actors=2, data=Constant(lag)), {"lag": [0, 2]})
    return result.isel(seed=0)


@pytest.mark.slow
def test_a_lag_is_imposed_on_tokens(result):
    every = result.sel(algorithm="all")
    assert every.data_lag_mean.values.tolist() == [[0.0] * 5, [0.0, 1.0, 2.0, 2.0, 2.0]]
    assert (every.answers == 8).all()
    np.testing.assert_allclose(every.kl.sel(lag=0), 0.0, atol=1e-6)
    assert (every.kl.sel(lag=2).isel(update=slice(2, None)) > 1e-6).all()


@pytest.mark.slow
def test_stale_answers_are_discarded_in_a_run(result):
    assert result.answers.sel(algorithm="fresh").values.tolist() == [[8.0] * 5, [8.0, 8.0, 0.0, 0.0, 0.0]]


@pytest.mark.slow
def test_returns_of_episodes_are_rewards_of_answers(result):
    every = result.sel(algorithm="all")
    np.testing.assert_allclose(every.episode_return, every.reward, atol=1e-6)
    assert (every.episodes == 2).all()


@pytest.mark.slow
def test_a_fragment_in_pieces_has_several_versions():
    """Pieces of 10 steps: two answers of version `u - 2`, and two of version `u`, which alone are young enough."""
    pieces = workload(SAMPLED, MODEL, actors=2, refresh=10)
    schedule = imposed(4, actors=2, data=[Constant(2), Constant(0)])
    result = sweep(pieces, GRPO(SAMPLED, discard=1), schedule).isel(seed=0)
    assert result.answers.values.tolist() == [8.0, 8.0, 4.0, 4.0]
    assert result.data_lag_max.values.tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("advantage", "critic"), ("over", "words"), ("clip", 0.0), ("discard", -1), ("minibatch_size", 0)],
)
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        GRPO(ENV, **{name: value})
    with pytest.raises(ValueError, match=r"environment\.group=1: .* pass 2 or more"):
        GRPO(Answering(ENV.task, group=1))
    with pytest.raises(TypeError, match="environment"):
        GRPO(TASK)


@pytest.mark.slow
def test_rewards_rise():
    """From 0 exact answers to more than half, from the first parameters on, on two seeds."""
    env = Answering(Sorting(most=2, base=4), group=8)
    learner = GRPO(env, learning_rate=3e-3, entropy_coefficient=0.03)
    small = workload(env, Transformer.of(env.task, width=32, layers=1, heads=2), actors=8)
    exact = sweep(small, learner, imposed(150, actors=8), seeds=2).exact
    assert (exact.isel(update=slice(0, 10)).mean("update") < 0.25).all()
    assert (exact.isel(update=slice(-10, None)).mean("update") > 0.55).all()
