"""The generated encyclopedia: same bytes everywhere, one right answer, disjoint splits, short passages."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from tasks.miniwiki import QUESTION_TYPES, generate, write_corpus
from tasks.miniwiki.entities import Community
from tasks.miniwiki.names import Names

TYPES = tuple(QUESTION_TYPES)


@cache
def world():
    return generate(0, 2000)


@cache
def questions(split: str, *types: str):
    return world().questions(split, types)


@cache
def texts() -> dict[str, str]:
    return {passage.title: passage.text for passage in world().passages}


@cache
def communities() -> list[Community]:
    return [community for block in range(world()._blocks) for community in world()._communities(block)]


def test_bytes_are_pinned(tmp_path):
    """Another digest makes every index and result of an earlier version worthless: change it knowingly."""
    path = write_corpus(tmp_path / "corpus.jsonl", seed=0, passages=300)
    digest = hashlib.sha256(path.read_bytes())
    for split in ("train", "dev", "test"):
        for item in generate(0, 300).questions(split, TYPES):
            digest.update(json.dumps([item.id, item.question, item.gold, item.meta]).encode())
    assert digest.hexdigest()[:16] == "fea53210e5c26d5e"


def test_hash_seed_plays_no_part():
    program = (
        "import hashlib; from tasks.miniwiki import generate, QUESTION_TYPES; w = generate(4, 400); "
        "print(hashlib.sha256(repr([w.passages, "
        "w.questions('dev', list(QUESTION_TYPES))]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


def test_seeds_give_different_worlds():
    ours, other = ({p.title for p in generate(seed, 300).passages} for seed in (0, 1))
    assert len(ours & other) < 5


@pytest.mark.parametrize("size", [300, 599, 600, 601, 1999])
def test_every_size_has_that_many_passages_with_their_own_titles(size):
    passages = generate(2, size).passages
    assert [p.id for p in passages] == [str(row) for row in range(size)]
    assert len({p.title for p in passages}) == size


@pytest.mark.parametrize("size", [0, 299, 1_000_001])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=str(size)):
        generate(0, size)


def test_names_suffice_for_a_million_passages_and_never_repeat():
    world_of_a_million = generate(11, 1_000_000)
    last = world_of_a_million._communities(world_of_a_million._blocks - 1)
    assert sum(len(community.entities()) for community in last) == 300
    names = Names(11)
    assert len({names.surname(i) for i in range(72_000)}) == 72_000
    assert len({names.town(i) for i in range(124_800)}) == 124_800
    with pytest.raises(ValueError, match="124801"):
        names.town(124_801)


def test_corpus_file_is_search_r1s_shape_and_leaves_nothing_behind(tmp_path):
    path = write_corpus(tmp_path / "deep" / "corpus.jsonl", seed=0, passages=2000)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows == [{"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in world().passages]
    assert [file.name for file in path.parent.iterdir()] == ["corpus.jsonl"]


def test_interrupted_corpus_leaves_no_file(tmp_path, monkeypatch):
    def broken(self):
        yield world().passages[0]
        raise KeyboardInterrupt

    monkeypatch.setattr("tasks.miniwiki.world.World.iter_passages", broken)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(tmp_path / "corpus.jsonl", seed=0, passages=300)
    assert list(tmp_path.iterdir()) == []


def test_passages_are_short():
    lengths = [len(text.split()) for text in texts().values()]
    assert sum(lengths) / len(lengths) < 20
    assert max(lengths) <= 40
    assert all(text.endswith(".") and text.count(". ") <= 2 for text in texts().values())


@pytest.mark.parametrize("kind", TYPES)
def test_there_are_questions_enough(kind):
    counts = [len(questions(split, kind)) for split in ("train", "dev", "test")]
    assert counts[0] >= 1200
    assert min(counts[1:]) >= 400


def test_ids_and_questions_are_unique():
    items = [item for split in ("train", "dev", "test") for item in questions(split, *TYPES)]
    assert max(Counter(item.id for item in items).values()) == 1
    assert max(Counter(item.question for item in items).values()) == 1


def test_answers_are_spans_of_the_passage_that_has_them():
    for item in questions("train", "one_hop", "two_hop"):
        passage = texts()[item.meta["supporting_titles"][-1]]
        assert item.gold[0] in passage, item
        assert not re.search(rf"\b{re.escape(item.gold[0])}\b", item.question), item


def test_two_hop_bridge_is_named_in_the_first_passage_only():
    for item in questions("train", "two_hop"):
        first, second = item.meta["supporting_titles"]
        assert second in texts()[first], item
        assert first in item.question, item
        assert second not in item.question, item


def test_comparisons_follow_from_the_years_of_both_passages():
    years = {
        entity.name: year
        for community in communities()
        for entity in community.entities()
        for year in [getattr(entity, "born", None) or getattr(entity, "founded", None) or getattr(entity, "year", None)]
    }
    for item in questions("train", "comparison"):
        a, b = item.meta["supporting_titles"]
        assert str(years[a]) in texts()[a], item
        assert item.gold == (min(a, b, key=years.__getitem__),)
        assert years[a] != years[b]


def test_yes_no_is_balanced_and_true():
    items = questions("train", "yes_no")
    assert 0.45 < Counter(item.gold[0] for item in items)["yes"] / len(items) < 0.55
    birthplace = {p.name: p.birthplace.name for c in communities() for p in c.people}
    checked = 0
    for item in items:
        if item.id.endswith("/birthplace"):
            people = item.meta["supporting_titles"]
            same = (
                birthplace[people[0]] == birthplace[people[1]]
                if len(people) == 2
                else f"born in {birthplace[people[0]]}?" in item.question
            )
            assert item.gold[0] == ("yes" if same else "no"), item
            checked += 1
    assert checked > 500


def test_relations_are_unambiguous():
    for community in communities():
        founders = [company.founder for company in community.companies]
        assert len({id(founder) for founder in founders}) == len(founders)
        for person in community.people:
            if person.spouse is not None:
                assert person.spouse.spouse is person
                assert person.spouse.married == person.married > max(person.born, person.spouse.born) + 15
                assert person.spouse.name in texts()[person.name]
            assert person.employer is None or not any(founder is person for founder in founders)
        for company in community.companies:
            assert company.founded >= company.founder.born + 20
        for work in community.works:
            assert work.year >= work.author.born + 20


def test_splits_share_no_record():
    by_split: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for split in by_split:
        for item in questions(split, *TYPES):
            by_split[split].update(item.meta["supporting_titles"])
            by_split[split].update(gold for gold in item.gold if gold in texts())
    assert not by_split["train"] & by_split["dev"]
    assert not by_split["train"] & by_split["test"]
    assert not by_split["dev"] & by_split["test"]


def test_names_look_alike():
    surnames = Counter(p.surname for c in communities() for p in c.people)
    assert surnames.most_common()[len(surnames) // 2][1] >= 4  # the median surname is shared by four or more
    stems = Counter(company.name.split()[0] for c in communities() for company in c.companies)
    assert sum(count == 2 for count in stems.values()) > len(stems) / 2


def test_prefix_of_the_questions_mixes_types_and_blocks():
    kinds = Counter(item.meta["type"] for item in questions("train", *TYPES)[:200])
    assert set(kinds) == set(TYPES)


def test_oracle_has_one_query_per_passage_with_its_title():
    for item in questions("dev", *TYPES):
        assert len(item.meta["oracle"]) == len(item.meta["supporting_titles"]) == item.meta["hops"]
        for query, title in zip(item.meta["oracle"], item.meta["supporting_titles"], strict=True):
            assert title in query
            assert len(query.split()) <= len(title.split()) + 3


@pytest.mark.parametrize(("split", "types"), [("validation", ["one_hop"]), ("dev", ["three_hop"]), ("dev", [])])
def test_unknown_split_or_type_is_refused(split, types):
    with pytest.raises(ValueError, match=r"train, dev, test|one_hop, two_hop"):
        world().questions(split, types)
