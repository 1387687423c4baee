"""The whole loop: warm-up, rollouts over HTTP, updates, what is stored, and a tool server that dies."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agent_rl.config.commands import EvalCommand
from agent_rl.config.schema import RunConfig
from agent_rl.errors import ArtifactError, TrainingError, UsageError
from agent_rl.evaluation.command import evaluate_command
from agent_rl.train.checkpoint import find_checkpoints, find_model, load_checkpoint
from agent_rl.train.launch import train, warmup
from agent_rl.train.policy import Policy, load_model
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder
from tools.app import create_app
from tools.search import SearchTool
from tools.testing import RunningServer

pytestmark = pytest.mark.slow
# A float32 sum depends, in its last bits, on who else is in the batch, and that on the tool's timing: now and then a
# number drawn falls on the other side of a token's boundary, and the runs part. Twice in a row it is a fault.
may_part_by_rounding = pytest.mark.flaky(reruns=1, only_rerun="AssertionError")


def go(values: dict, said: list[str] | None = None):
    return train(RunConfig.model_validate(values), log=(said if said is not None else []).append)


def state(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(find_checkpoints(run_dir)[-1].path / "trainer.safetensors")


def when(condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Does ``act`` in another thread as soon as ``condition`` holds."""

    def watch() -> None:
        ends = time.monotonic() + 30
        while not condition() and time.monotonic() < ends:
            time.sleep(0.001)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


# ------------------------------------------------------------ an undisturbed run


def test_warm_up_and_three_steps(tmp_path, serve, settings, metrics, trajectories) -> None:
    server, tool = serve()
    values = settings(tmp_path / "run", server.url, warmup={"traces": 60, "epochs": 5, "lr": 5e-3})
    result = go(values)
    assert (result.step, result.interrupted) == (3, False)
    lines = metrics(tmp_path / "run")
    updates = 5 * math.ceil(60 / 8)
    assert [(line["phase"], line["step"]) for line in lines] == [
        *(("warmup", number) for number in range(1 - updates, 1)),
        *(("train", number) for number in (1, 2, 3)),
    ]
    losses = [line["warmup/loss"] for line in lines[:updates]]
    assert losses[-1] < losses[0] / 3
    assert tool.calls > 60, "the demonstrations were made with the real tool"
    for line in lines[updates:]:
        assert line["rollout/trajectories"] == 12
        assert line["rollout/failed"] == 0
        assert line["rollout/searches_mean"] > 0
        assert line["rollout/generate_s_mean"] > 0
        assert 0 <= line["rollout/tool_hidden_share"] <= 1
        assert (line["rollout/kv_evictions"], line["rollout/reprefilled_tokens"]) == (0, 0)
        assert line["mismatch/mean_abs_logp"] < 1e-3
        assert line["mismatch/max_abs_logp"] < 1e-3
        assert line["objective/ratio_max"] == pytest.approx(1.0)
        assert 0 < line["weight/mean"] <= 1.4
    assert [checkpoint.step for checkpoint in find_checkpoints(tmp_path / "run")] == [2, 3]
    for step in (1, 2, 3):
        records = trajectories(tmp_path / "run", step)
        assert len(records) == 12
        trained = 0
        for record in records:
            assert record["loss_mask"] == [int(author == 1) for author in record["authors"]]
            assert record["versions"] == [step - 1 if flag else -1 for flag in record["loss_mask"]]
            assert all(
                (value < 0) == bool(flag) for value, flag in zip(record["logprobs"], record["loss_mask"], strict=True)
            )
            assert record["authors"][0] == 0
            assert sum(record["loss_mask"]) > 0
            worked = [weight is not None for weight in record["weights"]]
            assert worked == [bool(flag) and record["advantage"] != 0 for flag in record["loss_mask"]]
            assert record["reward"] == 2 * record["score_parts"]["em"] - 1
            assert "".join(record["pieces"]).count("Question") == 1
            trained += sum(record["loss_mask"])
        assert trained == next(line for line in lines if line["step"] == step)["objective/trained_tokens"]
        advantages = {record["group"]: 0.0 for record in records}
        for record in records:
            advantages[record["group"]] += record["advantage"]
        assert all(abs(total) < 1e-4 for total in advantages.values())
    said: list[str] = []
    assert go(values, said).step == 3
    assert "nothing left to do" in said[-1]


