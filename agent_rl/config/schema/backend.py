"""Where a run trains: in this process, or on a cluster under verl."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agent_rl.config.schema.record import NonNegativeInt, PositiveInt, Record


class EmbeddedBackend(Record):
    kind: Literal["embedded"] = "embedded"
    threads: NonNegativeInt = Field(0, description="CPU threads of torch (0: torch's own choice)")


class VerlBackend(Record):
    """verl's trainer on Ray: FSDP for the update, a rollout engine such as vLLM for the sampling."""

    kind: Literal["verl"] = "verl"
    ray_address: str | None = Field(
        None, description="auto, host:port or ray://host:port of a cluster; null: a Ray of its own on this machine"
    )
    nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 1
    rollout_engine: str = Field("vllm", description="verl's name of the engine that samples")
    rollout_gpus: PositiveInt = Field(1, description="GPUs that share one copy of the sampling model (tensor parallel)")
    rollout_memory_fraction: float = Field(0.5, gt=0, lt=1, description="share of a GPU for the rollout engine")
    sequence_parallel: PositiveInt = Field(1, description="GPUs that share one sequence in the update (Ulysses)")
    offload: bool = Field(False, description="weights and optimiser state of the update live in host memory")
    agent_workers: PositiveInt = Field(
        8, description="processes that run the rollout loop; tools.max_connections is shared out among them"
    )
    overrides: tuple[str, ...] = Field(
        (), description="settings of verl without a name of ours, as its own command line takes them; applied last"
    )

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _divides(self) -> VerlBackend:
        faults = [
            f"{name}={value} does not divide the {self.gpus} GPUs (nodes={self.nodes} x gpus_per_node="
            f"{self.gpus_per_node})"
            for name, value in (
                ("rollout_gpus", self.rollout_gpus),
                ("sequence_parallel", self.sequence_parallel),
            )
            if self.gpus % value
        ]
        if faults:
            raise ValueError("; ".join(faults))
        return self


BackendConfig = Annotated[EmbeddedBackend | VerlBackend, Field(discriminator="kind")]
