"""A run in the terminal while it goes on: its curves, its last step, its last trajectories."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_rl.errors import ArtifactError
from agent_rl.report.diagnosis import diagnose
from agent_rl.report.run_data import Row, RunData, read_run
from agent_rl.report.trajectories import AUTHORS, read_step, visible

CURVES = (
    ("reward/mean", "reward"),
    ("rollout/entropy", "entropy, nats"),
    ("objective/grad_norm", "gradient norm"),
    ("rollout/policy_tokens_mean", "policy tokens"),
)
_NUMBERS = (
    ("reward/em", "EM"),
    ("rollout/searches_mean", "searches"),
    ("rollout/stop/answer", "answered"),
    ("rollout/failed", "failed"),
    ("rollout/uniform_groups", "uniform groups"),
    ("mismatch/mean_abs_logp", "mismatch"),
    ("weight/mean", "weight"),
    ("time/step_s", "seconds"),
)
_STYLES = {"prompt": "dim", "policy": "bold cyan", "tool": "yellow"}
_TRAJECTORIES = 2
_TEXT_CHARS = 1200


def watch(path: Path, every_s: float, console: Console) -> None:
    """Show the run at ``path`` until interrupted. Raises UsageError where it is no run."""
    with Live(screen(read_run(path), console), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            try:
                live.update(screen(read_run(path), console), refresh=True)
            except ArtifactError:  # a line that is being written: the next look will do better
                continue


def screen(run: RunData, console: Console) -> RenderableType:
    """What fills the terminal, whatever its size is."""
    layout = Layout()
    width, height = console.size
    curves_rows = min(2 * 12, max(8, height // 2))
    layout.split_column(
        Layout(_head(run), size=4),
        Layout(_curves(run, width, curves_rows), size=curves_rows),
        Layout(_trajectories(run)),
    )
    return layout


def once(run: RunData, console: Console) -> RenderableType:
    """The same for a file or a pipe: no screen to fill, so nothing is cut."""
    return Group(_head(run), _curves(run, console.width, 20), _trajectories(run))


def _head(run: RunData) -> RenderableType:
    train = run.metrics.get("train", [])
    if not train:
        warm = run.metrics.get("warmup", [])
        said = f"warm-up, {-warm[-1]['step']} updates to go" if warm and warm[-1]["step"] < 0 else "no step yet"
        return Panel(Text(said), title=Text(visible(run.name)))
    last = train[-1]
    steps = (run.config.get("train") or {}).get("steps", "?")
    numbers = "   ".join(f"{label} {last[key]:.3g}" for key, label in _NUMBERS if key in last)
    line = Text(f"step {last['step']} of {steps}", style="bold")
    line.append(f"   {numbers}", style="not bold")
    names = [finding.name for finding in diagnose(run)]
    wrong = f"looks wrong: {', '.join(names)} (agent-rl doctor {run.path})" if names else "nothing looks wrong"
    return Panel(Group(line, Text(wrong, style="red" if names else "green")), title=Text(visible(run.name)))


def _curves(run: RunData, width: int, rows: int) -> RenderableType:
    train = run.metrics.get("train", [])
    grid = Table.grid(expand=True)
    across = 2 if width >= 80 else 1
    for _ in range(across):
        grid.add_column(ratio=1)
    down = -(-len(CURVES) // across)
    drawn = [_curve(train, key, label, width // across - 1, max(rows // down, 4)) for key, label in CURVES]
    for start in range(0, len(drawn), across):
        grid.add_row(*drawn[start : start + across])
    return grid


def _curve(train: Sequence[Row], key: str, label: str, width: int, height: int) -> Text:
    import plotext

    points = [(row["step"], row[key]) for row in train if key in row]
    if not points:
        return Text(f"{label}: no value yet", style="dim")
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.title(label)
    plotext.plot([x for x, _ in points], [y for _, y in points], marker="braille")
    return Text.from_ansi(plotext.build())


def _trajectories(run: RunData) -> RenderableType:
    if not run.trajectory_files:
        return Text("no trajectory is stored yet", style="dim")
    rows = read_step(run.trajectory_files[-1], run.notes)
    return Group(*(_trajectory(row) for row in rows[-_TRAJECTORIES:]))


def _trajectory(row: Row) -> RenderableType:
    reward = "no reward" if row.get("reward") is None else f"reward {row['reward']:.3g}"
    title = (
        f"step {row.get('step')}, {reward}, {row.get('stop_reason')}, gold {' | '.join(map(str, row.get('gold', [])))}"
    )
    body, left = Text(), _TEXT_CHARS
    for piece, author in zip(row["pieces"], row["authors"], strict=True):
        # A terminal obeys control characters; here they are only pictures of themselves.
        piece = visible(piece)[:left]
        body.append(piece, style=_STYLES[AUTHORS[author]])
        left -= len(piece)
        if left <= 0:
            body.append(" …")
            break
    return Panel(body, title=Text(visible(title)[:100]), title_align="left")


def make_console(**settings: Any) -> Console:
    """A console that takes what it shows as text: no markup, no emoji codes, no guessing of what is a number."""
    return Console(markup=False, emoji=False, highlight=False, **settings)