@may_part_by_rounding
def test_one_seed_one_run(tmp_path, serve, settings, warm_folder, trajectories) -> None:
    server, _ = serve()
    for name in ("a", "b"):
        go(settings(tmp_path / name, server.url, model={"path": str(warm_folder)}, train={"steps": 2}))
    go(settings(tmp_path / "c", server.url, model={"path": str(warm_folder)}, train={"steps": 2}, seed=1))
    for step in (1, 2):
        a, b, c = ([record["ids"] for record in trajectories(tmp_path / name, step)] for name in "abc")
        assert a == b
        assert a != c
    first, second = state(tmp_path / "a"), state(tmp_path / "b")
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, atol=1e-5, rtol=1e-4)


def test_two_updates_of_one_rollout(tmp_path, serve, settings, warm_folder, metrics) -> None:
    server, _ = serve()
    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder)},
        train={"updates_per_rollout": 2, "steps": 2, "drop_uniform_groups_from_batch": False},
        sampler={"kind": "hf", "kv_budget_mb": 0},
    )
    go(values)
    for line in metrics(tmp_path / "run"):
        # Groups 0 and 2 in the first update, group 1 in the second, which is off-policy by one update.
        assert line["objective/forward_sequences"] == (8 + 4) / 2
        assert line["objective/ratio_max"] > 1.0
        assert line["objective/ratio_mean"] == pytest.approx(1.0, abs=0.1)
        assert line["rollout/kv_evictions"] >= 12, "no budget: at least each trajectory's first turn"
        assert line["rollout/reprefilled_tokens"] > 0
        assert line["sampler/reused_tokens"] == 0
    steps = {name: int(value) for name, value in state(tmp_path / "run").items() if name.startswith("adamw.step")}
    assert max(steps.values()) <= 4
    assert max(steps.values()) >= 3


def test_warmup_alone_then_train(tmp_path, serve, settings, steps_done) -> None:
    server, _ = serve()
    values = settings(tmp_path / "run", server.url, warmup={"traces": 16}, train={"steps": 1})
    config = RunConfig.model_validate(values)
    assert warmup(config, log=lambda _: None).step == 0
    assert [checkpoint.step for checkpoint in find_checkpoints(tmp_path / "run")] == [0]
    assert warmup(config, log=lambda _: None).step == 0, "not done a second time"
    assert steps_done(tmp_path / "run") == []
    assert go(values).step == 1
    assert steps_done(tmp_path / "run") == [1]


def test_lora_run_goes_on_and_is_evaluated(tmp_path, serve, settings, warm_folder, metrics) -> None:
    server, _ = serve()
    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder), "lora": {"rank": 4, "alpha": 8}},
        algo={"kl": {"beta": 0.01}},
        train={"steps": 2},
        eval={"questions": 4, "samples": 2},
    )
    go(values)
    assert all("lora_" in name for name in state(tmp_path / "run"))
    assert metrics(tmp_path / "run")[-1]["objective/kl"] > 0
    config = RunConfig.model_validate(values)
    evaluate_command(EvalCommand.model_validate(values | {"checkpoint": "latest"}), tmp_path / "out")
    assert (tmp_path / "out" / "step_000002_dev.json").is_file()
    # What is evaluated is the adapted model, not the bare base that the adapter's folder names.
    base, _ = load_model(str(warm_folder), config.model)
    policy = Policy(base, config.model, config.train.optim)
    load_checkpoint(find_checkpoints(tmp_path / "run")[-1], policy)
    found, _ = load_model(find_model(Path(config.run_dir), "latest")[0], config.model)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        adapted, loaded = policy.model(input_ids=ids).logits, found(input_ids=ids).logits
        with policy.reference_mode():
            bare = policy.model(input_ids=ids).logits
    torch.testing.assert_close(loaded, adapted, atol=1e-5, rtol=0)
    assert float((adapted - bare).abs().max()) > 1e-4


