"""Every setting of ours that has a meaning in verl arrives there; its own check accepts the recipes. No GPU, no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agent_rl.algo.mismatch import mismatch_correction
from agent_rl.config.compose import compose
from agent_rl.config.schema import MismatchConfig
from agent_rl.errors import ConfigError

RECIPES = {
    "search_paper_verl": ["task.data.train=q.jsonl"],
    "kk_paper_verl": [],
    "math_paper_verl": ["task.data.train=[p.jsonl]"],
    "one_gpu_verl": [],
}
MODELS = (
    *("qwen25_3b", "qwen25_3b_instruct", "qwen25_7b", "qwen25_7b_instruct_1m"),
    *("qwen3_4b_instruct_2507", "mistral_7b_instruct_v03", "llama31_8b_instruct"),
)


def translated(*overrides: str, resume: Path | None = None) -> Any:
    from agent_rl.backends.verl.refusals import check_supported
    from agent_rl.backends.verl.translate import verl_config

    config = compose("train", list(overrides))
    check_supported(config, config.backend)
    return verl_config(
        config,
        config.backend,
        model_path=config.model.path,
        dataset=Path("/data/it's here/train.parquet"),
        agent_file=Path("/data/agent.yaml"),
        resume=resume,
    )


def test_settings_arrive() -> None:
    made = translated(
        *(
            "backend=verl",
            "backend.nodes=2",
            "backend.gpus_per_node=4",
            "backend.rollout_gpus=2",
            "backend.offload=true",
        ),
        *("backend.rollout_memory_fraction=0.7", "backend.sequence_parallel=2", "backend.agent_workers=3"),
        *("tools.url=http://10.0.0.5:8900", "model=llama31_8b_instruct", "model.trust_remote_code=true"),
        *("rollout.temperature=0.7", "rollout.group_size=16", "rollout.max_prompt_tokens=300"),
        *("rollout.max_response_tokens=900", "train.prompts_per_step=8", "train.updates_per_rollout=2"),
        *("train.max_batch_tokens=5000", "train.steps=7", "train.checkpoint_every_steps=3", "train.optim.lr=3e-6"),
        *("train.optim.weight_decay=0.1", "train.optim.beta2=0.95", "train.optim.eps=1e-7", "seed=11"),
        *("train.optim.max_grad_norm=0.5", "algo.kl.beta=0.002", "run_dir=runs/some where"),
    )
    rl, actor = made.actor_rollout_ref, made.actor_rollout_ref.actor
    assert (made.trainer.nnodes, made.trainer.n_gpus_per_node, made.trainer.total_training_steps) == (2, 4, 7)
    assert (made.trainer.save_freq, made.trainer.resume_mode) == (3, "disable")
    assert made.trainer.default_local_dir == str(Path("runs/some where/verl_checkpoints").resolve())
    assert (made.data.train_batch_size, made.data.max_prompt_length, made.data.max_response_length) == (8, 300, 900)
    assert made.data.train_files == "/data/it's here/train.parquet"
    assert not made.data.shuffle
    assert (rl.model.path, rl.model.trust_remote_code) == ("meta-llama/Llama-3.1-8B-Instruct", True)
    assert rl.model.enable_gradient_checkpointing
    assert (rl.rollout.name, rl.rollout.n, rl.rollout.temperature) == ("vllm", 16, 0.7)
    assert (rl.rollout.tensor_model_parallel_size, rl.rollout.gpu_memory_utilization) == (2, 0.7)
    assert (rl.rollout.max_model_len, rl.rollout.agent.num_workers) == (1201, 3)
    assert rl.rollout.enable_prefix_caching
    assert rl.rollout.logprobs_mode == "processed_logprobs"
    assert (actor.ppo_mini_batch_size, actor.ppo_max_token_len_per_gpu) == (4, 5000)
    assert (actor.ulysses_sequence_parallel_size, actor.strategy) == (2, "fsdp2")
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 0.002)
    assert actor.fsdp_config.param_offload
    assert actor.fsdp_config.optimizer_offload
    assert actor.fsdp_config.mixed_precision.param_dtype == "bf16"
    optim = actor.optim
    assert (optim.lr, optim.weight_decay, list(optim.betas), optim.clip_grad) == (3e-6, 0.1, [0.9, 0.95], 0.5)
    assert optim.override_optimizer_config == {"eps": 1e-7}
    assert optim.optimizer_impl == "agent_rl.backends.verl.optimizer"
    assert list(actor.checkpoint.save_contents) == ["model", "optimizer", "extra", "hf_model"]
    assert '"seed":11' in made.agent_rl.run


def test_without_kl_there_is_no_reference_and_lora_is_carried() -> None:
    made = translated(
        *("backend=verl", "backend.rollout_engine=agent_rl_hf", "algo.kl.beta=0", "algo.kl.weighting=none"),
        *("model.lora.rank=8", "model.dtype=float32"),
    )
    assert not made.actor_rollout_ref.actor.use_kl_loss
    assert (made.actor_rollout_ref.model.lora_rank, made.actor_rollout_ref.model.lora_alpha) == (8, 32)
    assert list(made.actor_rollout_ref.actor.checkpoint.save_contents) == ["model", "optimizer", "extra"]
    assert made.actor_rollout_ref.rollout.dtype == "float32"
    assert made.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"


def test_a_run_goes_on_from_the_checkpoint_that_counts() -> None:
    made = translated("backend=verl", resume=Path("/runs/a/verl_checkpoints/global_step_4"))
    assert made.trainer.resume_mode == "resume_path"
    assert made.trainer.resume_from_path == "/runs/a/verl_checkpoints/global_step_4"


def test_the_users_overrides_come_last_and_a_wrong_one_is_named() -> None:
    made = translated("backend=verl", 'backend.overrides=["data.seed=5","actor_rollout_ref.rollout.max_num_seqs=64"]')
    assert (made.data.seed, made.actor_rollout_ref.rollout.max_num_seqs) == (5, 64)
    with pytest.raises(ConfigError, match="max_num_seqz"):
        translated("backend=verl", 'backend.overrides=["actor_rollout_ref.rollout.max_num_seqz=64"]')
    with pytest.raises(ConfigError, match="verl does not accept"):
        translated("backend=verl", 'backend.overrides=["actor_rollout_ref.actor.loss_agg_mode=nonsense"]')


@pytest.mark.parametrize("recipe", RECIPES)
def test_verl_accepts_the_recipes(recipe: str) -> None:
    """With LoRA verl's check imports vLLM, which is not here: that recipe is checked under another engine's name."""
    engine = "agent_rl_hf" if recipe == "one_gpu_verl" else "vllm"
    made = translated(f"experiment={recipe}", *RECIPES[recipe], f"backend.rollout_engine={engine}")
    assert compose("train", [f"experiment={recipe}", *RECIPES[recipe]]).backend.rollout_engine == "vllm"
    assert made.actor_rollout_ref.rollout.enable_prefix_caching
    assert '"kind":"token_tis"' in made.agent_rl.run


@pytest.mark.parametrize("model", MODELS)
def test_verl_accepts_the_models(model: str) -> None:
    made = translated("experiment=kk_paper_verl", f"model={model}")
    assert made.actor_rollout_ref.model.path == compose("train", [f"model={model}"]).model.path


def test_the_correction_is_verls_rollout_correction() -> None:
    """algo.mismatch.kind=token_tis is what verl calls rollout_is=token, with its threshold as cap."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    torch.manual_seed(0)
    old, rollout = -torch.rand(3, 8), -torch.rand(3, 8) * 3
    mask = torch.rand(3, 8) > 0.3
    theirs, _ = compute_rollout_correction_weights(
        log_ratio=old - rollout, response_mask=mask.float(), rollout_is="token", rollout_is_threshold=2.0
    )
    rows = torch.arange(3)[:, None].expand(3, 8)[mask]
    ours = mismatch_correction(
        MismatchConfig(kind="token_tis", cap=2.0),
        old[mask],
        rollout[mask],
        torch.ones_like(rows, dtype=torch.bool),
        rows,
    )
    torch.testing.assert_close(theirs[mask], ours)
    assert float(ours.max()) == 2.0
