"""One update: the same loss and gradients however the batch is cut, ordered, padded or spread."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import TokenBatch
from agent_rl.errors import TrainingError
from agent_rl.train.batch import make_micro_batches
from agent_rl.train.logprobs import token_logprobs
from agent_rl.train.update import Mismatch, UpdateSettings, accumulate, count_batch, store_old_pass, update

SETTINGS = UpdateSettings(temperature=1.0, max_batch_tokens=10_000, logprob_chunk_tokens=64, drop_uniform_groups=True)
AGGREGATES = ["token_mean", "group_token_mean", "sequence_mean", "constant_length"]


def run(policy, algo, sequences, cut=SETTINGS, **kwargs):
    """(metrics, weights after the step) of one update with plain SGD-like visibility: AdamW on equal gradients."""
    seen: dict[str, torch.Tensor] = {}
    step = policy.step

    def spy(lr: float) -> float:
        seen.update({name: gradient.clone() for name, gradient in policy.gradients().items()})
        return step(lr)

    policy.step = spy
    metrics = update(policy, Objective(algo), sequences, cut, lr=1e-3, **kwargs)
    policy.step = step
    return metrics, seen


def assert_same(first, second, tolerance: float = 2e-6) -> None:
    (metrics, gradients), (other_metrics, other_gradients) = first, second
    loss, other = metrics["objective/loss"], other_metrics["objective/loss"]
    assert loss == pytest.approx(other, rel=tolerance, abs=1e-8)
    assert gradients.keys() == other_gradients.keys()
    for name, gradient in gradients.items():
        scale = float(other_gradients[name].norm())
        assert scale > 0, name
        assert float((gradient - other_gradients[name]).norm()) <= tolerance * scale, name


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_loss_and_gradients_do_not_depend_on_the_cut(make_policy, make_sequences, grpo, aggregate) -> None:
    length = 11 if aggregate == "constant_length" else None
    algo = grpo(aggregate=aggregate, constant_length_tokens=length, token_weight={"kind": "probability"})
    whole = run(make_policy(), algo, make_sequences(9))
    assert abs(whole[0]["objective/loss"]) > 1e-3
    for budget in (1, 25, 60):
        assert_same(run(make_policy(), algo, make_sequences(9), replace(SETTINGS, max_batch_tokens=budget)), whole)
    assert_same(run(make_policy(), algo, make_sequences(9), replace(SETTINGS, logprob_chunk_tokens=3)), whole)


@given(st.permutations(range(8)), st.integers(1, 120))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nor_on_the_order_of_the_sequences(make_policy, make_sequences, grpo, order, budget) -> None:
    algo, sequences = grpo(aggregate="group_token_mean"), make_sequences(8)
    whole = run(make_policy(), algo, make_sequences(8))
    shuffled = [sequences[index] for index in order]
    assert_same(run(make_policy(), algo, shuffled, replace(SETTINGS, max_batch_tokens=budget)), whole)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_nor_on_the_ranks_that_share_it(make_policy, make_sequences, grpo, gradients, aggregate) -> None:
    """Each rank works on its sequences with the counts of the whole batch; gradients are summed over ranks."""
    algo = grpo(aggregate=aggregate, constant_length_tokens=11 if aggregate == "constant_length" else None)
    sequences = make_sequences(8)
    whole = run(make_policy(), algo, make_sequences(8))
    counts, objective = count_batch(sequences), Objective(algo)
    policy, loss = make_policy(), 0.0
    for rank in range(3):
        chosen = list(range(rank, 8, 3))
        for batch in make_micro_batches([sequences[i] for i in chosen], 10_000, policy.device):
            found = token_logprobs(policy.model, batch, temperature=1.0, chunk_tokens=64)
            members = torch.tensor([chosen[i] for i in batch.sequences])[batch.rows]
            out = objective.loss(
                TokenBatch(
                    logp=found.logp,
                    logp_old=found.logp.detach(),
                    advantage=torch.tensor([s.advantage for s in sequences])[members],
                    mask=torch.ones(len(members), dtype=torch.bool),
                    sequence=members,
                    group=torch.tensor([s.group for s in sequences])[members],
                    counts=counts,
                )
            )
            out.loss.backward()
            loss += float(out.loss.detach())
    assert_same(({"objective/loss": loss}, gradients(policy)), whole)


def test_tokens_after_the_end_of_a_sequence_are_padding(make_policy, make_sequences, grpo) -> None:
    """A longer neighbour in the batch, or untrained tokens at the end, change nothing."""
    sequences = make_sequences(4)
    for sequence in sequences:
        sequence.ids = sequence.ids + [3] * 17
        sequence.mask = sequence.mask + [0] * 17
        sequence.sampler_logprobs = sequence.sampler_logprobs + [0.0] * 17
    assert_same(run(make_policy(), grpo(), sequences), run(make_policy(), grpo(), make_sequences(4)))


def test_masked_tokens_pull_at_nothing(make_policy, make_sequences, grpo) -> None:
    """Untrained rows of the output layer get the gradient that the trained positions alone give them."""
    policy, sequences = make_policy(dtype=torch.float64), make_sequences(3)
    _, gradients = run(policy, grpo(), sequences)
    expected = make_policy(dtype=torch.float64)
    total = sum(sequence.trained for sequence in sequences)
    for sequence in sequences:
        logits = expected.model(input_ids=torch.tensor([sequence.ids])).logits[0]
        logp = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(sequence.ids[1:])[:, None])[:, 0]
        (-(logp * torch.tensor(sequence.mask[1:])).sum() * sequence.advantage / total).backward()
    for (name, _), master in zip(expected._named, expected._masters, strict=True):
        torch.testing.assert_close(gradients[name], master.grad, atol=1e-6, rtol=1e-4)


def test_batch_without_a_trained_token(make_policy, make_sequences, grpo) -> None:
    """huggingface/trl#3248: 0 / 0 was NaN weights. Right: loss 0, no step, and it is said."""
    policy, sequences = make_policy(), make_sequences(3)
    for sequence in sequences:
        sequence.mask = [0] * len(sequence.mask)
    before = {name: value.clone() for name, value in policy.state().items()}
    metrics = update(policy, Objective(grpo()), sequences, SETTINGS, lr=1.0)
    assert metrics["objective/loss"] == 0.0
    assert metrics["objective/grad_norm"] == 0.0
    assert metrics["objective/empty_batch"] == 1.0
    after = policy.state()
    assert before.keys() == after.keys(), "no moments were made"
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_no_sequence_at_all(make_policy, grpo) -> None:
    assert update(make_policy(), Objective(grpo()), [], SETTINGS, lr=1.0)["objective/empty_batch"] == 1.0


