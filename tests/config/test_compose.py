"""Composing: presets, overrides, and every fault reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.commands import COMMANDS
from agent_rl.config.compose import CONFIG_DIR, compose, resolved_yaml
from agent_rl.config.schema import RunConfig
from agent_rl.errors import ConfigError, UsageError


def faults(command: str, *overrides: str, config_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(command, list(overrides), config_dir)
    assert caught.value.exit_code == 2
    return str(caught.value)


def presets(group: str) -> list[str]:
    return sorted(file.stem for file in (CONFIG_DIR / group).glob("*.yaml"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes_and_its_yaml_reads_back(command: str) -> None:
    record = compose(command, [])
    assert type(record).model_validate(yaml.safe_load(resolved_yaml(record))) == record


@pytest.mark.parametrize(
    ("command", "group", "preset"),
    [("train", group, name) for group in ("task", "algo", "model", "backend", "experiment") for name in presets(group)]
    + [("build-index", "encoder", name) for name in presets("encoder")],
)
def test_every_preset_composes(command: str, group: str, preset: str) -> None:
    compose(command, [f"{group}={preset}"])


def test_the_presets_of_tr_grpo_are_the_three_readings() -> None:
    readings = {}
    for name in ("tr_grpo", "tr_grpo_eq9", "tr_grpo_literal"):
        algo = compose("train", [f"algo={name}"]).algo
        assert algo.name == name
        assert (algo.token_weight.kind, algo.token_weight.tau, algo.token_weight.upper) == (
            "probability",
            9.0,
            1.4,
        )
        readings[name] = (algo.token_weight.form, algo.clip_on, algo.kl.weighting, algo.aggregate)
    assert readings == {
        "tr_grpo": ("multiply", "ratio", "outside", "token_mean"),
        "tr_grpo_eq9": ("multiply", "weighted_ratio", "inside", "group_token_mean"),
        "tr_grpo_literal": ("divide", "weighted_ratio", "inside", "group_token_mean"),
    }
    grpo = compose("train", ["algo=grpo"]).algo
    assert (grpo.token_weight.kind, grpo.kl.weighting, grpo.clip_low, grpo.clip_high) == (
        "none",
        "none",
        0.20,
        0.24,
    )


def test_the_paper_experiment_is_table_6() -> None:
    config = compose("train", ["experiment=search_paper"])
    assert (config.train.prompts_per_step, config.rollout.group_size) == (32, 8)
    assert (config.rollout.temperature, config.rollout.max_response_tokens) == (0.8, 4096)
    assert (config.train.optim.lr, config.algo.kl.beta, config.train.optim.max_grad_norm) == (
        1e-6,
        0.001,
        1.0,
    )
    assert (config.train.updates_per_rollout, config.train.checkpoint_every_steps) == (1, 20)


def test_overrides_win_over_experiments_and_experiments_over_groups() -> None:
    config = compose("train", ["train.steps=7", "experiment=demo", "algo=grpo", "model.lora.rank=4"])
    assert config.train.steps == 7
    assert config.task.prompt == "brief"
    assert config.algo.name == "grpo"
    assert config.algo.kl.beta == 0.0
    assert config.model.lora.rank == 4


def test_misspelt_keys_on_the_command_line_are_named_with_the_right_one() -> None:
    """unslothai/unsloth#10452 (B59): misspelt config keys dropped."""
    text = faults("train", "algo.clip_hgih=0.28", "rollout.group_sise=4", "algo.token_weight.tua=7")
    assert "3 faults" in text
    assert "algo.clip_hgih=0.28: unknown key; did you mean algo.clip_high?" in text
    assert "rollout.group_sise=4: unknown key; did you mean rollout.group_size?" in text
    assert "did you mean algo.token_weight.tau?" in text


def test_misspelt_keys_in_a_file_are_named_with_the_file(tmp_path: Path) -> None:
    """unslothai/unsloth#10452 (B59), the YAML half."""
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nalgo: {clip_hgih: 0.28}\ntrian: {steps: 3}\n", encoding="utf-8")
    text = faults("train", "experiment=mine", "seed=x", config_dir=tmp_path)
    assert f"algo.clip_hgih=0.28 (in {file}): unknown key; did you mean algo.clip_high?" in text
    assert f"trian.steps=3 (in {file}): unknown key; did you mean train.steps?" in text
    assert "seed=x: should be a valid integer" in text