def test_evaluations_before_between_and_after(tmp_path, serve, settings, warm_folder, metrics, steps_done) -> None:
    server, _ = serve()
    evaluations = {"before": True, "after": True, "every_steps": 1, "questions": 6, "samples": 2}
    values = settings(tmp_path / "run", server.url, model={"path": str(warm_folder)}, eval=evaluations)
    go(values)
    folder = tmp_path / "run" / "eval"
    summaries = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert sorted(summaries) == ["after", "before", "comparison", "step_000001", "step_000002"]
    assert {label: found["step"] for label, found in summaries.items() if "step" in found} == {
        "before": 0,
        "step_000001": 1,
        "step_000002": 2,
        "after": 3,
    }
    rows = [json.loads(line) for line in (folder / "after.jsonl").read_text().splitlines()]
    assert [row["mode"] for row in rows] == ["greedy"] * 6 + ["sampled"] * 12
    lines = [(line["phase"], line["step"]) for line in metrics(tmp_path / "run")]
    assert [step for phase, step in lines if phase == "eval"] == [0, 1, 2, 3]
    assert steps_done(tmp_path / "run") == [1, 2, 3]
    counted = [line for line in metrics(tmp_path / "run") if line["phase"] == "train"]
    for line in counted:
        # The evaluation's tokens are not the step's.
        assert line["sampler/mean_batch"] <= 12


# ------------------------------------------------------------ the tool server dies


@may_part_by_rounding
def test_server_killed_and_restarted_within_the_timeout_breaks_nothing(
    tmp_path, serve, settings, warm_folder, metrics, trajectories
) -> None:
    server, tool = serve()

    def replace_server() -> None:
        tool.gate.clear()
        time.sleep(0.05)
        server.kill()
        serve(server.port)

    values = settings(tmp_path / "run", server.url, model={"path": str(warm_folder)})
    watcher = when(lambda: tool.calls >= 15, replace_server)
    go(values)
    watcher.join(30)
    assert [line["rollout/failed"] for line in metrics(tmp_path / "run")] == [0, 0, 0]
    quiet, _ = serve()
    go(settings(tmp_path / "quiet", quiet.url, model={"path": str(warm_folder)}))
    for step in (1, 2, 3):
        ours, theirs = (trajectories(tmp_path / name, step) for name in ("run", "quiet"))
        assert [record["ids"] for record in ours] == [record["ids"] for record in theirs]


def test_no_reward_for_what_a_dead_server_broke(tmp_path, serve, settings, warm_folder, metrics, trajectories) -> None:
    """PrimeIntellect-ai/prime-rl#2076: failures of infrastructure were scored 0 and trained on."""
    server, tool = serve()

    def outage() -> None:
        tool.gate.clear()
        time.sleep(0.05)
        server.kill()
        time.sleep(4.0)
        serve(server.port)

    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder)},
        tools={"call_timeout_s": 2.0},
        rollout={"retries": 0, "max_failed_fraction": 1.0},
        train={"steps": 8},
    )
    watcher = when(lambda: tool.calls >= 15, outage)
    assert go(values).step == 8
    watcher.join(30)
    lines = metrics(tmp_path / "run")
    assert sum(line["rollout/failed"] for line in lines) >= 1
    assert lines[-1]["rollout/failed"] == 0, "it went on after the outage"
    for step in range(1, 9):
        records = trajectories(tmp_path / "run", step)
        broken = [record for record in records if record["error"] is not None]
        assert len(broken) == lines[step - 1]["rollout/failed"] == lines[step - 1]["tool/failures"]
        for record in broken:
            assert record["error"]["boundary"] == "tool"
            assert (record["reward"], record["advantage"]) == (None, None)
            assert set(record["weights"]) == {None}
        survivors = [record for record in records if record["error"] is None]
        assert all(record["reward"] in (-1.0, 1.0) for record in survivors)