def test_truncated_sample_leaves_numerator_and_denominator(make_policy, make_sequences, grpo) -> None:
    """huggingface/trl#6439."""
    sequences = make_sequences(3)
    masked = copy.deepcopy(sequences[:2])
    extra = copy.deepcopy(sequences[2])
    extra.mask = [0] * len(extra.mask)
    assert_same(run(make_policy(), grpo(), [*masked, extra]), run(make_policy(), grpo(), sequences[:2]))


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_uniform_groups_are_skipped_with_the_same_gradient(make_policy, make_sequences, grpo, aggregate) -> None:
    algo = grpo(aggregate=aggregate, constant_length_tokens=11 if aggregate == "constant_length" else None)

    def sequences():
        made = make_sequences(12)
        for sequence in made[4:8]:
            sequence.advantage = 0.0
        return made

    worked = run(make_policy(), algo, sequences(), replace(SETTINGS, drop_uniform_groups=False))
    skipped = run(make_policy(), algo, sequences())
    assert worked[0]["objective/forward_sequences"] == 12
    assert skipped[0]["objective/forward_sequences"] == 8
    assert_same(skipped, worked)


def test_nothing_is_skipped_where_the_kl_pulls(make_policy, make_sequences, grpo) -> None:
    policy, sequences = make_policy(), make_sequences(4)
    sequences[0].advantage = 0.0
    policy.freeze_reference()
    assert run(policy, grpo(beta=0.1), sequences)[0]["objective/forward_sequences"] == 4


class Held:
    """A tensor that waits for the backward pass; ``peak`` is the most bytes that waited at once."""

    now = peak = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        Held.now += tensor.nbytes
        Held.peak = max(Held.peak, Held.now)

    def __del__(self) -> None:
        Held.now -= self.tensor.nbytes


def test_more_work_takes_no_more_memory_and_no_more_tokens_each(make_policy, make_sequences, grpo) -> None:
    """Four times the sequences are four times the micro-batches, one at a time: the fullest one decides."""

    def cost(count: int) -> tuple[float, int]:
        policy, tokens = make_policy(), []
        policy.decoder.register_forward_pre_hook(
            lambda *args: tokens.append(args[-1]["input_ids"].numel()), with_kwargs=True
        )
        Held.now = Held.peak = 0
        with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
            accumulate(policy, Objective(grpo()), make_sequences(count), replace(SETTINGS, max_batch_tokens=120))
        assert len(tokens) >= count // 16
        assert max(tokens) <= 120
        return Held.peak / max(tokens), sum(tokens)

    small, large = cost(32), cost(128)
    assert large[0] <= 1.05 * small[0]
    assert large[1] <= 4.4 * small[1]


# ------------------------------------------------------------ several updates on the same rollouts


