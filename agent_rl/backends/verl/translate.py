"""From our configuration to verl's: every setting of ours that has a meaning there, in one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_rl.config.schema import RunConfig, VerlBackend
from agent_rl.errors import ConfigError

CHECKPOINTS = "verl_checkpoints"


def verl_config(
    config: RunConfig,
    backend: VerlBackend,
    *,
    model_path: str,
    dataset: Path,
    agent_file: Path,
    resume: Path | None,
    tool_schemas: Sequence[dict[str, Any]] = (),
) -> Any:
    """verl's own configuration, composed from its own files and checked by its own rules.

    ``resume``: a ``global_step_N`` folder to go on from. Raises ConfigError where verl does not know a setting of
    ``backend.overrides``, or does not accept the whole.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    ours = settings(config, backend, model_path=model_path, dataset=dataset, agent_file=agent_file, resume=resume)
    texts = [f"{key}={_quoted(value)}" for key, value in ours.items()]
    with initialize_config_module("verl.trainer.config", version_base=None):
        try:
            made = compose("ppo_trainer", overrides=[*texts, *backend.overrides])
        except (HydraException, OmegaConfBaseException) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"backend.overrides={list(backend.overrides)}: verl refuses one: {reason}") from error
    with open_dict(made):
        # What our own code in verl's processes reads.
        made.agent_rl = OmegaConf.create(
            {
                "run": config.model_dump_json(),
                "model_path": model_path,
                "tool_schemas": json.dumps(list(tool_schemas)),
            }
        )
    _check(made)
    return made


def _check(made: Any) -> None:
    """verl's own check. Raises ConfigError with what it says."""
    from hydra.errors import HydraException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(made, use_reference_policy=need_reference_policy(made), use_critic=need_critic(made))
    except (AssertionError, ValueError, TypeError, KeyError, HydraException) as error:
        reason = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        raise ConfigError(f"verl does not accept this configuration: {reason}") from error


def settings(
    config: RunConfig, backend: VerlBackend, *, model_path: str, dataset: Path, agent_file: Path, resume: Path | None
) -> dict[str, Any]:
    """verl's dotted keys and what they get from ours."""
    folder = Path(config.run_dir).resolve()
    return {
        **_data(config, dataset),
        **_model(config, model_path),
        **_update(config, backend),
        **_rollout(config, backend, agent_file),
        "algorithm.adv_estimator": "grpo",  # a name that is known; ours stand in its place
        "critic.enable": False,
        "reward.num_workers": 1,  # idle: the agent loop scores
        "trainer.v1.trainer_mode": "sync",
        "trainer.logger": [],  # metrics go to our files
        "trainer.nnodes": backend.nodes,
        "trainer.n_gpus_per_node": backend.gpus_per_node,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": config.train.steps,
        "trainer.save_freq": config.train.checkpoint_every_steps,
        "trainer.val_before_train": True,  # asks us, and we know what is due
        "trainer.test_freq": 1,
        "trainer.default_local_dir": str(folder / CHECKPOINTS),
        "trainer.resume_mode": "disable" if resume is None else "resume_path",
        "trainer.resume_from_path": None if resume is None else str(resume),
        "trainer.project_name": config.logging.wandb_project,
        "trainer.experiment_name": folder.name,
    }


def _data(config: RunConfig, dataset: Path) -> dict[str, Any]:
    return {
        "data.train_files": str(dataset),
        "data.val_files": str(dataset),  # verl wants one; held-out questions are asked by our own evaluation
        "data.train_batch_size": config.train.prompts_per_step,
        "data.max_prompt_length": config.rollout.max_prompt_tokens,
        "data.max_response_length": config.rollout.max_response_tokens,
        "data.shuffle": False,  # the file is in the order of the steps
        "data.seed": config.seed,
        "data.dataloader_num_workers": 0,
    }