def test_survivors_of_a_group_are_compared_with_each_other_alone(
    tmp_path, serve, settings, warm_folder, metrics, trajectories
) -> None:
    server, tool = serve()
    tool.breaks = lambda call: int(call.session.split("/")[-2]) % 4 == 0  # every fourth member of a group
    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder)},
        tools={"call_timeout_s": 3.0},  # a busy machine must not break the others
        algo={"advantage": "group_mean"},
        rollout={"group_size": 8, "retries": 0, "max_failed_fraction": 1.0},
        train={"steps": 1},
    )
    go(values)
    (line,) = metrics(tmp_path / "run")
    records = trajectories(tmp_path / "run", 1)
    broken = [record for record in records if record["error"]]
    assert len(broken) == line["rollout/failed"] >= 3
    assert all(record["sample"] % 4 == 0 for record in broken)
    assert all((record["reward"], record["advantage"]) == (None, None) for record in broken)
    unequal = 0
    for group in {record["group"] for record in records}:
        alive = [record for record in records if record["group"] == group and not record["error"]]
        mean = sum(record["reward"] for record in alive) / len(alive)
        assert [r["advantage"] for r in alive] == pytest.approx([r["reward"] - mean for r in alive])
        unequal += len({record["reward"] for record in alive}) > 1
    assert unequal, "at least one group says something"


def test_step_without_a_survivor_ends_the_run_and_says_how_to_go_on(
    tmp_path, serve, settings, warm_folder, steps_done
) -> None:
    server, tool = serve()

    def kill() -> None:
        tool.gate.clear()
        time.sleep(0.05)
        server.kill()

    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder)},
        tools={"call_timeout_s": 5.0},  # a busy machine must not break what the live server answers
        rollout={"retries": 0, "max_failed_fraction": 0.3},
        train={"checkpoint_every_steps": 50},
    )
    watcher = when(lambda: len(steps_done(tmp_path / "run")) >= 1, kill)
    with pytest.raises(TrainingError) as caught:
        go(values)
    watcher.join(30)
    text = str(caught.value)
    last = max(steps_done(tmp_path / "run"))
    assert [checkpoint.step for checkpoint in find_checkpoints(tmp_path / "run")] == [last]
    assert text.startswith(f"step {last + 1}: ")
    assert "of the rollouts were broken (rollout.max_failed_fraction=0.3)" in text
    assert "the tool server at" in text
    assert f"A checkpoint of step {last} is written: mend the cause and give the same command to go on" in text
    serve(server.port)
    assert go(values).step == 3
    assert steps_done(tmp_path / "run") == [1, 2, 3]


def test_token_that_is_refused_is_said_plainly(tmp_path, settings, warm_folder, index_folder) -> None:
    tool = SearchTool(Retriever.open(index_folder, HashedWordsEncoder()))
    with RunningServer(create_app(lambda: [tool], token="a long random word")) as server:
        values = settings(tmp_path / "run", server.url, model={"path": str(warm_folder)})
        with pytest.raises(UsageError, match="refused the token"):
            go(values)


def test_no_server_at_the_start(tmp_path, serve, settings) -> None:
    server, _ = serve()
    server.kill()
    with pytest.raises(UsageError, match=r"agent-rl serve-tools(.|\n)*tools.autostart=true"):
        go(settings(tmp_path / "run", server.url))


# ------------------------------------------------------------ finding what a run made


def test_find_model(tmp_path, serve, settings, warm_folder) -> None:
    server, _ = serve()
    values = settings(tmp_path / "run", server.url, model={"path": str(warm_folder)})
    go(values)
    config, folder = RunConfig.model_validate(values), tmp_path / "run" / "checkpoints"
    assert find_model(Path(config.run_dir), "latest") == (str(folder / "step_000003" / "model"), "step_000003", 3)
    assert find_model(Path(config.run_dir), "2") == (str(folder / "step_000002" / "model"), "step_000002", 2)
    assert find_model(Path(config.run_dir), str(folder / "step_000002"))[0] == str(folder / "step_000002" / "model")
    assert find_model(Path(config.run_dir), str(warm_folder))[0] == str(warm_folder)
    with pytest.raises(ArtifactError, match=r"checkpoint=7: not in .*steps there: 2, 3"):
        find_model(Path(config.run_dir), "7")
    with pytest.raises(ArtifactError, match="no such folder"):
        find_model(Path(config.run_dir), str(tmp_path / "nowhere"))
