"""What the engines that convert a sentence-transformers model have in common: what they convert, and the check that it
still is the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from retrieval_index.errors import EncoderError

# The converted model must agree with the one it was made from, on batches of several shapes
CHECKED_SHAPES = ((1, 5), (3, 11), (2, 3))
CLOSE = 0.99

# (token ids, mask), int64 [B, T] -> float32 [B, D], pooled
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


def example_inputs() -> dict[str, Any]:
    """Arguments of `pooled`'s model by name, in order: int64 tensors [B, T] to trace it with."""
    import torch

    return {name: torch.ones(2, 7, dtype=torch.long) for name in ("input_ids", "attention_mask")}


def pooled(model: Any) -> Any:
    """``model`` (sentence-transformers) as a torch module of two tensors, token ids and mask."""
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            vectors: torch.Tensor = self.model({"input_ids": input_ids, "attention_mask": attention_mask})[
                "sentence_embedding"
            ]
            return vectors

    return Pooled().eval()


def check_against_torch(model: Any, forward: Forward, engine: str) -> None:
    """Raises EncoderError where ``forward`` gives other vectors than ``model``, or none."""
    import torch

    drawn = np.random.default_rng(0)
    words = len(model.tokenizer)
    for texts, length in CHECKED_SHAPES:
        tokens = drawn.integers(0, words, (texts, length))
        mask = np.ones_like(tokens)
        mask[0, length // 2 + 1 :] = 0
        with torch.inference_mode():
            features = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
            wanted = model(features)["sentence_embedding"].float().numpy()
        try:
            got = forward(tokens, mask)
        except Exception as error:  # a size that tracing took for a constant ends in whatever the runtime raises
            raise EncoderError(
                f"engine={engine} cannot run this encoder on a batch of {texts} x {length} tokens ({error}); "
                "use engine=torch"
            ) from error
        cosines = (wanted * got).sum(1) / (np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1))
        if not cosines.min() >= CLOSE:
            raise EncoderError(
                f"engine={engine} gives other vectors than torch (cosine {cosines.min():.3f} on a batch of {texts} x "
                f"{length} tokens); use engine=torch"
            )
