"""Puts the parts of the report into one HTML file.

The file asks for nothing over the network. What models wrote is hostile until escaped: it goes through
Jinja's escaping in the markup, through ``\\u003c`` in the JSON or base64, into the page as text nodes alone, and
the page's security policy runs only the scripts whose hashes it names, so that not even a hole in these lets a token
run.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from agent_rl.errors import AgentRLError, ArtifactError, UsageError
from agent_rl.report.charts import curve_figures, part_zero
from agent_rl.report.compare import config_difference
from agent_rl.report.gather import gather
from agent_rl.report.run_data import RunData, read_run
from agent_rl.report.tables import changed_questions, comparison_table, evaluation_table, runs_table
from agent_rl.report.trajectories import visible

PAGE_BUDGET_BYTES = 9_600_000  # under 10 MB, so that mail and chat take it


def write_report(
    run_dirs: Sequence[Path | str], out: Path | str | None = None, steps: tuple[int, int] | None = None
) -> Path:
    """Write the report of one or several runs; by default ``report.html`` in the first run's directory.

    ``steps``: the first and the last step whose trajectories the page may carry (None: of the whole run).
    Raises UsageError where a directory is no run, ArtifactError (file and line) where a part of one is
    broken.
    """
    if not run_dirs:
        raise UsageError("a report needs at least one run directory")
    target = Path(out) if out is not None else Path(run_dirs[0]) / "report.html"
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give --out the name of a file, such as {target / 'report.html'}")
    html = render_report(run_dirs, steps)
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


def render_report(run_dirs: Sequence[Path | str], steps: tuple[int, int] | None = None, *, live: str = "") -> str:
    """The page as text; ``live``, the version that it shows, lets it ask its server whether the run went on."""
    with _broken_means(", ".join(map(str, run_dirs))):
        return _render([read_run(Path(path)) for path in run_dirs], steps, live)


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


def _render(runs: Sequence[RunData], steps: tuple[int, int] | None, live: str) -> str:
    # Imported here: the command line must answer --help without them.
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    folder = files("agent_rl.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    scripts = [(folder / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    plotly = get_plotlyjs()
    packed = base64.b64encode(gzip.compress(plotly.encode(), mtime=0)).decode()
    curves, zero = part_zero(curve_figures(runs))
    room = PAGE_BUDGET_BYTES - sum(map(len, [packed, *scripts])) - len(script_json(curves)) - _TABLES_BYTES
    parts = [_run_part(run, room // len(runs), steps) for run in runs]
    return template.render(
        title=" · ".join(visible(run.name) for run in runs),
        live=live,
        runs_table=runs_table(runs),
        config_difference=config_difference(runs),
        evaluation_table=evaluation_table(runs),
        comparison_table=comparison_table(runs),
        curves=curves,
        zero=[visible(title) for title in zero],
        bands=any("bands" in figure for figure in curves),
        parts=parts,
        notes=[f"{visible(run.name)}: {visible(note)}" for run in runs for note in dict.fromkeys(run.notes)],
        figures=script_json([*curves, *(figure for part in parts for figure in part["weights"])]),
        names=script_json([part["name"] for part in parts]),
        style=(folder / "report.css").read_text(encoding="utf-8"),
        scripts=scripts,
        plotly=packed,
        script_hashes=" ".join(f"'sha256-{_sha256(text)}'" for text in [plotly, *scripts]),
    )


_SCRIPTS = ("unpack.js", "colours.js", "transcript.js", "browser.js", "charts.js")  # a later one uses the earlier
_TABLES_BYTES = 600_000  # room for the tables, the configurations and the figures of the weights


def _run_part(run: RunData, room: int, steps: tuple[int, int] | None) -> dict[str, Any]:
    gathered = gather(run, max(room, 0), steps)
    run.notes += gathered.notes
    return {
        "name": visible(run.name),
        "config": visible(run.config_text),
        "changed": changed_questions(run),
        "weights": gathered.tally.weight_figures(),
        "words": gathered.tally.word_lists(),
        "tokens": gathered.tally.tokens,
        "gathered": gathered,
    }


def script_json(value: Any) -> str:
    """JSON fit for a ``<script>`` element: no ``<`` that could end it, no NaN that JSON.parse refuses."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
