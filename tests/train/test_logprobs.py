"""Chunked log-probabilities against one full forward pass of plain transformers."""

from __future__ import annotations

import pytest
import torch

from agent_rl.errors import ArtifactError
from agent_rl.testing import tiny_model
from agent_rl.train.batch import make_micro_batches
from agent_rl.train.logprobs import _TokenLogprob, token_logprobs

CPU = torch.device("cpu")
VOCABULARY = 50


def whole(model, sequence, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(log-probability, entropy, logit) of the trained tokens of one unpadded sequence."""
    places = [place for place, flag in enumerate(sequence.mask) if flag]
    logits = model(input_ids=torch.tensor([sequence.ids])).logits[0, [place - 1 for place in places]]
    targets = torch.tensor([sequence.ids[place] for place in places])[:, None]
    distribution = torch.distributions.Categorical(logits=logits / temperature)
    return distribution.log_prob(targets[:, 0]), distribution.entropy(), logits.gather(1, targets)[:, 0]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 1000])
def test_values_equal_a_full_forward(make_sequences, temperature: float, chunk_tokens: int) -> None:
    model = tiny_model(VOCABULARY)
    eager = tiny_model(VOCABULARY)
    eager.set_attn_implementation("eager")
    sequences = make_sequences(5)
    for batch in make_micro_batches(sequences, 60, CPU):
        found = token_logprobs(model, batch, temperature=temperature, chunk_tokens=chunk_tokens)
        for row, index in enumerate(batch.sequences):
            logp, entropy, logit = whole(eager, sequences[index], temperature)
            mine = batch.rows == row
            torch.testing.assert_close(found.logp[mine], logp, atol=2e-5, rtol=0)
            torch.testing.assert_close(found.entropy[mine], entropy, atol=2e-5, rtol=0)
            torch.testing.assert_close(found.logit[mine], logit, atol=2e-5, rtol=0)


def test_only_the_logprob_carries_a_gradient(make_sequences) -> None:
    (batch,) = make_micro_batches(make_sequences(2), 1000, CPU)
    found = token_logprobs(tiny_model(VOCABULARY), batch, temperature=1.0, chunk_tokens=4)
    assert found.logp.requires_grad
    assert not found.entropy.requires_grad
    assert not found.logit.requires_grad


@pytest.mark.parametrize("chunk_tokens", [1, 4, 9])
def test_gradients_do_not_depend_on_the_chunks(make_sequences, chunk_tokens: int) -> None:
    (batch,) = make_micro_batches(make_sequences(4), 1000, CPU)
    pull = torch.randn(len(batch.targets), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradients(chunk: int) -> list[torch.Tensor]:
        model = tiny_model(VOCABULARY).double()
        (token_logprobs(model, batch, temperature=0.8, chunk_tokens=chunk).logp * pull).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for found, expected in zip(gradients(chunk_tokens), gradients(10_000), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


def test_no_logits_of_more_than_a_chunk_exist(make_sequences) -> None:
    """The output layer is never given more than ``chunk_tokens`` positions, forward or backward."""
    model, seen = tiny_model(VOCABULARY), []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    (batch,) = make_micro_batches(make_sequences(6), 1000, CPU)
    token_logprobs(model, batch, temperature=1.0, chunk_tokens=5).logp.sum().backward()
    assert max(seen) == 5
    kept = len(batch.targets) % 5 or 5
    assert sum(seen) == 2 * len(batch.targets) - kept, "again in the backward pass, but for the chunk it begins with"


def test_the_hand_written_gradient() -> None:
    """Against finite differences, in float64."""
    logits = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([0, 6, 3, 3])
    assert torch.autograd.gradcheck(lambda z: _TokenLogprob.apply(z, targets, 0.7)[0], (logits,))


def test_a_layer_that_does_not_know_packing_is_refused(make_sequences) -> None:
    """Plain attention would let a sequence see its neighbours, without a word."""
    model = tiny_model(VOCABULARY)
    model.set_attn_implementation("eager")
    (batch,) = make_micro_batches(make_sequences(2), 1000, CPU)
    with pytest.raises(ArtifactError, match="0 of 2 layers"):
        token_logprobs(model, batch, temperature=1.0, chunk_tokens=4)
