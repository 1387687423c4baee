"""What verl cannot carry: said before Ray starts, with the reason and what to do instead."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from agent_rl.config.schema import RunConfig, VerlBackend
from agent_rl.errors import ConfigError


def check_supported(config: RunConfig, backend: VerlBackend) -> None:
    """Raise ConfigError with everything in ``config`` that has no counterpart under verl."""
    faults = [*_objective(config), *_batches(config, backend), *_placement(config, backend)]
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError(f"{count} under backend=verl:\n  " + "\n  ".join(faults))


def _objective(config: RunConfig) -> list[str]:
    algo, faults = config.algo, []
    if algo.token_filter.kind == "low_then_high":
        faults.append(
            "algo.token_filter.kind=low_then_high: verl's workers make one pass over a batch, and this filter needs "
            "two, with another choice of tokens in each; use backend=embedded, or token_filter.kind=all"
        )
    if algo.token_weight.sigmoidal and algo.token_weight.form == "raw_logit":
        faults.append(
            "algo.token_weight.form=raw_logit: verl's engines hand the loss log-probabilities, not logits; "
            "use form=multiply, or backend=embedded"
        )
    if algo.group_filter.kind == "drop_uniform" and algo.group_filter.max_refills:
        faults.append(
            f"algo.group_filter.max_refills={algo.group_filter.max_refills}: verl's synchronous trainer asks the "
            "questions of a step once, and its own filter refills without a bound; use max_refills=0 (groups of equal "
            "rewards are left out, the step is smaller), or backend=embedded"
        )
    return faults


def _batches(config: RunConfig, backend: VerlBackend) -> list[str]:
    train, group, faults = config.train, config.rollout.group_size, []
    updates, prompts = train.updates_per_rollout, train.prompts_per_step
    if prompts % updates:
        faults.append(
            f"train.updates_per_rollout={updates} does not divide train.prompts_per_step={prompts}: verl's optimiser "
            "batches are of one size"
        )
    ranks = backend.gpus // backend.sequence_parallel
    if not prompts % updates and prompts // updates * group % ranks:
        faults.append(
            f"an update has {prompts // updates * group} sequences (train.prompts_per_step / updates_per_rollout x "
            f"rollout.group_size), which {ranks} data-parallel GPUs cannot share out evenly"
        )
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    if train.max_batch_tokens * backend.sequence_parallel < longest:
        faults.append(
            f"train.max_batch_tokens={train.max_batch_tokens} is below the {longest} tokens of the longest sequence "
            "(rollout.max_prompt_tokens + max_response_tokens), and verl cuts no sequence; raise it"
        )
    if train.compile:
        faults.append("train.compile=true compiles the embedded trainer's decoder; leave it out under verl")
    if not config.rollout.temperature:
        faults.append("rollout.temperature=0: verl divides by the temperature; greedy rollouts have nothing to compare")
    return faults


def _placement(config: RunConfig, backend: VerlBackend) -> list[str]:
    faults = []
    if config.model.revision is not None:
        faults.append(
            f"model.revision={config.model.revision}: verl loads a model by its path alone; download the revision and "
            "give its folder as model.path"
        )
    if config.sampler.kind != "hf":
        faults.append(
            f"sampler={config.sampler.kind}: under verl its own rollout engine samples (backend.rollout_engine); leave "
            "sampler out"
        )
    if config.model.device == "cpu":
        faults.append("model.device=cpu: verl trains on the GPUs of backend.gpus_per_node; use backend=embedded")
    if config.model.lora is not None and not isinstance(config.model.lora.target_modules, str):
        faults.append("model.lora.target_modules: only all-linear is carried to verl's rollout engine")
    if backend.nodes > 1 and _loopback(config.tools.url):
        faults.append(
            f"tools.url={config.tools.url} is each machine's own, and rollouts run on {backend.nodes} nodes; give an "
            "address that all of them reach"
        )
    return faults


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
