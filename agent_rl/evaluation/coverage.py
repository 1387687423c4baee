"""`agent-rl data coverage`: what share of a set of questions an index can answer at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_rl.errors import ArtifactError
from agent_rl.evaluation.rows import set_of
from retrieval_index.corpus import Passage, PassageStore
from retrieval_index.retriever import Hit, Retriever
from tasks.base import TaskItem
from tasks.search.scoring import normalise_answer

# No passage says "yes": whether such an answer can be found is for the titles to tell.
UNSAID = {"yes", "no", "true", "false", ""}
QUERIES_PER_BATCH = 64


@dataclass(frozen=True, slots=True)
class Covered:
    """One question. None where it cannot be told: no gold titles in the data, an answer that no text says.

    ``answerable``: all gold titles are in the index, or, without titles, an answer string is. ``recall`` by k: share of
    the gold titles (without titles: 1 where an answer string is) among the first k passages for the question itself.
    """

    id: str
    set: str
    titles_present: float | None
    answer_present: bool | None
    answerable: bool
    recall: dict[int, float] | None


def cover(
    items: Sequence[TaskItem],
    retriever: Retriever,
    store: PassageStore,
    depths: Sequence[int],
    tick: Callable[[int], None],
) -> list[Covered]:
    """One record an item. Reads the passages once; ``tick`` is called with the number of passages or queries done."""
    titles, present = _scan((store[row] for row in range(len(store))), items, tick)
    found = []
    for start in range(0, len(items), QUERIES_PER_BATCH):
        batch = items[start : start + QUERIES_PER_BATCH]
        for item, hits in zip(batch, retriever.search([item.question for item in batch], max(depths)), strict=True):
            found.append(_judge(item, hits, titles, present, depths))
        tick(len(batch))
    return found


def gold_titles(item: TaskItem) -> list[str]:
    """Titles of the articles that answer a question, where the data name them (several public layouts)."""
    meta: dict[str, Any] = item.meta
    facts = meta.get("metadata", {}).get("supporting_facts") if isinstance(meta.get("metadata"), dict) else None
    titles = meta.get("supporting_titles") or meta.get("gold_titles") or (facts or {}).get("title") or []
    return list(dict.fromkeys(titles))


def _scan(
    passages: Iterable[Passage], items: Sequence[TaskItem], tick: Callable[[int], None]
) -> tuple[set[str], set[str]]:
    """(normalised titles of the index, normalised answers that some passage says)."""
    import ahocorasick_rs

    wanted = sorted({a for item in items for a in map(normalise_answer, item.gold)} - UNSAID)
    # With a space on both sides a match is of whole words; texts are normalised the same way.
    finder = ahocorasick_rs.AhoCorasick([f" {answer} " for answer in wanted])
    titles: set[str] = set()
    said: set[int] = set()
    for passage in passages:
        titles.add(normalise_answer(passage.title))
        text = f" {normalise_answer(passage.title + ' ' + passage.text)} "
        said.update(index for index, _, _ in finder.find_matches_as_indexes(text, overlapping=True))
        tick(1)
    return titles, {wanted[index] for index in said}


def _judge(item: TaskItem, hits: Sequence[Hit], titles: set[str], present: set[str], depths: Sequence[int]) -> Covered:
    gold = {normalise_answer(title) for title in gold_titles(item)}
    answers = {normalise_answer(answer) for answer in item.gold} - UNSAID
    answer_present = bool(answers & present) if answers else None
    titles_present = len(gold & titles) / len(gold) if gold else None
    recall: dict[int, float] | None = None
    if gold:
        recall = {k: len(gold & {normalise_answer(hit.title) for hit in hits[:k]}) / len(gold) for k in depths}
    elif answers:
        texts = [f" {normalise_answer(hit.title + ' ' + hit.text)} " for hit in hits]
        recall = {k: float(any(f" {a} " in text for a in answers for text in texts[:k])) for k in depths}
    answerable = titles_present == 1 if titles_present is not None else bool(answer_present)
    return Covered(item.id, set_of(item), titles_present, answer_present, answerable, recall)


def table(found: Sequence[Covered], depths: Sequence[int]) -> str:
    """Markdown, one row a set and one for all of them. any@k, all@k: questions with a gold title, or all of them, among
    the first k.
    """
    head = ["set", "questions", "answerable", "all gold titles in", "answer string in"]
    head += [f"{what}@{k}" for k in depths for what in ("recall", "any", "all")]
    sets = list(dict.fromkeys(row.set for row in found))
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for name in [*(sets if len(sets) > 1 else []), None]:
        rows = [row for row in found if name is None or row.set == name]
        cells = ["all" if name is None else name or "-", str(len(rows)), _share([row.answerable for row in rows])]
        cells.append(_share([row.titles_present == 1 for row in rows if row.titles_present is not None]))
        cells.append(_share([row.answer_present for row in rows if row.answer_present is not None]))
        for k in depths:
            shares = [row.recall[k] for row in rows if row.recall is not None]
            cells += [_share(shares), _share([share > 0 for share in shares]), _share([share == 1 for share in shares])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(values: Sequence[float | bool]) -> str:
    return f"{fmean(values):.3f}" if values else "-"


def write(found: Sequence[Covered], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in found), encoding="utf-8")


def read_answerable(path: str) -> set[str]:
    """Ids of the answerable questions of a file that ``write`` made. Raises ArtifactError where it is none."""
    try:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line]
        return {row["id"] for row in rows if row["answerable"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"coverage={path}: is not what agent-rl data coverage writes ({error})") from error
