"""Running an encoder in ONNX Runtime, in float32: on a CPU quicker than torch, most of all for single queries."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.converted import Forward, check_against_torch, example_inputs, pooled
from retrieval_index.errors import EncoderError


def onnx_forward(model: Any) -> Forward:
    """``model``: a sentence-transformers model in float32.

    Exported by tracing, in about two seconds, at every start; torch's newer exporter takes eleven and two packages
    more, for a model that is no quicker (MiniLM). Raises EncoderError where onnx or onnxruntime is not installed, or
    the model cannot be exported, or gives other vectors.
    """
    import torch

    # Since 1.29 importing it writes an identifier of this machine into the home folder and reports to its makers
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnx  # noqa: F401 (torch's exporter imports it where no remedy can be given)
        import onnxruntime
    except ImportError as error:
        raise EncoderError(f"engine=onnx cannot start ({error}): pip install 'agent-rl[onnx]'") from error

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    # threads that spin while they wait would take the core that the server answers on
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # in a file and not in memory: above 2 GiB the exporter puts the weights into files beside it
        with tempfile.TemporaryDirectory(prefix="agent-rl-onnx-") as folder:
            file = str(Path(folder) / "encoder.onnx")
            _export(model, file)
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # what an exporter raises on an unknown model is anything
        raise EncoderError(f"engine=onnx cannot convert this encoder ({error}); use engine=torch") from error

    def forward(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        vectors: np.ndarray = session.run(None, {"input_ids": tokens, "attention_mask": mask})[0]
        return vectors

    check_against_torch(model, forward, "onnx")
    return forward


def _export(model: Any, file: str) -> None:
    import torch

    example = example_inputs()
    transformer = model[0].auto_model
    attention = transformer.config._attn_implementation
    # torch's fused attention guards its softmax against rows without a token, which an encoder has none of: as ONNX
    # operators that costs a twentieth of the time
    transformer.set_attn_implementation("eager")
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            # tracing warns of every comparison of shapes, and of its age; whether one matters is checked afterwards
            warnings.simplefilter("ignore")
            torch.onnx.export(
                pooled(model),
                tuple(example.values()),
                file,
                dynamo=False,
                input_names=list(example),
                output_names=["vectors"],
                dynamic_axes={name: {0: "texts", 1: "tokens"} for name in example} | {"vectors": {0: "texts"}},
            )
    finally:
        transformer.set_attn_implementation(attention)
