"""Log-probabilities of chosen tokens without a full-vocabulary float32 copy of every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agent_rl.train.batch import MicroBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(slots=True)
class TokenLogprobs:
    """For the N trained tokens of a micro-batch, float32 [N].

    ``logp`` log-probability at the sampling temperature (with gradient), ``entropy`` of the distribution it was
    drawn from in nats, ``logit`` the raw logit of the token (both detached).
    """

    logp: Tensor
    entropy: Tensor
    logit: Tensor


def token_logprobs(
    model: PreTrainedModel, batch: MicroBatch, *, temperature: float, chunk_tokens: int
) -> TokenLogprobs:
    """Run the decoder once, then the output layer at the trained positions only, ``chunk_tokens`` at a time.

    A chunk's logits are computed again in the backward pass instead of being kept, so that at most
    ``chunk_tokens`` x V of them exist at once.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    # Right padding under a causal mask: no real token sees a padded one, so no mask is needed.
    hidden = decoder(input_ids=batch.input_ids, use_cache=False).last_hidden_state[batch.rows, batch.columns]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, len(hidden), chunk_tokens):
        piece = slice(start, start + chunk_tokens)
        arguments = (hidden[piece], batch.targets[piece], head, temperature)
        if torch.is_grad_enabled():
            parts.append(checkpoint(_chunk, *arguments, use_reentrant=False))
        else:
            parts.append(_chunk(*arguments))
    logp, entropy, logit = (torch.cat(column) for column in zip(*parts, strict=True))
    return TokenLogprobs(logp, entropy.detach(), logit.detach())


def _chunk(hidden: Tensor, targets: Tensor, head: torch.nn.Module, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    logits = head(hidden).float()
    raw = logits.gather(1, targets[:, None])[:, 0]
    scaled = logits / temperature
    normaliser = scaled.logsumexp(dim=-1)
    logp = scaled.gather(1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        entropy = normaliser - (torch.softmax(scaled, dim=-1) * scaled).sum(dim=-1)
    return logp, entropy, raw
