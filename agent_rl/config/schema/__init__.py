"""The typed shape of every command's configuration.

Frozen pydantic records, ``extra="forbid"``; where a part has several kinds, a union tagged by ``kind``.
Units stand in names (``_s`` seconds, ``_tokens``). ``compose.py`` fills the records from YAML and overrides.
"""

from __future__ import annotations

from agent_rl.config.schema.alarm import AlarmConfig
from agent_rl.config.schema.algo import (
    AlgoConfig,
    GroupFilterConfig,
    KLConfig,
    MismatchConfig,
    OverlongConfig,
    TokenFilterConfig,
    TokenWeightConfig,
)
from agent_rl.config.schema.backend import BackendConfig, EmbeddedBackend, VerlBackend
from agent_rl.config.schema.bench import (
    BenchIndexConfig,
    BenchReportConfig,
    BenchRetrievalConfig,
    BenchRolloutConfig,
    BenchSandboxConfig,
    RetrievalWay,
)
from agent_rl.config.schema.evaluation import EvalConfig
from agent_rl.config.schema.index import BuildIndexConfig, CorpusConfig, EncoderConfig, FileCorpus, IndexConfig
from agent_rl.config.schema.model import LoraConfig, ModelConfig
from agent_rl.config.schema.record import PathText, PositiveInt, Record
from agent_rl.config.schema.rollout import RolloutConfig
from agent_rl.config.schema.run import LoggingConfig, RunConfig
from agent_rl.config.schema.sampler import HFSamplerConfig, RemoteSamplerConfig, SamplerConfig, VLLMSamplerConfig
from agent_rl.config.schema.serve import PythonToolConfig, SearchToolConfig, ServeToolsConfig, SqlToolConfig
from agent_rl.config.schema.tasks import (
    FileList,
    JsonlData,
    KKTask,
    MathTask,
    MiniwikiData,
    MiniwikiWorld,
    PluginTask,
    SearchTask,
    TaskConfig,
)
from agent_rl.config.schema.tools import ToolsConfig
from agent_rl.config.schema.train import OptimConfig, TrainConfig, WarmupConfig

__all__ = [
    "AlarmConfig",
    "AlgoConfig",
    "BackendConfig",
    "BenchIndexConfig",
    "BenchReportConfig",
    "BenchRetrievalConfig",
    "BenchRolloutConfig",
    "BenchSandboxConfig",
    "BuildIndexConfig",
    "CorpusConfig",
    "EmbeddedBackend",
    "EncoderConfig",
    "EvalConfig",
    "FileCorpus",
    "FileList",
    "GroupFilterConfig",
    "HFSamplerConfig",
    "IndexConfig",
    "JsonlData",
    "KKTask",
    "KLConfig",
    "LoggingConfig",
    "LoraConfig",
    "MathTask",
    "MiniwikiData",
    "MiniwikiWorld",
    "MismatchConfig",
    "ModelConfig",
    "OptimConfig",
    "OverlongConfig",
    "PathText",
    "PositiveInt",
    "PythonToolConfig",
    "Record",
    "RemoteSamplerConfig",
    "PluginTask",
    "RetrievalWay",
    "RolloutConfig",
    "RunConfig",
    "SamplerConfig",
    "SearchTask",
    "SearchToolConfig",
    "ServeToolsConfig",
    "SqlToolConfig",
    "TaskConfig",
    "TokenFilterConfig",
    "TokenWeightConfig",
    "ToolsConfig",
    "TrainConfig",
    "VLLMSamplerConfig",
    "VerlBackend",
    "WarmupConfig",
]
