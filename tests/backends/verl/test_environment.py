"""What is missing is said in one line, exit 2, before anything starts. These run without verl too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent_rl.backends.verl import environment
from agent_rl.backends.verl.memory import GIB, check_memory, memory_need
from agent_rl.backends.verl.refusals import check_supported
from agent_rl.config.compose import compose
from agent_rl.config.schema import ModelConfig, RunConfig, VerlBackend
from agent_rl.errors import ConfigError, UsageError

VERSIONS = {"verl": "0.9.1", "TransferQueue": "0.1.11", "tensordict": "0.10.0", "torchdata": "0.11.0", "ray": "2.60.0"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"verl": None}, "which is not installed"),
        ({"verl": "0.10.0"}, "verl 0.10.0 is installed"),
        ({"ray": None}, "needs ray, not installed"),
        ({"TransferQueue": None, "torchdata": None}, "needs TransferQueue, torchdata"),
    ],
)
def test_a_lack_is_named_with_its_remedy(changes, wanted, monkeypatch) -> None:
    monkeypatch.setattr(environment, "_version", lambda name: (VERSIONS | changes)[name])
    with pytest.raises(UsageError, match='pip install "agent-rl') as raised:
        environment.check_environment()
    assert wanted in str(raised.value)
    assert raised.value.exit_code == 2


def test_all_there(monkeypatch) -> None:
    monkeypatch.setattr(environment, "_version", VERSIONS.get)
    environment.check_environment()
    environment.check_environment("my_engine")
    with pytest.raises(UsageError, match=r"backend\.rollout_engine=vllm needs vllm"):
        environment.check_environment("vllm")


def test_the_command_line_says_so(tmp_path: Path) -> None:
    """Where verl is installed, its being hidden stands in for its absence."""
    code = (
        "import sys\nfrom agent_rl.backends.verl import environment\nenvironment._version = lambda name: None\n"
        "from agent_rl.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "backend=verl", f"run_dir={tmp_path / 'run'}"],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        'agent-rl: backend=verl needs verl 0.9.1, which is not installed: pip install "agent-rl[verl]"'
    )
    assert not (tmp_path / "run").exists()


def refused(*overrides: str) -> str:
    config = compose("train", ["backend=verl", *overrides])
    assert isinstance(config, RunConfig)
    assert isinstance(config.backend, VerlBackend)
    with pytest.raises(ConfigError) as raised:
        check_supported(config, config.backend)
    return str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["algo=lopti"], "algo.token_filter.kind=low_then_high: verl's workers make one pass"),
        (["algo=ar_lopti"], "algo.token_filter.kind=low_then_high"),
        (["algo.token_weight.form=raw_logit"], "hand the loss log-probabilities, not logits"),
        (["algo=dapo"], "algo.group_filter.max_refills=3"),
        (["train.updates_per_rollout=3"], "does not divide train.prompts_per_step=4"),
        (["backend.gpus_per_node=5"], "32 sequences"),
        (["train.max_batch_tokens=700"], "below the 768 tokens of the longest sequence"),
        (["rollout.temperature=0"], "rollout.temperature=0"),
        (["model.device=cpu"], "model.device=cpu"),
        (["model.revision=main"], "download the revision"),
        (["model.lora.target_modules=[q_proj]"], "only all-linear"),
        (["sampler=vllm"], "sampler=vllm: under verl its own rollout engine samples"),
        (["backend.nodes=2"], "tools.url=http://127.0.0.1:8900 is each machine's own"),
        (["backend.nodes=2", "tools.url=http://localhost:80"], "is each machine's own"),
        (["train.compile=true"], "train.compile=true compiles the embedded trainer's decoder"),
    ],
)
def test_what_verl_cannot_carry_is_refused_with_the_reason(overrides, wanted) -> None:
    assert wanted in refused(*overrides)


def test_all_refusals_come_together() -> None:
    assert refused("algo=ar_lopti", "rollout.temperature=0").startswith("2 faults under backend=verl")


CARRIED = (
    *("grpo", "tr_grpo", "tr_grpo_eq9", "tr_grpo_literal", "grpo_sg", "tr_grpo_equal", "tr_grpo_random"),
    *("tr_grpo_reverse", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp", "ar"),
)


@pytest.mark.parametrize("algo", CARRIED)
def test_every_other_preset_is_carried(algo) -> None:
    config = compose("train", ["backend=verl", f"algo={algo}"])
    check_supported(config, config.backend)
    for name in ("dapo", "high_entropy"):
        config = compose("train", ["backend=verl", f"algo={name}", "algo.group_filter.max_refills=0"])
        check_supported(config, config.backend)


def test_gpus_must_divide() -> None:
    with pytest.raises(ConfigError, match="rollout_gpus=3 does not divide the 8 GPUs"):
        compose("train", ["backend=verl", "backend.gpus_per_node=8", "backend.rollout_gpus=3"])


class TestMemory:
    """Llama-3.1-8B: 16 bytes a parameter to train (128 GB), 4 for the reference, 2 for vLLM."""

    parameters = 8_000_000_000

    def need(self, *overrides: str):
        config = compose("train", ["backend=verl", "model=llama31_8b_instruct", *overrides])
        return memory_need(config, config.backend, self.parameters), config.backend

    def test_the_arithmetic(self) -> None:
        need, _ = self.need("backend.gpus_per_node=8")
        assert need.gpu_weights == 20 * self.parameters // 8
        assert need.gpu_rollout == 2 * self.parameters
        alone, _ = self.need("backend.gpus_per_node=8", "algo.kl.beta=0", "algo.kl.weighting=none")
        assert alone.gpu_weights == 16 * self.parameters // 8
        lora, _ = self.need("model.lora.rank=16")
        assert lora.gpu_weights == 4 * self.parameters
        offload, _ = self.need("backend.gpus_per_node=8", "backend.offload=true")
        assert offload.gpu_weights == 8 * self.parameters // 8
        assert offload.host == need.host + 20 * self.parameters

    def test_too_little(self) -> None:
        need, backend = self.need()
        with pytest.raises(UsageError, match=r"too little GPU memory: the update .* need 149.0 GiB .* backend.offload"):
            check_memory(need, backend, gpu_bytes=80 * GIB, host_bytes=64 * GIB)
        need, backend = self.need("backend.gpus_per_node=8", "backend.rollout_memory_fraction=0.1")
        with pytest.raises(UsageError, match=r"rollout engine's weights need 14.9 GiB .* has 8.0 GiB"):
            check_memory(need, backend, gpu_bytes=80 * GIB, host_bytes=64 * GIB)
        with pytest.raises(UsageError, match=r"this machine has 1\.0 GiB free"):
            check_memory(need, backend, gpu_bytes=None, host_bytes=GIB)
        need, backend = self.need("backend.gpus_per_node=8")
        check_memory(need, backend, gpu_bytes=80 * GIB, host_bytes=64 * GIB)


def test_parameters_are_counted_without_storage() -> None:
    from transformers import LlamaConfig

    from agent_rl.backends.verl.memory import count_parameters

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    assert count_parameters(config) == 8_030_261_248  # as its model card says: 8.03 B


def test_model_presets_say_how_to_prompt() -> None:
    """A base model is not asked in a chat template, an instructed one is."""
    base = {"qwen25_3b", "qwen25_7b"}
    for name in (
        *base,
        "qwen25_3b_instruct",
        "qwen25_7b_instruct_1m",
        "qwen3_4b_instruct_2507",
        "mistral_7b_instruct_v03",
        "llama31_8b_instruct",
    ):
        model = compose("train", [f"model={name}"]).model
        assert isinstance(model, ModelConfig)
        assert (model.prompt_format == "plain") == (name in base)
