"""Running an encoder in OpenVINO, which on a CPU is quicker than torch, most of all for single queries.

In 8 bits the weights are rounded once (NNCF) and what they are multiplied by as it comes, GROUP numbers of it to a
scale, so that no texts are needed to calibrate on.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import warnings
from typing import Any

import numpy as np

from retrieval_index.converted import Forward, check_against_torch, example_inputs, pooled
from retrieval_index.errors import EncoderError

# Smaller groups are nearer to torch and slower (MiniLM: 32 gives 0.8 of the speed of 128), larger ones no quicker
GROUP = 128


def openvino_forward(model: Any, dtype: Any, *, int8: bool = False) -> Forward:
    """``model``: a sentence-transformers model in float32; ``dtype`` (torch) is what it is to compute in, but for the
    matrix products with weights where ``int8``.

    Converted in memory, in seconds, at every start. Raises EncoderError where OpenVINO (or NNCF, for ``int8``) is not
    installed, cannot convert the model, or gives other vectors.
    """
    import torch

    engine = "openvino_int8" if int8 else "openvino"
    # Converting would report to its makers over the network, from a forked copy of this process that ignores SIGTERM
    # and, without a network, outlives it. OpenVINO does without where the reporter cannot be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino

        nncf = _nncf() if int8 else None
    except ImportError as error:
        raise EncoderError(f"engine={engine} cannot start ({error}): pip install 'agent-rl[openvino]'") from error

    example = example_inputs()
    sizes: Any = [openvino.Dimension(), openvino.Dimension()]
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            # tracing warns of every comparison of shapes; whether one matters is checked below
            warnings.simplefilter("ignore")
            converted = openvino.convert_model(
                pooled(model),
                example_input=example,
                input=[(name, sizes, openvino.Type.i64) for name in example],
            )
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "bf16" if dtype is torch.bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if nncf is not None:
            with contextlib.redirect_stdout(io.StringIO()):  # its progress bars
                converted = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
            settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP
        compiled = _core().compile_model(converted, "CPU", settings)
    except Exception as error:  # what a converter raises on an unknown model is anything
        raise EncoderError(f"engine={engine} cannot convert this encoder ({error}); use engine=torch") from error
    request = compiled.create_infer_request()

    def forward(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        # copied: the request writes its next answer into the same memory
        return np.array(request.infer({0: tokens, 1: mask})[0], dtype=np.float32)

    check_against_torch(model, forward, engine)
    return forward


@functools.cache
def _core() -> Any:
    """One, kept for good. Each Core's CPU plug-in gives the thread that loads it a signal stack and, unloaded, the one
    that was there before; of two Cores, whose second may hand back the first one's, which is gone. Ctrl-C would then
    end the process with a segmentation fault.
    """
    import openvino

    return openvino.Core()


def _nncf() -> Any:
    import nncf

    nncf.set_log_level(logging.WARNING)  # its tables of what it compressed
    return nncf
