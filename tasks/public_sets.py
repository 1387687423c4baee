"""The public data sets that `agent-rl data prepare` knows: where their files lie, their size, how a row is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tasks import public_rows

_HUB = "hf://datasets/RUC-NLPIR/FlashRAG_datasets"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """``address``: https or hf://datasets/. ``git_blob``: the id by which git knows the file's content, where
    pinned."""

    address: str
    git_blob: str | None = None


@dataclass(frozen=True, slots=True)
class PublicSet:
    """``files`` and ``rows`` (the published size, None where we could not count) by our split."""

    task: str
    licence: str
    files: Mapping[str, tuple[SourceFile, ...]]
    rows: Mapping[str, int | None]
    convert: Callable[[dict[str, Any], str], dict[str, Any]]


def _flashrag(rows: Mapping[str, int], *, test_from: str = "test") -> Callable[[str], PublicSet]:
    """A set of FlashRAG's: its train split, and its test split (dev where it has none) as ``test``."""

    def of(name: str) -> PublicSet:
        stored = {"train": "train", "test": test_from}
        files = {split: (SourceFile(f"{_HUB}/{name}/{stored[split]}.jsonl"),) for split in rows}
        return PublicSet("search", "CC BY-SA 4.0 (FlashRAG); the set's own terms", files, rows, public_rows.question)

    return of


def _github(repository: str, commit: str) -> Callable[..., SourceFile]:
    def file(path: str, git_blob: str) -> SourceFile:
        return SourceFile(f"https://raw.githubusercontent.com/{repository}/{commit}/{path}", git_blob)

    return file


_logic_rl = _github("Unakar/Logic-RL", "9d2c457525ec14639e85afa12d49bb16efb053a4")
_lopti = _github("zhyang2226/AR-Lopti", "cbeb333376decdfe571fa8613bdebcfcc526628d")
_qwen = _github("QwenLM/Qwen2.5-Math", "a45202bd16f1ec06f433442dc1152d0074773465")
_rllm = _github("agentica-project/rllm", "874daa4acb7f451dc2a4b2b6e8ce28f5aa88d1f5")
_simplerl = _github("hkust-nlp/simpleRL-reason", "cf1c7858bfc145a27aa733e75d930d34f0d318a6")
_orz = _github("Open-Reasoner-Zero/Open-Reasoner-Zero", "3fdd9a07b4fb01e06005e6e74fc56690cde8a341")

# By the number of people: train, test.
_KK_BLOBS = {
    3: ("ebe777a3735cc53a0086ed17850f929c8a48f944", "7ab3c4835dcef9094f388649f40120cd11266166"),
    4: ("aba1a9aa0df6a1f404dbc3808722c14be86be995", "5be5ea56e63f0586f01879767d2e30c4314dfa8e"),
    5: ("c36143bd06bef0d2d8b4243fd864d0de0eb30634", "0e017e13b536eb5815d5c5daf1f13af5e859cf29"),
    6: ("60600e20fbe24bc18c97392c7c23a6ae152cd1fe", "4517474f3ed3f1fc63a091ceecca3dede55f8cb5"),
    7: ("e0226abd4238f2fd46954bae2da796db7bfcda7f", "848884aed525559789b31e6f19991991f626cd22"),
}


def _kk(split: str, place: int) -> tuple[SourceFile, ...]:
    return tuple(
        _logic_rl(f"data/kk/instruct/{people}ppl/{split}.parquet", blobs[place]) for people, blobs in _KK_BLOBS.items()
    )


def _math(
    licence: str,
    file: SourceFile,
    rows: int | None,
    *,
    split: str = "test",
    convert: Callable[[dict[str, Any], str], dict[str, Any]] = public_rows.problem,
) -> PublicSet:
    return PublicSet("math", licence, {split: (file,)}, {split: rows}, convert)


_NQ_TRAIN, _HOTPOTQA_TRAIN = 79_168, 90_447
_OWN_TERMS = "MIT (repository); the set's own terms"

PUBLIC_SETS: dict[str, PublicSet] = {
    "nq": _flashrag({"train": _NQ_TRAIN, "test": 3610})("nq"),
    "triviaqa": _flashrag({"test": 11_313})("triviaqa"),
    "popqa": _flashrag({"test": 14_267})("popqa"),
    "hotpotqa": _flashrag({"train": _HOTPOTQA_TRAIN, "test": 7405}, test_from="dev")("hotpotqa"),
    "2wikimultihopqa": _flashrag({"test": 12_576}, test_from="dev")("2wikimultihopqa"),
    "musique": _flashrag({"test": 2417}, test_from="dev")("musique"),
    "bamboogle": _flashrag({"test": 125})("bamboogle"),
    # Search-R1's training set: the two together.
    "nq_hotpotqa": PublicSet(
        "search",
        "CC BY-SA 4.0 (FlashRAG); the sets' own terms",
        {"train": (SourceFile(f"{_HUB}/nq/train.jsonl"), SourceFile(f"{_HUB}/hotpotqa/train.jsonl"))},
        {"train": _NQ_TRAIN + _HOTPOTQA_TRAIN},
        public_rows.question,
    ),
    "logic_rl": PublicSet(
        "kk",
        "Apache-2.0 (puzzles made with mem-kk-logic, MIT)",
        {"train": _kk("train", 0), "test": _kk("test", 1)},
        {"train": 4500, "test": 500},
        public_rows.puzzle,
    ),
    "dsr_uniform": _math(
        "Apache-2.0 (repository); DeepScaleR MIT",
        _lopti("data/deepscaler_c/deepscaler_uniform_train.parquet", "ce78a01254afc74827f85ef0278195476cfe3b0e"),
        10_000,
        split="train",
        convert=public_rows.verl_problem,
    ),
    "orz_57k": _math(
        "MIT",
        _orz("data/orz_math_57k_collected.json", "08812d4a47aadf8fa80a43f11431e6d41ba55b64"),
        None,
        split="train",
        convert=public_rows.orz,
    ),
    "math500": _math(
        "MIT",
        _simplerl("examples/simplelr_math_eval/data/math500/test.jsonl", "2376b9a194b46c0790e197c91b7249e5f88ac09b"),
        500,
    ),
    "olympiadbench": _math(
        _OWN_TERMS,
        _qwen("evaluation/data/olympiadbench/test.jsonl", "ec36280b1de8f5bbee92da696c2ae84f5f6e6beb"),
        675,
    ),
    "minerva": _math(
        _OWN_TERMS,
        _qwen("evaluation/data/minerva_math/test.jsonl", "123c5cd351cac2b8ead5413bc084629d7ff651de"),
        272,
        convert=public_rows.boxed_solution,
    ),
    "amc": _math(_OWN_TERMS, _rllm("rllm/data/test/math/amc.json", "ac11f74f22c4b79e9bf4aca53c885fcd35413749"), 83),
    "aime24": _math(
        _OWN_TERMS, _qwen("evaluation/data/aime24/test.jsonl", "bb72e176e8d30c09cd67037e17cfc41e6ff48f70"), 30
    ),
    "gsm8k": _math(
        _OWN_TERMS,
        _qwen("evaluation/data/gsm8k/test.jsonl", "3e6e62b831b5fcbf0585d0dce75ccc5e4ccb691c"),
        1319,
        convert=public_rows.gsm8k,
    ),
}
