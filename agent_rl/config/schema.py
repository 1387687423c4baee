"""The typed shape of every command's configuration.

Frozen pydantic records, ``extra="forbid"``; where a part has several kinds, a union tagged by ``kind``.
Units stand in names (``_s`` seconds, ``_tokens``). ``compose.py`` fills the records from YAML and overrides.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
# A path that is empty would be the working directory.
PathText = Annotated[str, Field(min_length=1)]


class Record(BaseModel):
    """Base of every record: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# ---------------------------------------------------------------- tasks


class MiniwikiWorld(Record):
    """Which fictional encyclopedia (``tasks.miniwiki``): the same seed and size, the same bytes."""

    kind: Literal["miniwiki"] = "miniwiki"
    seed: int = 0
    passages: Annotated[int, Field(ge=300, le=1_000_000)] = 2000

    @property
    def corpus_name(self) -> str:
        """What an index over it calls its corpus."""
        return f"miniwiki seed={self.seed} passages={self.passages}"


class MiniwikiData(MiniwikiWorld):
    """Questions from the seeded generator of a fictional encyclopedia."""

    question_types: Annotated[
        tuple[Literal["one_hop", "two_hop", "comparison", "yes_no"], ...], Field(min_length=1)
    ] = ("one_hop",)


class JsonlData(Record):
    """Questions from jsonl files with ``id``, ``question``, ``golden_answers`` (Search-R1 / FlashRAG)."""

    kind: Literal["jsonl"] = "jsonl"
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    eval_fraction: Fraction = Field(
        0.2, description="share of `train` held out by a seeded hash where dev or test is not given"
    )


class SearchTask(Record):
    kind: Literal["search"] = "search"
    data: Annotated[MiniwikiData | JsonlData, Field(discriminator="kind")] = MiniwikiData()
    prompt: Literal["brief", "full"] = "full"
    reward: Literal["em_pm1", "em", "f1"] = Field("em_pm1", description="em_pm1: +1 / -1 (Eq. 14); em: 1 / 0")
    format_bonus: NonNegativeFloat = Field(0.0, description="added where the tags are complete and in order")
    no_search_penalty: NonNegativeFloat = Field(0.0, description="taken off where the answer came without a search")
    top_k: PositiveInt = Field(3, description="documents asked for per search")


TaskConfig = SearchTask

# ---------------------------------------------------------------- objective


class TokenWeightConfig(Record):
    """Weight of a token in the policy loss (paper Eq. 11); constant for differentiation."""

    kind: Literal["none", "probability"] = "none"
    form: Literal["multiply", "divide", "raw_logit"] = "multiply"
    alpha: float = 2.0
    mu: float = 0.25
    tau: PositiveFloat = 9.0
    lower: float = 1.0
    upper: float = 1.4
    prob: Literal["current", "old"] = "current"

    @model_validator(mode="after")
    def _ordered(self) -> TokenWeightConfig:
        if self.lower > self.upper:
            raise ValueError(f"lower={self.lower} is above upper={self.upper}")
        return self


class KLConfig(Record):
    beta: NonNegativeFloat = 0.001
    estimator: Literal["k1", "k2", "k3"] = "k3"
    weighting: Literal["none", "outside", "inside"] = "none"


class AlgoConfig(Record):
    name: str = "grpo"
    advantage: Literal["group_norm", "group_mean"] = "group_norm"
    std_ddof: Literal[0, 1] = 1
    token_weight: TokenWeightConfig = TokenWeightConfig()
    clip_on: Literal["ratio", "weighted_ratio"] = "ratio"
    clip_low: PositiveFloat = 0.20
    clip_high: PositiveFloat = 0.24
    dual_clip: float | None = Field(None, gt=1)
    log_ratio_clamp: PositiveFloat | None = 20.0
    kl: KLConfig = KLConfig()
    aggregate: Literal["token_mean", "group_token_mean", "sequence_mean", "constant_length"] = "token_mean"
    constant_length_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _has_meaning(self) -> AlgoConfig:
        faults = []
        if self.aggregate == "constant_length" and self.constant_length_tokens is None:
            faults.append("aggregate=constant_length needs constant_length_tokens")
        if self.kl.weighting != "none" and self.token_weight.kind == "none":
            faults.append("kl.weighting needs a token_weight; with token_weight.kind=none use kl.weighting=none")
        if self.kl.weighting == "inside" and self.kl.estimator != "k3":
            faults.append("kl.weighting=inside is Eq. 10, defined for kl.estimator=k3 only")
        if self.clip_on == "weighted_ratio" and self.token_weight.kind == "none":
            faults.append("clip_on=weighted_ratio needs a token_weight; use clip_on=ratio")
        if faults:
            raise ValueError("; ".join(faults))
        return self


