"""Reranking by a cross-encoder, which reads query and passage together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from retrieval_index.errors import EncoderError


class PairScorer(Protocol):
    """float [B]: how well each passage answers its query; higher is better."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray: ...


class CrossEncoderScorer:
    """A sentence-transformers CrossEncoder, from a local folder or the hub. Not safe for several threads."""

    def __init__(self, path: str, *, batch_size: int = 32) -> None:
        """Raises EncoderError where the model cannot be loaded or does not give one score a pair."""
        from sentence_transformers import CrossEncoder

        try:
            self._model = CrossEncoder(path)
        except Exception as error:  # a damaged folder fails in many ways inside transformers
            raise EncoderError(f"rerank={path!r} cannot be loaded as a cross-encoder: {error}") from error
        if self._model.num_labels != 1:
            raise EncoderError(f"rerank={path!r} gives {self._model.num_labels} scores a pair, one is needed")
        self._batch_size = batch_size

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.asarray(self._model.predict(list(pairs), batch_size=self._batch_size, show_progress_bar=False))
