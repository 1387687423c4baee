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
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    temperature: float,
    chunk_tokens: int,
    decoder: torch.nn.Module | None = None,
) -> TokenLogprobs:
    """Run the decoder once, then the output layer at the trained positions only, ``chunk_tokens`` at a time.

    The logits of the last chunk are kept for the backward pass, which begins with it; those of the others are
    computed again, so that at most ``chunk_tokens`` x V of them exist at once. ``decoder``: the model's own by
    default, or a compiled one.
    """
    hidden = _hidden(model, model.get_decoder() if decoder is None else decoder, batch).index_select(
        0, batch.predictors
    )
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


def _hidden(model: PreTrainedModel, decoder: torch.nn.Module, batch: MicroBatch) -> Tensor:
    """Hidden states [T, D] of the packed row. Raises ArtifactError where a layer would see across sequences."""
    packing = Packing(batch.spans)
    out = decoder(
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
    would keep several float32 copies of the logits; here they are wide a few rows at a time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        normalisers, entropies = [], []
        for piece in logits.split(_rows_at_once(logits)):
            scaled = piece.to(wide) / temperature
            highest = scaled.amax(dim=-1, keepdim=True)
            powers = (scaled - highest).exp_()
            total = powers.sum(dim=-1)
            normaliser = highest[:, 0] + total.log()
            normalisers.append(normaliser)
            entropies.append(normaliser - torch.linalg.vecdot(powers, scaled) / total)
        normaliser = torch.cat(normalisers)
        raw = logits.gather(1, targets[:, None])[:, 0].to(wide)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(logits, targets, normaliser)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy, raw)
        return raw / temperature - normaliser, entropy, raw

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, normaliser = ctx.saved_tensors
        pull, grad, rows = grads[0] / ctx.temperature, torch.empty_like(logits), _rows_at_once(logits)
        columns = (grad, logits, normaliser[:, None], targets[:, None], pull[:, None])
        for out, piece, high, target, by in zip(*(column.split(rows) for column in columns), strict=True):
            slope = (piece.to(high.dtype) / ctx.temperature).sub_(high).exp_().mul_(-by)
            out.copy_(slope.scatter_add_(1, target, by))
        return grad, None, None


def _rows_at_once(logits: Tensor) -> int:
    """On a CPU as many rows as stay in its cache, which makes this several times as fast; elsewhere all."""
    return max(1, 2**18 // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
