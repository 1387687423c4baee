"""Benchmarks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agent_rl.config.schema.record import PathText, PositiveInt, Record
from agent_rl.config.schema.serve import PythonToolConfig


class BenchSandboxConfig(Record):
    """`agent-rl bench sandbox`."""

    concurrency: Annotated[tuple[PositiveInt, ...], Field(min_length=1, description="callers at once")] = (1, 8, 32)
    calls: PositiveInt = Field(200, description="calls of each way and number of callers, in each round")
    rounds: PositiveInt = 3
    python: PythonToolConfig = PythonToolConfig()
    out: PathText | None = Field(None, description="file for the figures, as JSON")


class BenchReportConfig(Record):
    """`agent-rl bench report`."""

    run_dir: PathText = Field("runs/demo", description="a run directory with trajectories, which are repeated")
    steps: PositiveInt = 1000
    trajectories_per_step: PositiveInt = 50
    openings: PositiveInt = Field(5, description="times that the page is opened in a browser, where there is one")
    out: PathText | None = Field(None, description="file for the figures, as JSON")
