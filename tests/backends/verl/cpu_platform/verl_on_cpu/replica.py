"""Our own sampler as a rollout engine of verl, under the name `agent_rl_hf`."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "agent_rl_hf"


class Server:
    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from agent_rl import attention
        from agent_rl.rollout.codec import HFCodec
        from agent_rl.samplers.hf import HFSampler

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation=attention.register()
        ).eval()
        codec = HFCodec(AutoTokenizer.from_pretrained(path), "plain")
        self.sampler = HFSampler(self.model, codec, max_batch=16)
        self.steps = 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **rest: Any
    ) -> TokenOutput:
        from agent_rl.samplers.base import SamplingParams

        params = SamplingParams(
            temperature=sampling_params["temperature"],
            max_tokens=sampling_params["max_tokens"],
            stop_strings=tuple(sampling_params["stop"]),
            seed=sampling_params["seed"],
        )
        turn = await self.sampler.sample(list(prompt_ids), params, session=request_id)
        await self.sampler.end_session(request_id)
        return TokenOutput(
            token_ids=turn.ids,
            log_probs=turn.logprobs,
            stop_reason="aborted" if turn.finish == "abort" else "completed",
            extra_fields={"global_steps": self.steps},
        )

    async def load_weights(self, state: dict[str, torch.Tensor], step: int | None) -> None:
        found = self.model.load_state_dict(state, strict=False)
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        assert not found.unexpected_keys, found
        assert set(found.missing_keys) <= tied, found
        if step is not None:
            self.steps = step
        self.sampler.policy_updated(self.steps)

    async def wake_up(self, *args: Any, **kwargs: Any) -> None: ...
    async def sleep(self, *args: Any, **kwargs: Any) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def abort_all_requests(self, **kwargs: Any) -> None: ...
    async def resume_generation(self) -> None: ...


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        name = f"{self.config.name}_server_{self.replica_rank}_0"
        server = ray.remote(Server).options(name=name, num_cpus=0).remote(self.model_config.path)
        self.servers = [server]
        self._server_handle, self._server_address = server, f"{name}:0"


class Adapter(BaseRollout):
    """In the training process: hands the weights over."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **rest: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = replica_rank if replica_rank >= 0 else int(os.environ.get("RANK", 0))

    async def resume(self, tags: Any) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: int | None = None, **rest: Any) -> None:
        state = {name: value.detach().float().cpu().clone() for name, value in weights}
        server = ray.get_actor(f"{self.config.name}_server_{self.replica_rank}_0")
        await server.load_weights.remote(state, global_steps)


_ROLLOUT_REGISTRY[(NAME, "async")] = "verl_on_cpu.replica.Adapter"
RolloutReplicaRegistry.register(NAME, lambda: Replica)
