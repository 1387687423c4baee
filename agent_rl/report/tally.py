"""Counts over the policy tokens of a run: which words are sure and which are not, and how the weights lie.

The figures are made from every token of the files that were read; only the scatter shows some of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agent_rl.report.charts import Figure, finite
from agent_rl.report.run_data import Row
from agent_rl.report.trajectories import POLICY, visible

_WEIGHT_DIGITS = 2  # width of a bar of the histogram
_SCATTER_POINTS = 3000
_WORDS_SHOWN = 40
_RAREST_COUNT = 5  # a word seen less often says nothing about the policy
_WORD_CHARS = 60


@dataclass(slots=True)
class Tally:
    """``words``: by token text, [how often, sum of p]. ``weights``: how many trained tokens by rounded weight."""

    trajectories: int = 0
    tokens: int = 0
    trained: int = 0
    words: dict[str, list[float]] = field(default_factory=dict)
    weights: Counter[float] = field(default_factory=Counter)
    points: list[tuple[float, float]] = field(default_factory=list)
    _every: int = 1

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.trajectories += 1
            columns = zip(row["pieces"], row["authors"], row["logprobs"], row["weights"], strict=True)
            for piece, author, logprob, weight in columns:
                if author != POLICY or logprob is None or not math.isfinite(logprob):
                    continue
                prob = math.exp(logprob)
                self.tokens += 1
                word = self.words.setdefault(piece, [0, 0.0])
                word[0] += 1
                word[1] += prob
                if weight is not None:
                    self._weigh(prob, weight)

    def _weigh(self, prob: float, weight: float) -> None:
        self.weights[round(weight, _WEIGHT_DIGITS)] += 1
        if self.trained % self._every == 0:
            self.points.append((prob, weight))
            if len(self.points) > 2 * _SCATTER_POINTS:  # spread evenly however long the run is
                self.points = self.points[::2]
                self._every *= 2
        self.trained += 1

    def word_lists(self) -> dict[str, list[dict[str, Any]]]:
        """``low`` and ``high``: the tokens with the lowest and highest mean probability (the paper's Figure 1)."""
        often: list[dict[str, Any]] = [
            {"text": visible(text[:_WORD_CHARS]), "count": int(count), "p": round(total / count, 4)}
            for text, (count, total) in self.words.items()
            if count >= _RAREST_COUNT
        ]
        low = sorted(often, key=lambda word: (word["p"], -word["count"], word["text"]))
        high = sorted(often, key=lambda word: (-round(word["p"], 3), -word["count"], word["text"]))
        half = min(_WORDS_SHOWN, len(often) // 2)
        return {"low": low[:half], "high": high[:half]}

    def weight_figures(self) -> list[Figure]:
        """Histogram of ``w`` over trained tokens, and ``w`` against ``p``; [] where no token has a weight."""
        if not self.trained:
            return []
        values = sorted(self.weights)
        histogram = {
            "type": "bar",
            "name": "trained tokens",
            "x": values,
            "y": [self.weights[value] / self.trained for value in values],
            "width": [10.0**-_WEIGHT_DIGITS] * len(values),
            "color": 0,
        }
        scatter = {
            "type": "scatter",
            "mode": "markers",
            "name": "a token",
            "x": [finite(p) for p, _ in self.points],
            "y": [finite(w) for _, w in self.points],
            "marker": {"size": 5, "opacity": 0.5},
            "color": 1,
        }
        about = f"{self.trained:,} trained tokens"
        some = about if len(self.points) == self.trained else f"{len(self.points):,} of {about}, evenly spread"
        span = values[-1] - values[0] or 1.0
        return [
            {
                "title": "How the weights are spread",
                "note": f"{about}; a bar is {10.0**-_WEIGHT_DIGITS:g} wide.",
                "data": [histogram],
                "layout": {
                    "xaxis": {"title": {"text": "weight w"}, "range": [values[0] - span / 10, values[-1] + span / 10]},
                    "yaxis": {"title": {"text": "share"}},
                },
            },
            {
                "title": "Weight against probability",
                "note": f"p as sampled. {some}.",
                "data": [scatter],
                "layout": {
                    "xaxis": {"title": {"text": "probability p"}, "range": [0, 1]},
                    "yaxis": {"title": {"text": "weight w"}},
                },
            },
        ]
