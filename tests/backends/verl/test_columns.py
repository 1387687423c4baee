"""What the driver writes for the loss: counts of the whole optimiser batch, masks, order, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agent_rl.algo.objective import Objective
from agent_rl.backends.verl.columns import COUNTS, Count, Row, record_weights, row_columns
from agent_rl.backends.verl.dataset import export_dataset, read_item
from agent_rl.backends.verl.groups import gather, updates_of_rows
from agent_rl.backends.verl.published import publish, resume_folder, verl_folder
from agent_rl.config.compose import compose
from agent_rl.errors import ArtifactError
from agent_rl.testing import EchoTask
from agent_rl.train.batch import TrainSequence
from agent_rl.train.checkpoint import find_checkpoints, find_model
from agent_rl.train.order import ItemOrder
from agent_rl.train.update import count_batch


def sequence(group: int, trained: int, advantage: float = 1.0) -> TrainSequence:
    mask = [0, 0, *[1] * trained, 0]
    return TrainSequence([5] * len(mask), mask, [0.0] * len(mask), advantage, group)


def row(its: TrainSequence | None, update: int = 0, response: int = 1) -> Row:
    mask = torch.tensor(its.mask[2:]) if its is not None else torch.zeros(response, dtype=torch.long)
    return Row(mask, torch.full((len(mask),), -0.5), torch.full((len(mask),), 0.7), its, update)


def objective(*overrides: str) -> Objective:
    return Objective(compose("train", list(overrides)).algo, 100)


def test_counts_are_those_of_the_rows_update() -> None:
    members = [sequence(0, 3), sequence(0, 5), sequence(1, 2, -2.0), sequence(2, 4)]
    rows = [row(members[0]), row(members[2], 1), row(members[1]), row(None), row(members[3], 1)]
    columns = row_columns(rows, objective(), [1e-3, 2e-3])
    assert [count.tolist() for count in columns[COUNTS]] == [
        [8, 2, 1, 8, 1e-3],
        [6, 2, 2, 2, 2e-3],
        [8, 2, 1, 8, 1e-3],
        [8, 2, 1, 0, 1e-3],
        [6, 2, 2, 4, 2e-3],
    ]
    assert count_batch(members[:2]).tokens == 8
    assert [mask.tolist() for mask in columns["response_mask"]] == [
        [1, 1, 1, 0],
        [1, 1, 0],
        [1, 1, 1, 1, 1, 0],
        [0],
        [1, 1, 1, 1, 0],
    ]
    assert columns["advantages"][1].tolist() == [-2.0, -2.0, 0.0]
    assert len(columns[COUNTS][0]) - 1 == Count.RATE


def test_a_mask_that_is_not_the_ledgers_is_a_bug() -> None:
    wrong = row(sequence(0, 3))
    wrong.mask = torch.tensor([1, 1, 1, 1])
    with pytest.raises(AssertionError, match="not the ledger's"):
        row_columns([wrong], objective(), [1.0])


def test_the_filter_looks_at_the_whole_update() -> None:
    rows = [row(sequence(0, 4)), row(sequence(1, 6)), row(sequence(2, 10), 1)]
    for place, its in enumerate(rows):
        its.old_entropy = torch.arange(len(its.mask)) + 10.0 * place
    columns = row_columns(rows, objective("algo=high_entropy"), [1.0, 1.0])
    picked = [int(column.sum()) for column in columns["agent_rl_selected"]]
    assert picked == [0, 2, 2]  # the top fifth of 10 and of 10


def test_weights_are_recorded_on_trained_tokens() -> None:
    its = sequence(3, 2)
    record_weights([row(its), row(None)], objective("algo=tr_grpo"))
    expected = 2 * (torch.sigmoid(torch.tensor(9 * 0.60653066)) - 0.25)
    assert its.weights == [None, None, pytest.approx(min(float(expected), 1.4)), pytest.approx(1.4), None]


def test_whole_groups_are_dealt_in_turn_and_the_rest_fills_up() -> None:
    """As the embedded backend deals them: groups 0, 2, 3 (1 was dropped) to updates 0, 1, 0."""
    made = {group: sequence(group, 2) for group in (0, 2, 3)}
    rows = [made[0], None, made[2], None, made[3], made[0], None, made[2]]
    found = updates_of_rows(rows, updates=2)
    assert [found[place] for place in (0, 5, 4)] == [0, 0, 0]
    assert [found[place] for place in (2, 7)] == [1, 1]
    assert sorted(found) == [0] * 4 + [1] * 4


async def test_groups_come_back_in_order_and_too_small_ones_are_dropped() -> None:
    import pickle

    from agent_rl.rollout.ledger import TokenLedger
    from agent_rl.rollout.trajectory import Trajectory
    from tasks.base import Score

    task = EchoTask(2)
    fields = []
    for place, sample, value in ((1, 1, None), (0, 1, 1.0), (1, 0, 1.0), (0, 0, -1.0)):
        item = task.items("train")[place]
        trajectory = Trajectory(item, f"s{place}{sample}", f"g{place}", sample, TokenLedger())
        trajectory.score = None if value is None else Score(value)
        fields.append({"place": place, "trajectory": pickle.dumps(trajectory)})
    groups, trajectories = gather(fields, min_group=2)
    assert [group.id for group in groups] == ["g0", "g1"]
    assert [[t.sample for t in group.trajectories] for group in groups] == [[0, 1], [0, 1]]
    assert [group.kept for group in groups] == [True, False]
    assert [t.session for t in trajectories] == ["s11", "s01", "s10", "s00"]


def test_the_dataset_is_in_the_order_of_the_steps(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    config = compose("train", ["backend=verl", "train.steps=3", "train.prompts_per_step=2"])
    order = ItemOrder(EchoTask(4).items("train"), seed=3)
    path = export_dataset(config, EchoTask(4), order, tmp_path)
    rows = pq.read_table(path).to_pylist()
    assert [read_item(found["extra_info"]["item"]) for found in rows] == order.take(0, 6)
    assert [found["extra_info"]["place"] for found in rows] == [0, 1] * 3
    assert rows[0]["prompt"] == [{"role": "user", "content": order.take(0, 1)[0].question}]
    assert {found["agent_name"] for found in rows} == {"agent_rl"}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["rows"], manifest["questions"], manifest["steps"]) == (6, 4, 3)


def verl_saves(run_dir: Path, step: int) -> None:
    folder = verl_folder(run_dir, step) / "actor" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * step)


def test_checkpoints_are_published_and_old_ones_dropped_with_verls_part(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        verl_saves(tmp_path, step)
        publish(tmp_path, step, prompt_format="plain", keep=2)
    assert [checkpoint.step for checkpoint in find_checkpoints(tmp_path)] == [4, 6]
    assert not verl_folder(tmp_path, 2).exists()
    assert find_model(tmp_path, "latest")[1:] == ("step_000006", 6)
    last = find_checkpoints(tmp_path)[-1]
    assert json.loads((last.model_dir / "agent_rl.json").read_text()) == {"prompt_format": "plain"}
    assert (last.model_dir / "model.safetensors").stat().st_nlink == 2  # no second copy
    assert resume_folder(tmp_path, last) == verl_folder(tmp_path, 6)
    # A checkpoint that was not published (killed in between) does not count, and the run does not go on from it.
    verl_saves(tmp_path, 8)
    assert find_checkpoints(tmp_path)[-1].step == 6


def test_a_run_of_the_other_backend_is_not_gone_on_with(tmp_path: Path) -> None:
    verl_saves(tmp_path, 2)
    checkpoint = publish(tmp_path, 2, prompt_format="plain", keep=2)
    manifest = checkpoint.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"verl"', "1"))
    with pytest.raises(ArtifactError, match="written by the embedded backend"):
        resume_folder(tmp_path, find_checkpoints(tmp_path)[-1])


def test_the_optimiser_takes_the_rate_that_came_with_the_batch(monkeypatch) -> None:
    """Rate 0 (nothing has a gradient) is no step, not even of momentum; no rate at all is a bug."""
    from agent_rl.backends.verl import optimizer

    monkeypatch.setattr(optimizer, "_rate", None)
    parameter = torch.nn.Parameter(torch.ones(3))
    adamw = optimizer.AdamW([parameter], lr=1.0)
    parameter.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="no learning rate"):
        adamw.step()
    optimizer.set_rate(0.01)
    adamw.step()
    assert torch.allclose(parameter, torch.full((3,), 0.99), atol=1e-3)
    moved = parameter.detach().clone()
    parameter.grad = torch.zeros(3)
    optimizer.set_rate(0.0)
    adamw.step()
    assert torch.equal(parameter, moved)
