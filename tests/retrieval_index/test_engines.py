"""Encoders that another engine than torch runs: their vectors, what they refuse, and builds with them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import faiss
import numpy as np
import pytest

from agent_rl.cli import main
from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import Encoder, EncoderSpec
from retrieval_index.errors import EncoderError
from retrieval_index.index import INDEX_FILE
from retrieval_index.retriever import Retriever
from retrieval_index.testing import TINY_WORDS as WORDS


def _needs(engine: str):
    extra, module = {"onnx": ("onnx", "onnxruntime"), "openvino": ("openvino",) * 2}.get(engine, ("openvino", "nncf"))
    missing = importlib.util.find_spec(module) is None
    return pytest.param(engine, marks=pytest.mark.skipif(missing, reason=f"pip install 'agent-rl[{extra}]'"))


EXACT = [_needs("onnx"), _needs("openvino")]
TEXTS = [" ".join(WORDS[: 1 + n % 8]) for n in range(10)]
PASSAGES = [Passage(f"{a} {b}", a, f"{b} {a} {b}") for a in WORDS for b in WORDS]


def _spec(tiny, **changes) -> EncoderSpec:
    return EncoderSpec(**{"path": str(tiny), "max_tokens": 32, "dtype": "float32"} | changes)


@pytest.mark.slow
@pytest.mark.parametrize("engine", EXACT)
def test_an_engine_gives_the_vectors_of_torch(tiny, engine):
    for pooling in ("mean", "cls"):
        spec = _spec(tiny, pooling=pooling, query_prefix="query: ")
        converted = Encoder(spec, batch_size=3, engine=engine)
        vectors = converted.encode_queries(TEXTS)
        assert vectors.dtype == np.float32
        assert np.allclose(vectors, Encoder(spec).encode_queries(TEXTS), atol=1e-4)
        assert converted.computes == f"{engine}, float32"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [_needs("openvino_int8")])
def test_eight_bits_are_near_and_no_more_than_near(tiny, capfd, engine):
    wanted = Encoder(_spec(tiny)).encode_queries(TEXTS)
    capfd.readouterr()
    encoder = Encoder(_spec(tiny), batch_size=3, engine=engine)
    got = encoder.encode_queries(TEXTS)
    assert (wanted * got).sum(1).min() > 0.99
    # in float32 the same conversion is within 1e-4: else these would not be 8 bits
    assert np.abs(wanted - got).max() > 1e-4
    assert "━" not in capfd.readouterr().out  # nor does the compression draw its bars
    with pytest.raises(EncoderError, match="openvino_int8 is for queries"):
        encoder.encode_passages(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [_needs("openvino"), _needs("openvino_int8")])
def test_a_conversion_reports_to_nobody(tiny, engine):
    """openvino_telemetry forks the process to post to its makers; a tool server would outlive its run by that child."""
    code = (
        "import os, sys\n"
        "from retrieval_index.encoder import Encoder, EncoderSpec\n"
        "forks = []\n"
        "os.register_at_fork(before=lambda: forks.append(1))\n"
        "Encoder(EncoderSpec(path=sys.argv[1], max_tokens=32, dtype='float32'), engine=sys.argv[2])\n"
        "assert not forks and sys.modules['openvino_telemetry'] is None\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tiny), engine], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("engine", EXACT)
def test_ctrl_c_after_encoders_are_gone(tiny, engine):
    """OpenVINO loaded twice leaves the thread a signal stack that is gone, and the next signal ends the process."""
    code = (
        "import gc, os, signal, sys\n"
        "from retrieval_index.encoder import Encoder, EncoderSpec\n"
        "for _ in range(2):\n"
        "    encoder = Encoder(EncoderSpec(path=sys.argv[1], max_tokens=32, dtype='float32'), engine=sys.argv[2])\n"
        "    encoder.encode_queries(['amber'])\n"
        "    gc.collect()\n"
        "del encoder\n"
        "gc.collect()\n"
        "signal.signal(signal.SIGINT, lambda number, frame: print('caught'))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    command = [sys.executable, "-c", code, str(tiny), engine]
    assert subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout == "caught\n"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [_needs("onnx")])
def test_onnx_runtime_reports_to_nobody(tiny, tmp_path, engine):
    """It would keep what it has to tell its makers, and a name for this machine, in the home folder."""
    code = (
        "import sys\n"
        "from retrieval_index.encoder import Encoder, EncoderSpec\n"
        "Encoder(EncoderSpec(path=sys.argv[1], max_tokens=32), engine=sys.argv[2]).encode_queries(['amber'])\n"
    )
    # as on a user's machine: where CI is set, it keeps quiet by itself
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(tiny), engine], check=True, timeout=120, env=env)
    assert not list(tmp_path.rglob("*onnxruntime*"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", EXACT)
def test_a_conversion_that_changes_the_vectors_is_refused(tiny, monkeypatch, engine):
    """The check at the start is all that stands between a wrong conversion and noise."""
    if engine == "onnx":
        import onnxruntime

        run = onnxruntime.InferenceSession.run
        monkeypatch.setattr(onnxruntime.InferenceSession, "run", lambda *args: [run(*args)[0][:, ::-1]])
    else:
        import openvino

        real = openvino.CompiledModel.create_infer_request

        class Shuffled:
            def __init__(self, request):
                self.request = request

            def infer(self, inputs):
                return {0: self.request.infer(inputs)[0][:, ::-1]}

        monkeypatch.setattr(openvino.CompiledModel, "create_infer_request", lambda model: Shuffled(real(model)))
    with pytest.raises(EncoderError, match=f"engine={engine} gives other vectors than torch"):
        Encoder(_spec(tiny), engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [_needs("onnx")])
def test_a_size_that_was_taken_for_a_constant_is_refused(tiny, monkeypatch, engine):
    import torch

    export = torch.onnx.export

    def fixed(*args, dynamic_axes, **settings):
        export(*args, **settings)

    monkeypatch.setattr(torch.onnx, "export", fixed)
    with pytest.raises(EncoderError, match=r"engine=onnx cannot run this encoder on a batch of 1 x 5 tokens \("):
        Encoder(_spec(tiny), engine=engine)


@pytest.mark.slow
def test_what_an_engine_cannot_do_is_refused(tiny):
    with pytest.raises(EncoderError, match="engine=onnx computes in float32, and dtype=bfloat16 was asked for"):
        Encoder(_spec(tiny, dtype="bfloat16"), engine="onnx")
    with pytest.raises(EncoderError, match=r"encoder\.workers=2: worker processes encode with torch"):
        Encoder(_spec(tiny), workers=2, engine="openvino")


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_remedy(tiny, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "onnx", sys)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EncoderError, match=rf"{missing}.*pip install 'agent-rl\[onnx\]'"):
        Encoder(_spec(tiny), engine="onnx")


@pytest.mark.slow
@pytest.mark.parametrize("engine", EXACT)
def test_a_build_with_an_engine_is_near_to_one_with_torch(tiny, tmp_path, engine, capsys):
    corpus = tmp_path / "c.tsv"
    rows = "".join(f"{passage.id}\t{passage.title}\t{passage.text}\n" for passage in PASSAGES)
    corpus.write_text(f"id\ttitle\ttext\n{rows}")
    build = ["build-index", f"corpus={corpus}", f"encoder={tiny}", "encoder.max_tokens=32", "encoder.dtype=float32"]
    for name in ("torch", engine):
        assert main([*build, f"encoder.engine={name}", f"out={tmp_path / name}"]) == 0
        assert f"encoding with {name}, float32" in capsys.readouterr().out
    wanted, got = (faiss.read_index(str(tmp_path / name / INDEX_FILE)) for name in ("torch", engine))
    vectors = [index.reconstruct_n(0, len(PASSAGES)) for index in (wanted, got)]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
    assert not np.array_equal(*vectors)  # else torch would have made both
    # either is searched by either
    (hits,) = Retriever.open(tmp_path / engine, engine="torch").search([PASSAGES[17].contents], 1)
    assert hits[0].id == PASSAGES[17].id
    imported = [*build, f"from_index={tmp_path / 'torch' / INDEX_FILE}", f"out={tmp_path / 'taken'}"]
    assert main([*imported, f"encoder.engine={engine}"]) == 0
    assert main([*build, "--plan", f"encoder.engine={engine}"]) == 0


class _Stopped(Exception):
    """What kills a build in the middle."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", EXACT)
