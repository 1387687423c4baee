"""The updates of a step: forward passes are run where something needs them, and once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from agent_rl.algo.objective import Objective
from agent_rl.config.schema import LoraConfig, TrainConfig
from agent_rl.train.step import step_updates
from agent_rl.train.update import UpdateSettings, store_old_pass

SETTINGS = UpdateSettings(temperature=1.0, max_batch_tokens=10_000, logprob_chunk_tokens=64, drop_uniform_groups=True)


@pytest.fixture
def watch(make_policy):
    """A policy, and of each pass through its decoder whether it had gradients and how many tokens."""

    def make(**settings) -> SimpleNamespace:
        policy = make_policy(**settings)
        passes: list[tuple[bool, int]] = []

        def seen(module, args, kwargs) -> None:
            passes.append((torch.is_grad_enabled(), kwargs["input_ids"].shape[1]))

        policy.model.get_decoder().register_forward_pre_hook(seen, with_kwargs=True)
        return SimpleNamespace(policy=policy, passes=passes)

    return make


def run(policy, algo, sequences, *, updates: int = 1) -> dict[str, float]:
    config = TrainConfig(steps=10, updates_per_rollout=updates)
    return step_updates(policy, Objective(algo), sequences, config, SETTINGS, step=1)


@pytest.mark.parametrize("mismatch", ["none", "token_tis", "sequence_mis"])
def test_one_update_is_one_forward_pass(watch, make_sequences, grpo, mismatch) -> None:
    """Also with a mismatch correction: the policy that is trained is the one before the update."""
    watched = watch()
    found = run(watched.policy, grpo(mismatch={"kind": mismatch}), make_sequences(8))
    assert [grad for grad, _ in watched.passes] == [True]
    assert found["objective/ratio_max"] == 1.0


def test_the_old_pass_is_over_later_updates_that_train_alone(watch, make_sequences, grpo) -> None:
    watched, sequences = watch(), make_sequences(12)
    for sequence in sequences[8:]:
        sequence.advantage = 0.0
    run(watched.policy, grpo(), sequences, updates=3)
    assert [grad for grad, _ in watched.passes] == [False, True, True]
    assert [sequence.old_logprobs is not None for sequence in sequences] == [False] * 4 + [True] * 4 + [False] * 4
    assert watched.passes[0] == (False, watched.passes[2][1])


def test_it_changes_no_update(make_policy, make_sequences, grpo) -> None:
    lazy, eager = make_policy(), make_policy()
    run(lazy, grpo(), make_sequences(12), updates=3)
    sequences = make_sequences(12)
    store_old_pass(eager, sequences, SETTINGS)
    run(eager, grpo(), sequences, updates=3)
    for name, value in eager.state().items():
        torch.testing.assert_close(lazy.state()[name], value, atol=1e-6, rtol=1e-4)


def test_a_token_filter_looks_at_every_sequence(watch, make_sequences, grpo) -> None:
    watched, sequences = watch(), make_sequences(8)
    sequences[0].advantage = 0.0
    run(watched.policy, grpo(token_filter={"kind": "high_entropy"}), sequences)
    assert all(sequence.old_logprobs is not None for sequence in sequences)
    assert [grad for grad, _ in watched.passes] == [False, True]


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=4)])
def test_the_reference_is_asked_once_a_sequence(watch, make_sequences, grpo, lora) -> None:
    """Lopti trains on each sequence twice; under LoRA the reference is the policy's own model, without a copy."""
    watched = watch(lora=lora)
    watched.policy.freeze_reference()
    asked = watched.passes
    if lora is None:
        asked = []
        decoder = watched.policy.reference.get_decoder()
        decoder._forward_pre_hooks.clear()
        decoder.register_forward_pre_hook(lambda *_: asked.append((False, 0)))
    else:
        assert watched.policy.reference is watched.policy.model
    sequences = make_sequences(8)
    run(watched.policy, grpo(beta=0.1, token_filter={"kind": "low_then_high"}), sequences)
    assert all(sequence.reference_logprobs is not None for sequence in sequences)
    # Under LoRA one model is asked: the old pass, then the policy, the reference, and the policy again.
    assert [grad for grad, _ in asked] == ([False] if lora is None else [False, True, False, True])