def test_ratio_is_one_before_the_first_step_for_every_sequence(make_policy, make_sequences, grpo) -> None:
    policy, sequences = make_policy(), make_sequences(11)
    store_old_pass(policy, sequences, replace(SETTINGS, max_batch_tokens=45))
    for sequence in sequences:
        assert sequence.old_logprobs is not None
        assert len(sequence.old_logprobs) == sequence.trained
    # A different cut than the one they were stored under.
    metrics, _ = run(policy, grpo(), sequences[::-1], replace(SETTINGS, max_batch_tokens=70))
    assert metrics["objective/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["objective/ratio_max"] == pytest.approx(1.0, abs=2e-5)


def test_second_update_is_measured_from_the_policy_that_sampled(make_policy, make_sequences, grpo) -> None:
    policy, sequences = make_policy(), make_sequences(6)
    store_old_pass(policy, sequences, SETTINGS)
    first = update(policy, Objective(grpo()), sequences, SETTINGS, lr=3e-3)
    second = update(policy, Objective(grpo()), sequences, SETTINGS, lr=3e-3)
    assert first["objective/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert second["objective/ratio_max"] > 1.01
    (batch,) = make_micro_batches(sequences, 10_000, policy.device)
    before = make_policy()
    with torch.no_grad():
        old = token_logprobs(before.model, batch, temperature=1.0, chunk_tokens=64).logp
    stored = torch.cat([sequences[index].old_logprobs for index in batch.sequences])
    torch.testing.assert_close(stored, old, atol=1e-6, rtol=0)


# ------------------------------------------------------------ reference


def test_reference_is_only_asked_where_beta_is_above_0(make_policy, make_sequences, grpo) -> None:
    policy = make_policy()
    policy.freeze_reference()
    calls = []
    policy.reference.get_decoder().register_forward_pre_hook(lambda *_: calls.append(1))
    run(policy, grpo(), make_sequences(4))
    assert not calls
    metrics, _ = run(policy, grpo(beta=0.5), make_sequences(4))
    assert calls
    assert metrics["objective/kl"] > 0, "the policy has left the reference by one step"


def test_reference_stays_where_it_was_frozen(make_policy, make_sequences, grpo) -> None:
    policy = make_policy()
    policy.freeze_reference()
    first, _ = run(policy, grpo(beta=0.5), make_sequences(4))
    assert first["objective/kl"] == pytest.approx(0.0, abs=1e-6)
    for _ in range(3):
        run(policy, grpo(beta=0.5), make_sequences(4))
    initial = make_policy().model.state_dict()
    assert all(torch.equal(value, initial[name]) for name, value in policy.reference.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.reference.parameters())


# ------------------------------------------------------------ what else it leaves behind


def test_weights_are_written_onto_trained_tokens_alone(make_policy, make_sequences, grpo) -> None:
    policy, sequences = make_policy(), make_sequences(5)
    run(policy, grpo(token_weight={"kind": "probability"}), sequences, replace(SETTINGS, max_batch_tokens=50))
    for sequence in sequences:
        assert sequence.weights is not None
        assert [weight is not None for weight in sequence.weights] == [bool(flag) for flag in sequence.mask]
        assert all(1.0 <= weight <= 1.4 for weight in sequence.weights if weight is not None)


def test_mismatch_compares_each_token_with_its_own_logprob(make_policy, make_sequences, grpo) -> None:
    policy, sequences = make_policy(), make_sequences(7)
    store_old_pass(policy, sequences, SETTINGS)
    for sequence in sequences:
        trained = iter(sequence.old_logprobs.tolist())
        sequence.sampler_logprobs = [next(trained) if flag else 0.0 for flag in sequence.mask]
    exact = Mismatch()
    run(make_policy(), grpo(), sequences, replace(SETTINGS, max_batch_tokens=50), mismatch=exact)
    assert exact.metrics()["mismatch/max_abs_logp"] < 1e-5
    place = sequences[3].mask.index(1)
    sequences[3].sampler_logprobs[place] -= 0.75
    off = Mismatch()
    run(make_policy(), grpo(), sequences, replace(SETTINGS, max_batch_tokens=50), mismatch=off)
    assert off.metrics()["mismatch/max_abs_logp"] == pytest.approx(0.75, abs=1e-5)


def test_loss_that_is_not_finite_takes_no_step(make_policy, make_sequences, grpo) -> None:
    policy, sequences = make_policy(), make_sequences(3)
    before = {name: value.clone() for name, value in policy.state().items()}
    sequences[0].advantage = float("nan")
    with pytest.raises(TrainingError, match="loss is nan: the step was not taken"):
        update(policy, Objective(grpo()), sequences, SETTINGS, lr=1.0)
    assert all(torch.equal(value, before[name]) for name, value in policy.state().items())
