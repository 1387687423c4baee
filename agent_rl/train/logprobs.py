"""Log-probabilities of chosen tokens without a full-vocabulary float32 copy of every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agent_rl.errors import ArtifactError
from agent_rl.train.batch import MicroBatch
from agent_rl.train.packed_attention import Packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(slots=True)
class TokenLogprobs:
    """For the N trained tokens of a micro-batch, [N] in float32 (float64 where the model is).

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

    The logits of the last chunk are kept for the backward pass, which begins with it; those of the others are
    computed again, so that at most ``chunk_tokens`` x V of them exist at once.
    """
    hidden = _hidden(model, batch).index_select(0, batch.predictors)
    head = model.get_output_embeddings()
    starts = range(0, len(hidden), chunk_tokens)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in starts:
        piece = slice(start, start + chunk_tokens)
        arguments = (head, hidden[piece], batch.targets[piece], temperature)
        if torch.is_grad_enabled() and start != starts[-1]:
            parts.append(checkpoint(_chunk, *arguments, use_reentrant=False))
        else:
            parts.append(_chunk(*arguments))
    logp, entropy, logit = (torch.cat(column) for column in zip(*parts, strict=True))
    return TokenLogprobs(logp, entropy, logit)


def _hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """Hidden states [T, D] of the packed row. Raises ArtifactError where a layer would see across sequences."""
    packing = Packing(batch.spans)
    out = model.get_decoder()(
        input_ids=batch.input_ids[None],
        position_ids=batch.position_ids[None],
        # Of four dimensions, so transformers takes it for a finished mask and makes none of T x T; it is not read.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=batch.input_ids.device),
        packing=packing,
        use_cache=False,
    )
    layers = model.config.get_text_config().num_hidden_layers
    if packing.layers != layers:
        raise ArtifactError(
            f"{model.config.model_type}: {packing.layers} of {layers} layers use attention that knows packed "
            "sequences; the embedded backend cannot train this kind of model, backend=verl may"
        )
    return out.last_hidden_state[0]


def _chunk(head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    return _TokenLogprob.apply(head(hidden), targets, temperature)


class _TokenLogprob(torch.autograd.Function):
    """(log-probability, entropy, logit) of the targets, [N] each in float32 or wider, from logits [N, V].

    log p = z_t / T - logsumexp(z / T);  d log p / d z = (onehot_t - softmax(z / T)) / T. By hand, since autograd
    would keep several float32 copies of the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        raw = logits.gather(1, targets[:, None])[:, 0].to(wide)
        scaled = logits.to(wide) / temperature
        normaliser = scaled.logsumexp(dim=-1)
        logp = raw / temperature - normaliser
        entropy = normaliser - torch.linalg.vecdot((scaled - normaliser[:, None]).exp_(), scaled)
        ctx.save_for_backward(logits, targets, normaliser)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy, raw)
        return logp, entropy, raw

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, normaliser = ctx.saved_tensors
        pull = (grads[0] / ctx.temperature)[:, None]
        grad = (logits.to(normaliser.dtype) / ctx.temperature).sub_(normaliser[:, None]).exp_().mul_(-pull)
        grad.scatter_add_(1, targets[:, None], pull)
        return grad.to(logits.dtype), None, None