# ---------------------------------------------------------------- model, sampler


class LoraConfig(Record):
    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class ModelConfig(Record):
    path: str = Field("smollm2-135m", description="a fetched name (agent-rl fetch), a hub id, or a local folder")
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="compute dtype; auto: bfloat16 where the machine has bf16 instructions"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    prompt_format: Literal["chat_template", "plain"] = "chat_template"
    lora: LoraConfig | None = None
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False


class SamplerConfig(Record):
    kind: Literal["hf"] = "hf"
    max_batch: PositiveInt = Field(64, description="turns decoded together")


# ---------------------------------------------------------------- tools, rollout


class ToolsConfig(Record):
    url: str = "http://127.0.0.1:8900"
    token_file: str | None = None
    autostart: bool = Field(False, description="start a tool server over `index` for the run and stop it after")
    index: str = Field("indexes/miniwiki", description="used by autostart only")
    call_timeout_s: PositiveFloat = 30.0
    max_connections: PositiveInt = 64

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port beyond 65535, a bracket that is not closed
            whole = False
        if not whole:
            raise ValueError(f"{url!r} is not an address; write it as http://127.0.0.1:8900")
        return url


class RolloutConfig(Record):
    grammar: Literal["search_r1"] = "search_r1"
    temperature: NonNegativeFloat = 1.0
    max_turns: PositiveInt = Field(4, description="policy turns, the answering one included")
    max_turn_tokens: PositiveInt = 256
    max_response_tokens: PositiveInt = Field(2048, description="policy and tool tokens together")
    max_observation_tokens: PositiveInt = 500
    max_prompt_tokens: PositiveInt = 1024
    rollout_timeout_s: PositiveFloat = 300.0
    correct_invalid_action: bool = Field(False, description="answer a turn without call or answer with a hint")
    group_size: PositiveInt = 8
    min_group: PositiveInt = Field(2, description="scored members a group needs to be trained on")
    retries: NonNegativeInt = Field(1, description="times a trajectory broken by infrastructure is run again")
    max_failed_fraction: Fraction = Field(0.5, description="a step with more broken trajectories ends the run")
    max_in_flight: PositiveInt = 128


# ---------------------------------------------------------------- training, evaluation, logging


class OptimConfig(Record):
    lr: PositiveFloat = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_steps: NonNegativeInt = 0
    min_lr_fraction: Fraction = 0.0
    weight_decay: NonNegativeFloat = 0.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat = 1.0


class WarmupConfig(Record):
    """Supervised steps on oracle trajectories before RL (0 traces: no warm-up)."""

    traces: NonNegativeInt = 0
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 8
    lr: PositiveFloat = 5e-5


class TrainConfig(Record):
    steps: PositiveInt = 100
    prompts_per_step: PositiveInt = 32
    updates_per_rollout: PositiveInt = 1
    max_batch_tokens: PositiveInt = Field(8192, description="padded tokens of one micro-batch")
    logprob_chunk_tokens: PositiveInt = Field(512, description="trained positions whose logits exist at once")
    optim: OptimConfig = OptimConfig()
    drop_uniform_groups_from_batch: bool = Field(
        True,
        description="skip the forward pass of groups whose advantages are all zero when beta = 0; same loss",
    )
    checkpoint_every_steps: PositiveInt = 20
    keep_checkpoints: PositiveInt = 2
    save_trajectories_every_steps: PositiveInt = 1