def _model(config: RunConfig, model_path: str) -> dict[str, Any]:
    lora = config.model.lora
    return {
        "actor_rollout_ref.model.path": model_path,
        "actor_rollout_ref.model.trust_remote_code": config.model.trust_remote_code,
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.model.gradient_checkpointing,
        **(
            {}
            if lora is None
            else {
                "actor_rollout_ref.model.lora_rank": lora.rank,
                "actor_rollout_ref.model.lora_alpha": lora.alpha,
                "actor_rollout_ref.model.target_modules": lora.target_modules,
                # The rollout engine starts from the real weights and is sent the adapter alone.
                "actor_rollout_ref.rollout.load_format": "safetensors",
            }
        ),
    }


def _update(config: RunConfig, backend: VerlBackend) -> dict[str, Any]:
    optim, dtype = config.train.optim, "float32" if config.model.dtype == "float32" else "bfloat16"
    actor, ref = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
    engines: dict[str, Any] = {}
    for engine in (f"{actor}.fsdp_config", f"{ref}.fsdp_config"):
        engines |= {
            f"{engine}.model_dtype": "fp32",  # master weights; they compute in dtype
            f"{engine}.dtype": dtype,
            f"+{engine}.mixed_precision": {
                "param_dtype": "fp32" if dtype == "float32" else "bf16",
                "reduce_dtype": "fp32",
                "buffer_dtype": "fp32",
            },
            f"{engine}.param_offload": backend.offload,
        }
    return {
        **engines,
        f"{actor}.fsdp_config.optimizer_offload": backend.offload,
        f"{actor}.strategy": "fsdp2",
        f"{ref}.strategy": "fsdp2",
        f"{actor}.ulysses_sequence_parallel_size": backend.sequence_parallel,
        f"{actor}.ppo_mini_batch_size": config.train.prompts_per_step // config.train.updates_per_rollout,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": config.train.max_batch_tokens,
        f"{actor}.shuffle": False,  # which rows form an update is decided by our trainer
        f"{actor}.use_kl_loss": config.algo.kl.beta > 0,  # makes verl load a reference; the term is in our loss
        f"{actor}.kl_loss_coef": config.algo.kl.beta,
        f"{actor}.entropy_from_logits_with_chunking": True,
        f"{actor}.optim.optimizer_impl": "agent_rl.backends.verl.optimizer",
        f"{actor}.optim.optimizer": "AdamW",
        f"{actor}.optim.lr": optim.lr,  # each update's own rate goes with its batch
        f"{actor}.optim.lr_scheduler_type": "constant",
        f"{actor}.optim.weight_decay": optim.weight_decay,
        f"{actor}.optim.betas": [optim.beta1, optim.beta2],
        f"{actor}.optim.clip_grad": optim.max_grad_norm,
        f"{actor}.optim.override_optimizer_config": {"eps": optim.eps},
        f"{actor}.checkpoint.save_contents": [
            *("model", "optimizer", "extra"),
            *([] if config.model.lora is not None else ["hf_model"]),
        ],
    }


def _rollout(config: RunConfig, backend: VerlBackend, agent_file: Path) -> dict[str, Any]:
    rollout = "actor_rollout_ref.rollout"
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    return {
        f"{rollout}.name": backend.rollout_engine,
        f"{rollout}.n": config.rollout.group_size,
        f"{rollout}.temperature": config.rollout.temperature,
        **{f"{rollout}.top_p": 1.0, f"{rollout}.top_k": -1},
        f"{rollout}.max_model_len": longest + 1,
        f"{rollout}.dtype": "float32" if config.model.dtype == "float32" else "bfloat16",
        f"{rollout}.tensor_model_parallel_size": backend.rollout_gpus,
        f"{rollout}.gpu_memory_utilization": backend.rollout_memory_fraction,
        f"{rollout}.enable_prefix_caching": True,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.logprobs_mode": "processed_logprobs",  # after the temperature, as the update computes them
        f"{rollout}.agent.num_workers": backend.agent_workers,
        f"{rollout}.agent.default_agent_loop": "agent_rl",
        f"{rollout}.agent.agent_loop_config_path": str(agent_file),
    }


def _quoted(value: Any) -> str:
    """A value in Hydra's grammar: text is quoted, so that nothing in a path is read as syntax."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_quoted(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_quoted(inner) for inner in value) + "]"
    return json.dumps(value)
