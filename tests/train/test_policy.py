"""The policy: master weights, LoRA, gradient checkpointing, state, and the rate's schedule."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from agent_rl.algo.objective import Objective
from agent_rl.config.schema import LoraConfig, ModelConfig, OptimConfig
from agent_rl.errors import ArtifactError, TrainingError
from agent_rl.testing import tiny_model
from agent_rl.train.batch import make_micro_batches
from agent_rl.train.logprobs import token_logprobs
from agent_rl.train.policy import Policy, learning_rate
from agent_rl.train.update import UpdateSettings, update

SETTINGS = UpdateSettings(temperature=1.0, max_batch_tokens=10_000, logprob_chunk_tokens=64, drop_uniform_groups=True)
LORA = LoraConfig(rank=4, alpha=8)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy.model.state_dict().items()}


def test_tiny_updates_of_bfloat16_weights_add_up(make_policy) -> None:
    """One step of 1e-5 is far below the spacing of bfloat16 around 0.3: without masters nothing would move."""
    policy = make_policy(dtype=torch.bfloat16)
    before = weights(policy)
    name = next(name for name, _ in policy._named if "q_proj" in name)
    for _ in range(200):
        for master in policy._masters:
            master.grad.fill_(1.0)
        policy.step(1e-5)
    after = weights(policy)
    moved = (before[name].float() - after[name].float()).mean()
    assert after[name].dtype is torch.bfloat16
    assert float(moved) == pytest.approx(200 * 1e-5, rel=0.15)  # rounding of each weight
    one = make_policy(dtype=torch.bfloat16)
    for master in one._masters:
        master.grad.fill_(1.0)
    one.step(1e-5)
    unmoved = (weights(one)[name] == before[name]).float().mean()
    assert float(unmoved) > 0.9


def test_gradients_of_micro_batches_are_summed_in_float32(make_policy) -> None:
    policy = make_policy(dtype=torch.bfloat16)
    (_, parameter), master = policy._named[0], policy._masters[0]
    for value in (1.0, *[2**-9] * 64):  # each too small beside 1.0 for bfloat16
        (parameter * value).sum().backward()
    assert parameter.grad is None
    assert float(master.grad.flatten()[0]) == 1.0 + 64 * 2**-9


def test_gradient_that_is_not_finite_changes_nothing(make_policy) -> None:
    policy = make_policy()
    before = weights(policy)
    policy._masters[0].grad.fill_(math.inf)
    with pytest.raises(TrainingError, match="gradient norm is inf"):
        policy.step(1.0)
    assert all(torch.equal(value, before[name]) for name, value in weights(policy).items())


def test_gradient_is_clipped_by_its_norm_over_all_parameters() -> None:
    """SGD would show it directly; AdamW shows it in its first moment, (1 - beta1) times the clipped gradient."""
    policy = Policy(tiny_model(20), ModelConfig(), OptimConfig(max_grad_norm=0.5))
    for master in policy._masters:
        master.grad.fill_(1.0)
    norm = policy.step(1e-3)
    assert norm == pytest.approx(math.sqrt(policy.trained_parameters), rel=1e-5)
    squares = sum(float(value.square().sum()) for name, value in policy.state().items() if "exp_avg." in name)
    assert math.sqrt(squares) == pytest.approx(0.1 * 0.5, rel=1e-4)
    assert all(float(master.grad.abs().max()) == 0 for master in policy._masters)


def test_gradient_checkpointing_changes_no_gradient(make_policy, make_sequences, grpo) -> None:
    def after(**model_settings) -> dict[str, torch.Tensor]:
        policy = make_policy(**model_settings)
        update(policy, Objective(grpo()), make_sequences(4), SETTINGS, lr=1e-3)
        return policy.state()

    plain, saving = after(), after(gradient_checkpointing=True)
    for name, value in plain.items():
        torch.testing.assert_close(saving[name], value, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}])
def test_gradient_checkpointing_keeps_less_for_the_backward_pass(make_policy, make_sequences, settings) -> None:
    def kept(checkpointing: bool) -> int:
        policy = make_policy(gradient_checkpointing=checkpointing, **settings)
        weights = {parameter.data_ptr() for parameter in policy.model.parameters()}
        bytes_at: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            bytes_at[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        (batch,) = make_micro_batches(make_sequences(16), 10_000, policy.device)
        policy.model.train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            token_logprobs(policy.model, batch, temperature=1.0, chunk_tokens=64)
        return sum(size for place, size in bytes_at.items() if place not in weights)

    assert kept(True) < 0.5 * kept(False)


@pytest.mark.slow
def test_compiled_updates_are_the_same(make_sequences, grpo) -> None:
    """``train.compile``, over rows of several lengths; the model that samples stays as it is."""

    def after(compiled: bool) -> tuple[dict[str, torch.Tensor], Policy]:
        policy = Policy(tiny_model(50), ModelConfig(), OptimConfig(lr=1e-3), compiled=compiled)
        for seed in range(3):
            update(policy, Objective(grpo()), make_sequences(6, seed=seed), SETTINGS, lr=1e-3)
        return policy.state(), policy

    (plain, _), (fast, policy) = after(False), after(True)
    assert policy.decoder is not policy.model.get_decoder()
    for name, value in plain.items():
        torch.testing.assert_close(fast[name], value, atol=2e-6, rtol=1e-3)


# ------------------------------------------------------------ LoRA


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_trains_the_adapter_alone(make_policy, make_sequences, grpo, beta, checkpointing) -> None:
    policy = make_policy(lora=LORA, gradient_checkpointing=checkpointing)
    policy.freeze_reference()
    assert all("lora_" in name for name, _ in policy._named)
    assert 0 < policy.trained_parameters < sum(p.numel() for p in policy.model.parameters()) / 2
    before = weights(policy)
    for _ in range(3):
        metrics = update(policy, Objective(grpo(beta=beta)), make_sequences(6), SETTINGS, lr=1e-2)
        assert metrics["objective/grad_norm"] > 0
    changed = {name for name, value in weights(policy).items() if not torch.equal(value, before[name])}
    assert changed
    assert changed == {name for name in before if "lora_" in name}, "both factors, of every layer"


def test_lora_reference_is_the_base_model(make_policy, make_sequences, grpo) -> None:
    policy, objective = make_policy(lora=LORA), Objective(grpo(beta=0.3))
    policy.freeze_reference()
    for _ in range(3):
        metrics = update(policy, objective, make_sequences(6), SETTINGS, lr=1e-2)
    assert metrics["objective/kl"] > 0
    (batch,) = make_micro_batches(make_sequences(6), 10_000, policy.device)
    with torch.no_grad():
        base = token_logprobs(tiny_model(50), batch, temperature=1.0, chunk_tokens=64).logp
    with torch.no_grad(), policy.reference_mode():
        found = token_logprobs(policy.reference, batch, temperature=1.0, chunk_tokens=64).logp
    torch.testing.assert_close(found, base, atol=1e-5, rtol=0)
    with torch.no_grad():
        adapted = token_logprobs(policy.model, batch, temperature=1.0, chunk_tokens=64).logp
    assert float((adapted - base).abs().max()) > 1e-2, "outside reference_mode the adapter is on"


def test_lora_with_kl_has_the_gradient_of_the_objective(make_policy, make_sequences, grpo) -> None:
    """Switching the adapter off and on for the reference must not cut it from the graph."""
    policy, objective = make_policy(lora=LORA), Objective(grpo(beta=1e-9))
    policy.freeze_reference()
    plain = make_policy(lora=LORA)
    plain.load_state(copy.deepcopy(policy.state()))
    update(policy, objective, make_sequences(6), SETTINGS, lr=1e-2)
    update(plain, Objective(grpo()), make_sequences(6), SETTINGS, lr=1e-2)
    for name, value in plain.state().items():
        torch.testing.assert_close(policy.state()[name], value, atol=1e-6, rtol=1e-4)


# ------------------------------------------------------------ state


@pytest.mark.parametrize("settings", [{}, {"dtype": torch.bfloat16}, {"lora": LORA}])
def test_state_put_back_goes_on_exactly(make_policy, make_sequences, grpo, settings) -> None:
    policy, objective = make_policy(**settings), Objective(grpo())
    update(policy, objective, make_sequences(4), SETTINGS, lr=1e-3)
    saved = {name: value.clone() for name, value in policy.state().items()}
    other = make_policy(**settings)
    other.load_state(saved)
    for each in (policy, other):
        update(each, objective, make_sequences(4, seed=1), SETTINGS, lr=1e-3)
    assert policy.state().keys() == other.state().keys()
    assert all(torch.equal(value, other.state()[name]) for name, value in policy.state().items())
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(policy).items())


def test_state_of_another_model_is_refused(make_policy) -> None:
    other = Policy(tiny_model(51), ModelConfig(), OptimConfig())
    with pytest.raises(ArtifactError, match=r"another model.*embed_tokens"):
        make_policy().load_state(other.state())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"lr_warmup_steps": 2}, [0.5, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "linear"}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"schedule": "linear", "lr_warmup_steps": 1, "min_lr_fraction": 0.5}, [1.0, 1.0, 0.875, 0.75, 0.625]),
    ],
)
def test_learning_rate(settings, expected) -> None:
    optim = OptimConfig(lr=1.0, **settings)
    assert [learning_rate(optim, step, 5) for step in range(5)] == pytest.approx(expected)


def test_cosine_ends_at_its_minimum() -> None:
    optim = OptimConfig(lr=2.0, schedule="cosine", min_lr_fraction=0.1)
    rates = [learning_rate(optim, step, 100) for step in range(101)]
    assert rates[0] == 2.0
    assert rates[50] == pytest.approx(1.1)
    assert rates[100] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True)


def test_prompt_format_of_a_checkpoint_is_kept(make_policy, tmp_path) -> None:
    """A model trained in one prompt format is refused in the other, with what to type."""
    from agent_rl.config.schema import ModelConfig
    from agent_rl.errors import ConfigError
    from agent_rl.train.policy import load_model

    make_policy(prompt_format="plain").save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match=r"was trained with plain; add model.prompt_format=plain"):
        load_model(str(tmp_path), ModelConfig(path=str(tmp_path), prompt_format="chat_template"))