def test_all_kinds_of_faults_come_together() -> None:
    text = faults(
        "train",
        "algo=tr_gpro",
        "train.steps=0",
        "eval.questions=many",
        "algo.kl=3",
        "rollout.temperature=nan",
        "train.optim.lr=true",
        "run_dir=5",
        "task.data.question_types=[one_hop,tow_hop]",
        "+seed=3",
        "eval.samples=1,2",
        "b=[",
        "rollout.group_size=4",
        "rollout.min_group=5",
    )
    assert "13 faults" not in text.splitlines()[0]  # group_size=4 alone is right
    assert "12 faults" in text.splitlines()[0]
    assert "algo=tr_gpro: no such preset; did you mean tr_grpo? (presets: ar, ar_lopti," in text
    assert "train.steps=0: should be greater than 0" in text
    assert "eval.questions=many: should be a valid integer" in text
    assert "algo.kl=3: is a section, not a value; its keys: algo.kl.beta" in text
    assert "rollout.temperature=NaN: should be a finite number" in text
    assert "train.optim.lr=true: should be a valid number" in text
    assert "run_dir='\"5\"'" in text
    assert "did you mean one_hop?" not in text
    assert "did you mean two_hop?" in text
    assert "+ is not used here" in text
    assert "eval.samples=1,2: is a sweep" in text
    assert "cannot read the override 'b=['" in text
    assert "rollout.min_group=5 is above rollout.group_size=4" in text


def test_a_cross_field_fault_that_rests_on_a_reported_value_is_not_invented() -> None:
    text = faults("train", "rollout.group_size=x", "rollout.min_group=16")
    assert "1 fault " in text
    assert "above" not in text


def test_cross_field_faults_of_two_records_are_both_reported() -> None:
    text = faults("train", "algo=grpo", "algo.kl.weighting=outside", "rollout.min_group=9")
    assert "kl.weighting needs a token_weight" in text
    assert "rollout.min_group=9 is above rollout.group_size=8" in text


def test_keys_of_another_branch_name_the_branch() -> None:
    text = faults("train", "task.data.train=q.jsonl", "task.data.passsages=400")
    assert "belongs to task.data.kind=jsonl; add task.data.kind=jsonl" in text
    assert "did you mean task.data.passages?" in text
    assert "did you mean task.data.eval_fraction?" in faults(
        "train", "task.data.kind=jsonl", "task.data.eval_fracton=0.1"
    )
    assert "is not one of" in faults("train", "task.data.kind=jsonlines")


def test_a_new_kind_drops_what_the_preset_said_of_the_old_one() -> None:
    config = compose("train", ["task.data.train=a.jsonl", "task.data.kind=jsonl", "experiment=demo"])
    assert config.task.data.model_dump(exclude_none=True) == {
        "kind": "jsonl",
        "train": "a.jsonl",
        "eval_fraction": 0.2,
    }


def test_paths_and_hub_ids_stand_for_a_preset(tmp_path: Path) -> None:
    assert compose("train", ["model=Qwen/Qwen2.5-3B"]).model.path == "Qwen/Qwen2.5-3B"
    assert compose("train", [f"model={tmp_path}"]).model.path == str(tmp_path)
    built = compose("build-index", ["corpus=my.jsonl", "encoder=./e5"])
    assert (built.corpus.kind, built.corpus.path, built.encoder.path) == ("file", "my.jsonl", "./e5")
    assert "no such preset; did you mean e5_base_v2?" in faults("build-index", "encoder=e5_base")
    assert "corpus.path: needs a value" in faults("build-index", "corpus=file")


def test_null_lists_and_quoted_text_go_through() -> None:
    config = compose(
        "train",
        [
            "algo.log_ratio_clamp=null",
            "task.data.question_types=[one_hop,two_hop]",
            "run_dir='runs/a, b=[c]'",
        ],
    )
    assert config.algo.log_ratio_clamp is None
    assert config.task.data.question_types == ("one_hop", "two_hop")
    assert config.run_dir == "runs/a, b=[c]"


