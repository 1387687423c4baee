"""Puts the parts of the report into one HTML file.

The file asks for nothing over the network. What models wrote is hostile until escaped: it goes through
Jinja's escaping in the markup, through ``\\u003c`` in the JSON, and the page's security policy runs only
the two scripts whose hashes it names, so that not even a hole in the first two lets a token run.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from agent_rl.errors import AgentRLError, ArtifactError, UsageError
from agent_rl.report.charts import curve_figures
from agent_rl.report.run_data import RunData, read_run
from agent_rl.report.tables import changed_questions, comparison_table, evaluation_table, runs_table
from agent_rl.report.trajectories import choose_three, last_trajectories, visible
from agent_rl.report.weights import weight_figures


def write_report(run_dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of one or several runs; by default ``report.html`` in the first run's directory.

    Raises UsageError where a directory is no run, ArtifactError (file and line) where a part of one is
    broken.
    """
    if not run_dirs:
        raise UsageError("a report needs at least one run directory")
    where = ", ".join(map(str, run_dirs))
    with _broken_means(where):
        runs = [read_run(Path(path)) for path in run_dirs]
    target = Path(out) if out is not None else runs[0].path / "report.html"
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give --out the name of a file, such as {target / 'report.html'}")
    with _broken_means(where):
        html = _render(runs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False)  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); give another file: --out FILE") from error
    with temporary as file:
        try:
            file.write(html)
            file.close()
            os.chmod(file.name, 0o644)  # a temporary file is private to its owner
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
    return target


@contextlib.contextmanager
def _broken_means(where: str) -> Iterator[None]:
    """A value of the wrong kind in a file of a run is that file's fault, and is told as such."""
    try:
        yield
    except AgentRLError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ArtifactError(
            f"{where}: a file holds a value that no run writes ({type(error).__name__}: {error}); was it edited?"
        ) from error


def _render(runs: Sequence[RunData]) -> str:
    # Imported here: the command line must answer --help without them.
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    folder = files("agent_rl.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    plotly, script = get_plotlyjs(), (folder / "report.js").read_text(encoding="utf-8")
    parts = [_run_part(run) for run in runs]
    curves = curve_figures(runs)
    return template.render(
        title=" · ".join(visible(run.name) for run in runs),
        runs_table=runs_table(runs),
        evaluation_table=evaluation_table(runs),
        comparison_table=comparison_table(runs),
        curves=curves,
        parts=parts,
        notes=[f"{run.name}: {note}" for run in runs for note in dict.fromkeys(run.notes)],
        figures=script_json([*curves, *(figure for part in parts for figure in part["weights"])]),
        style=(folder / "report.css").read_text(encoding="utf-8"),
        plotly=plotly,
        script=script,
        script_hashes=" ".join(f"'sha256-{_sha256(text)}'" for text in (plotly, script)),
    )


def _run_part(run: RunData) -> dict[str, Any]:
    rows = last_trajectories(run)
    return {
        "name": visible(run.name),
        "config": visible(run.config_text),
        "changed": changed_questions(run),
        "weights": weight_figures(rows),
        "trajectories": choose_three(rows),
    }


def script_json(value: Any) -> str:
    """JSON fit for a ``<script>`` element: no ``<`` that could end it, no NaN that JSON.parse refuses."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
