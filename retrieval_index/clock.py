"""How long a build takes, over all the tries that it takes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from retrieval_index.vectors import VECTORS_DIR

CLOCK_FILE = "seconds.json"


class BuildClock:
    """Runs from ``started`` (of time.monotonic), and goes on from what earlier tries saved beside the vectors in
    ``folder``, with which it is removed.
    """

    def __init__(self, folder: Path, started: float) -> None:
        self._file = folder / VECTORS_DIR / CLOCK_FILE
        self._started = started
        try:
            self._earlier = float(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # the first try, or one that was killed before it had a shard
            self._earlier = 0.0

    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._started

    def save(self) -> None:
        """What is done after this, and never saved, is done and timed again."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.seconds()), encoding="utf-8")
        part.replace(self._file)