def test_a_killed_build_goes_on_with_the_engine_it_had(tiny, tmp_path, monkeypatch, engine):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 16)
    real, encoded = Encoder.encode_passages, []

    def counted(encoder, passages):
        if len(encoded) == 32:
            raise _Stopped
        encoded.extend(passages)
        return real(encoder, passages)

    monkeypatch.setattr(Encoder, "encode_passages", counted)
    with pytest.raises(_Stopped):
        build_index(PASSAGES, _spec(tiny), tmp_path / "i", progress=False, engine=engine)
    monkeypatch.setattr(Encoder, "encode_passages", lambda *args: encoded.extend(args[1]) or real(*args))
    said: list[str] = []
    build_index(PASSAGES, _spec(tiny), tmp_path / "i", progress=False, engine=engine, report=said.append)
    assert said[1] == f"resumed: 32 of {len(PASSAGES)} passages are encoded already"
    build_index(PASSAGES, _spec(tiny), tmp_path / "whole", progress=False, engine=engine)
    assert (tmp_path / "i" / INDEX_FILE).read_bytes() == (tmp_path / "whole" / INDEX_FILE).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("engine", EXACT)
def test_vectors_of_another_engine_are_not_taken_up(tiny, tmp_path, monkeypatch, engine):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 16)
    real, calls = Encoder.encode_passages, []

    def once(encoder, passages):
        if calls:
            raise _Stopped
        calls.append(passages)
        return real(encoder, passages)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "encode_passages", once)
        with pytest.raises(_Stopped):
            build_index(PASSAGES, _spec(tiny), tmp_path / "i", progress=False)
    said: list[str] = []
    build_index(PASSAGES, _spec(tiny), tmp_path / "i", progress=False, engine=engine, report=said.append)
    assert not [line for line in said if line.startswith("resumed")]