def test_a_saved_run_is_the_base_of_eval(tmp_path: Path) -> None:
    saved = compose("train", ["experiment=demo", "algo=grpo", "eval.questions=11"])
    (tmp_path / "config.yaml").write_text(resolved_yaml(saved), encoding="utf-8")
    config = compose("eval", [f"run={tmp_path}", "eval.samples=0"])
    assert (config.run_dir, config.algo.name, config.task.prompt) == (str(tmp_path), "grpo", "brief")
    assert (config.eval.questions, config.eval.samples) == (11, 0)
    assert compose("eval", [f"run={tmp_path}", "algo=tr_grpo"]).algo.name == "tr_grpo"
    assert compose("eval", []).chosen_checkpoint() is None
    assert compose("eval", [f"run={tmp_path}"]).chosen_checkpoint() == "latest"
    assert compose("rollout", [f"run={tmp_path}", "checkpoint=10"]).chosen_checkpoint() == "10"
    assert compose("eval", [f"run={tmp_path}", "checkpoint=base"]).chosen_checkpoint() is None
    with pytest.raises(UsageError, match="does not exist"):
        compose("eval", [f"run={tmp_path / 'nowhere'}"])


def test_a_folder_of_presets_may_not_shadow_ours(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("defaults: [tr_grpo]\nname: mine\nclip_high: 0.3\n", encoding="utf-8")
    algo = compose("train", ["algo=mine"], tmp_path).algo
    assert (algo.name, algo.clip_high, algo.token_weight.kind) == ("mine", 0.3, "probability")
    (tmp_path / "algo" / "grpo.yaml").write_text("name: grpo\n", encoding="utf-8")
    with pytest.raises(UsageError, match="rename it"):
        compose("train", [], tmp_path)


def test_a_broken_file_is_a_config_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("algo: [\n", encoding="utf-8")
    assert "broken" in faults("train", "experiment=broken", config_dir=tmp_path)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=30), max_size=3))
def test_no_text_on_the_command_line_escapes_the_two_errors(texts: list[str]) -> None:
    try:
        record = compose("train", texts)
    except (ConfigError, UsageError):
        return
    assert isinstance(record, RunConfig)


@pytest.mark.parametrize(
    ("command", "override", "says"),
    [
        ("train", "=1", "cannot read the override '=1'"),
        ("train", "task@foo=search", "task@foo=search: takes no package; "),
        ("train", "task.data.question_types=[]", "task.data.question_types=[]: "),
        ("train", "run_dir=''", "run_dir=: "),
        ("build-index", "out=''", "out=: "),
        ("serve-tools", "index=''", "index=: "),
        ("serve-tools", "search.max_top_k=5000", "search.max_top_k=5000: should be less than or equal to 2048"),
        ("train", "tools.url=nonsense", "tools.url: 'nonsense' is not an address; write it as http://"),
        ("train", "tools.url=127.0.0.1:8900", "tools.url: '127.0.0.1:8900' is not an address"),
        ("train", "tools.url=http://127.0.0.1:99999", "tools.url: 'http://127.0.0.1:99999' is not an address"),
        ("train", "tools.url='http://[::1'", "tools.url: 'http://[::1' is not an address"),
    ],
)
def test_values_that_would_fail_later_are_faults_now(command: str, override: str, says: str) -> None:
    text = faults(command, override)
    assert text.startswith("1 fault in the configuration")
    assert says in text


def test_a_section_as_one_value_leaves_its_other_keys() -> None:
    """`train={steps: 5}` once put the schema's defaults in place of the experiment's."""
    dotted = compose("train", ["experiment=demo", "train.steps=5", "train.optim.lr=0.1"])
    assert compose("train", ["experiment=demo", "train={steps:5,optim:{lr:0.1}}"]) == dotted
    data = compose("train", ["task.data={kind:jsonl,train:q.jsonl}"]).task.data
    assert (data.kind, data.train) == ("jsonl", "q.jsonl")


def test_a_preset_that_cannot_be_composed_is_a_short_message(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("defaults: [nope]\n")
    (tmp_path / "algo" / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    text = faults("train", "algo=mine", config_dir=tmp_path)
    assert "algo=mine of --config-dir" in text
    assert "nope" in text
    assert "\n" not in text
    assert "algo=binary" in faults("train", "algo=binary", config_dir=tmp_path)


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"", b"[1]"])
def test_a_saved_configuration_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    assert f"{tmp_path / 'config.yaml'}: is not a saved configuration" in faults("eval", f"run={tmp_path}")
