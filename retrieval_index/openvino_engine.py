"""Running an encoder in OpenVINO, which on a CPU is quicker than torch, most of all for single queries."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from retrieval_index.errors import EncoderError

# The converted model must agree with the one it was made from, on batches of several shapes
CHECKED_SHAPES = ((1, 5), (3, 11), (2, 3))
CLOSE = 0.99

# (token ids, mask), int64 [B, T] -> float32 [B, D], pooled
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


def openvino_forward(model: Any, dtype: Any) -> Forward:
    """``model``: a sentence-transformers model in float32; ``dtype`` (torch) is what it is to compute in.

    Converted in memory, in seconds, at every start. Raises EncoderError where OpenVINO is not installed, cannot convert
    the model, or gives other vectors.
    """
    import torch

    # Converting would report to its makers over the network, from a forked copy of this process that ignores SIGTERM
    # and, without a network, outlives it. OpenVINO does without where the reporter cannot be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise EncoderError("engine=openvino needs OpenVINO: pip install 'agent-rl[openvino]'") from error

    example = {name: torch.ones(2, 7, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    sizes: Any = [openvino.Dimension(), openvino.Dimension()]
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            # tracing warns of every comparison of shapes; whether one matters is checked below
            warnings.simplefilter("ignore")
            converted = openvino.convert_model(
                _pooled(model),
                example_input=example,
                input=[(name, sizes, openvino.Type.i64) for name in example],
            )
        compiled = openvino.Core().compile_model(
            converted,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "bf16" if dtype is torch.bfloat16 else "f32",
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
    except Exception as error:  # what a converter raises on an unknown model is anything
        raise EncoderError(f"engine=openvino cannot convert this encoder ({error}); use engine=torch") from error
    request = compiled.create_infer_request()

    def forward(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        # copied: the request writes its next answer into the same memory
        return np.array(request.infer({0: tokens, 1: mask})[0], dtype=np.float32)

    _check(model, forward)
    return forward


def _pooled(model: Any) -> Any:
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            pooled: torch.Tensor = self.model({"input_ids": input_ids, "attention_mask": attention_mask})[
                "sentence_embedding"
            ]
            return pooled

    return Pooled().eval()


def _check(model: Any, forward: Forward) -> None:
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
        got = forward(tokens, mask)
        cosines = (wanted * got).sum(1) / (np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1))
        if not cosines.min() >= CLOSE:
            raise EncoderError(
                f"engine=openvino gives other vectors than torch (cosine {cosines.min():.3f} on a batch of {texts} x "
                f"{length} tokens); use engine=torch"
            )
