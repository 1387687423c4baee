"""`agent-rl train backend=verl`: everything that can be wrong is looked at here, then Ray starts and verl trains."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent_rl.backends.verl import signals
from agent_rl.backends.verl.dataset import AGENT, export_dataset
from agent_rl.backends.verl.environment import check_environment
from agent_rl.backends.verl.memory import check_memory, count_parameters, memory_need
from agent_rl.backends.verl.published import resume_folder
from agent_rl.backends.verl.refusals import check_supported
from agent_rl.config.schema import RunConfig, VerlBackend
from agent_rl.errors import AgentRLError, TrainingError, UsageError
from agent_rl.models import resolve_model_path
from agent_rl.rollout.assemble import make_task, start_tools
from agent_rl.rollout.distant_codec import codec_of, load_model_config
from agent_rl.train.checkpoint import find_checkpoints, pin_checkpoints
from agent_rl.train.launch import check_server, warmup
from agent_rl.train.order import ItemOrder, usable_items
from agent_rl.train.run_dir import RunDir
from agent_rl.train.trainer import TrainResult

Log = Callable[[str], None]

KNOCK_TIMEOUT_S = 10.0


def train_under_verl(config: RunConfig, backend: VerlBackend, log: Log) -> TrainResult:
    """Train as ``config`` says on a Ray of its own or on that of ``backend.ray_address``.

    Raises UsageError and ConfigError before anything is started, TrainingError where the run itself fails.
    """
    # A cluster has its own machines; this one may be without GPUs.
    check_environment(backend.rollout_engine if backend.ray_address is None else None)
    check_supported(config, backend)
    path = Path(config.run_dir)
    if config.warmup.traces and not find_checkpoints(path):
        config = _warm_up(config, log)
    run_dir = RunDir(path)
    with ExitStack() as stack:
        stack.enter_context(run_dir.lock())
        start = run_dir.prepare(config, log)
        if start is not None and start.step >= config.train.steps:
            log(f"{config.run_dir} is already at step {start.step}: nothing left to do")
            return TrainResult(path, start.step)
        resume = resume_folder(path, start)
        model_path = _first_model(config, path)
        _check_machine(config, backend, model_path)
        start_tools(config, stack)
        schemas = asyncio.run(check_server(config))
        verl = _prepare(config, backend, model_path, resume, schemas, log)
        signals.forget(path)
        stack.callback(signals.forget, path)
        step, interrupted = _run(verl, backend, path, log)
    return TrainResult(path, step, interrupted)


def _warm_up(config: RunConfig, log: Log) -> RunConfig:
    """The supervised warm-up in this process; its checkpoint is what verl starts from, and the reference of the KL."""
    result = warmup(config, log=log)
    if result.interrupted:
        raise KeyboardInterrupt
    pin_checkpoints(Path(config.run_dir))
    return config.model_copy(update={"resume": "auto"})


def _first_model(config: RunConfig, path: Path) -> str:
    """The model as RL began: verl loads it as policy, where it does not resume, and as reference, always."""
    warm = [checkpoint for checkpoint in find_checkpoints(path) if checkpoint.step == 0]
    if config.warmup.traces and not warm:
        raise UsageError(
            f"run_dir={path}: the checkpoint of the warm-up (step 0) is gone, and with it the reference of the KL; "
            "give another run_dir"
        )
    return str(warm[0].model_dir.resolve()) if warm else resolve_model_path(config.model.path)


def _check_machine(config: RunConfig, backend: VerlBackend, model_path: str) -> None:
    """Whether the model exists and fits; of a cluster elsewhere only its own machines know."""
    import psutil
    import torch

    parameters = count_parameters(load_model_config(model_path, config))
    gpu = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
    if backend.ray_address is None:
        check_memory(
            memory_need(config, backend, parameters),
            backend,
            gpu_bytes=gpu,
            host_bytes=psutil.virtual_memory().available,
        )


def _prepare(
    config: RunConfig,
    backend: VerlBackend,
    model_path: str,
    resume: Path | None,
    schemas: list[dict[str, Any]],
    log: Log,
) -> Any:
    """The exported questions and verl's configuration, both kept in the run's directory."""
    from omegaconf import OmegaConf

    from agent_rl.backends.verl.translate import verl_config

    # verl's processes work in other directories, some on other machines.
    config = config.model_copy(update={"run_dir": str(Path(config.run_dir).resolve())})
    folder = Path(config.run_dir) / "verl"
    task = make_task(config)
    usable = usable_items(task, codec_of(model_path, config, schemas), config.rollout.max_prompt_tokens, log)
    dataset = export_dataset(config, task, ItemOrder(usable, config.seed), folder)
    agent_file = folder / "agent.yaml"
    agent_file.write_text(f"- name: {AGENT}\n  _target_: agent_rl.backends.verl.agent_loop.RolloutLoop\n")
    made = verl_config(
        config,
        backend,
        model_path=model_path,
        dataset=dataset,
        agent_file=agent_file,
        resume=resume,
        tool_schemas=schemas,
    )
    OmegaConf.save(made, folder / "config.yaml")
    return made


def _run(verl: Any, backend: VerlBackend, path: Path, log: Log) -> tuple[int, bool]:
    import ray
    from ray.exceptions import RayError, RayTaskError

    from agent_rl.backends.verl.runner import Runner

    _start_ray(verl, backend)
    try:
        done = Runner.remote().run.remote(verl)
        try:
            step, interrupted = ray.get(done)
        except KeyboardInterrupt:
            log("stopping after this step, with a checkpoint (again to stop without one)")
            signals.ask_to_stop(path)
            step, interrupted = ray.get(done)
    except RayTaskError as error:
        if isinstance(error.cause, AgentRLError):
            raise error.cause from None
        report = path / "verl" / "failure.log"
        report.write_text(str(error), encoding="utf-8")
        raise TrainingError(f"verl failed: {str(error).strip().splitlines()[-1]}\nWhere: {report}") from error
    except RayError as error:
        raise TrainingError(f"a process of verl died: {str(error).strip().splitlines()[0]}") from error
    finally:
        ray.shutdown()
    if interrupted:
        log(f"stopped after step {step}; the same command goes on from there")
    return step, interrupted


def _start_ray(verl: Any, backend: VerlBackend) -> None:
    """Connect to the cluster, or start a Ray on this machine, and see that it has the GPUs.

    Raises UsageError where there is no such cluster, or it has too few.
    """
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    asked: Any = OmegaConf.to_container(verl.ray_kwargs.ray_init, resolve=True)
    environment: Any = OmegaConf.to_container(
        OmegaConf.merge(get_ppo_ray_runtime_env(verl), asked.pop("runtime_env", None) or {})
    )
    environment["env_vars"] = {**environment.get("env_vars", {}), **_environment()}
    if backend.ray_address is not None:
        asked = {"address": backend.ray_address}
    try:
        if backend.ray_address not in (None, "auto"):
            _knock(str(backend.ray_address))
        ray.init(**asked, runtime_env=environment)
    except (OSError, RuntimeError, ValueError) as error:
        if _wants_token(error):
            raise UsageError(
                f"the Ray at backend.ray_address={backend.ray_address} asks for a token: set RAY_AUTH_MODE=token, and "
                "give this machine the head's ~/.ray/auth_token (or RAY_AUTH_TOKEN)"
            ) from error
        where = f"at backend.ray_address={backend.ray_address}" if backend.ray_address else "on this machine"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"no Ray {where} ({reason}); start one with `ray start --head` (docs/scaling.md), or leave "
            "backend.ray_address out"
        ) from error
    there = int(ray.cluster_resources().get("GPU", 0))
    if there < backend.gpus:
        ray.shutdown()
        raise UsageError(
            f"backend.nodes={backend.nodes} x backend.gpus_per_node={backend.gpus_per_node} needs {backend.gpus} GPUs, "
            f"and Ray has {there}; ask for fewer, or train with backend=embedded"
        )


def _wants_token(error: BaseException | None) -> bool:
    """Ray says so only deep in the chain: the error itself is that it could not connect."""
    return error is not None and (
        "InvalidAuthToken" in str(error) or _wants_token(error.__cause__ or error.__context__)
    )


def _knock(address: str) -> None:
    """Raise OSError or ValueError where nothing listens at ``host:port``: Ray itself would try for minutes."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    if parts.hostname is None or parts.port is None:
        raise ValueError("write it as host:port, ray://host:port, or auto")
    socket.create_connection((parts.hostname, parts.port), timeout=KNOCK_TIMEOUT_S).close()


def _environment() -> dict[str, str]:
    """What every process of verl gets: our packages first (its working directory may hold another `tools`)."""
    home = str(Path(__file__).resolve().parents[3])
    rest = os.environ.get("PYTHONPATH")
    passed = ("VERL_USE_EXTERNAL_MODULES", "VERL_PLATFORM", "AGENT_RL_TOOL_TOKEN", "HF_HOME", "HF_HUB_OFFLINE")
    return {
        "PYTHONPATH": home + (os.pathsep + rest if rest else ""),
        "TRANSFER_QUEUE_ENABLE": "1",
        **{name: os.environ[name] for name in passed if name in os.environ},
    }