class EvalConfig(Record):
    """Evaluation during training: every ``every_steps`` steps (0: only where asked by before/after)."""

    every_steps: NonNegativeInt = 0
    before: bool = Field(False, description="evaluate after the warm-up, before the first RL step")
    after: bool = Field(False, description="evaluate after the last step")
    split: Literal["dev", "test"] = "dev"
    questions: PositiveInt = 100
    samples: NonNegativeInt = Field(4, description="sampled answers per question at the training temperature")
    greedy: bool = True
    seed: int = 0


class LoggingConfig(Record):
    tensorboard: bool = True
    wandb: bool = False
    wandb_project: str = "agent_rl"


class EmbeddedBackend(Record):
    kind: Literal["embedded"] = "embedded"
    threads: NonNegativeInt = Field(0, description="CPU threads of torch (0: torch's own choice)")


class RunConfig(Record):
    """`agent-rl train`, `warmup`, `eval` and `rollout`."""

    task: TaskConfig = SearchTask()
    algo: AlgoConfig = AlgoConfig()
    model: ModelConfig = ModelConfig()
    sampler: SamplerConfig = SamplerConfig()
    tools: ToolsConfig = ToolsConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    warmup: WarmupConfig = WarmupConfig()
    eval: EvalConfig = EvalConfig()
    logging: LoggingConfig = LoggingConfig()
    backend: EmbeddedBackend = EmbeddedBackend()
    seed: int = 0
    run_dir: PathText = Field("runs/search", description="where everything of the run is written")
    resume: Literal["auto", "never", "must"] = Field(
        "auto",
        description="auto: continue a run found in run_dir; never: refuse to touch one; must: need one",
    )

    @model_validator(mode="after")
    def _has_meaning(self) -> RunConfig:
        faults = []
        group, ddof = self.rollout.group_size, self.algo.std_ddof
        if self.algo.advantage == "group_norm" and group == 1:
            faults.append(
                f"rollout.group_size=1 with algo.advantage=group_norm (std_ddof={ddof}): "
                "the std of one reward does not exist; use a larger group"
            )
        if self.rollout.min_group > group:
            faults.append(f"rollout.min_group={self.rollout.min_group} is above rollout.group_size={group}")
        sequences = self.train.prompts_per_step * group
        if self.train.updates_per_rollout > self.train.prompts_per_step:
            faults.append(
                f"train.updates_per_rollout={self.train.updates_per_rollout} is above the "
                f"{self.train.prompts_per_step} prompts ({sequences} sequences) of a step"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self


# ---------------------------------------------------------------- building an index, serving tools


class JsonlCorpus(Record):
    kind: Literal["jsonl"] = "jsonl"
    path: str


CorpusConfig = Annotated[MiniwikiWorld | JsonlCorpus, Field(discriminator="kind")]


class EncoderConfig(Record):
    path: str = Field("minilm", description="a fetched name, a hub id, or a local folder")
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Literal["mean", "cls"] = "mean"
    normalise: bool = True
    max_tokens: PositiveInt = 256
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    batch_size: PositiveInt = 32


class BuildIndexConfig(Record):
    corpus: CorpusConfig = MiniwikiWorld()
    encoder: EncoderConfig = EncoderConfig()
    index: Literal["flat"] = "flat"
    out: PathText | None = Field(
        None,
        description="folder of the index; not given: indexes/miniwiki, or indexes/ and the name of the corpus file",
    )
    overwrite: bool = False


class SearchToolConfig(Record):
    max_batch: PositiveInt = 64
    max_queue: PositiveInt = 1024
    max_top_k: Annotated[int, Field(gt=0, le=2048)] = 100
    max_query_chars: PositiveInt = 2000
    cache_entries: NonNegativeInt = 10_000


class ServeToolsConfig(Record):
    index: PathText = "indexes/miniwiki"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8900
    token_file: str | None = None
    max_body_bytes: PositiveInt = 4 * 2**20
    search: SearchToolConfig = SearchToolConfig()
