"""Token weights: how they are spread, and how they follow the token's own probability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agent_rl.report.charts import Figure, finite
from agent_rl.report.run_data import Row

POLICY = 1  # author code of a token that the policy wrote
_BINS = 40
_SCATTER_POINTS = 3000


def weight_figures(trajectories: Sequence[Row]) -> list[Figure]:
    """Histogram of ``w`` over trained tokens, and ``w`` against ``p``; [] where no token has a weight."""
    pairs = [
        (math.exp(logprob), weight)
        for row in trajectories
        for author, trained, logprob, weight in zip(
            row["authors"], row["loss_mask"], row["logprobs"], row["weights"], strict=True
        )
        if author == POLICY and trained and weight is not None and logprob is not None
    ]
    if not pairs:
        return []
    probabilities, weights = np.array(pairs).T
    counts, edges = np.histogram(weights, bins=_BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    histogram = {
        "type": "bar",
        "name": "trained tokens",
        "x": [finite(float(x)) for x in centres],
        "y": (counts / counts.sum()).tolist(),
        "width": [float(edges[1] - edges[0])] * _BINS,
        "color": 0,
    }
    # Evenly spread over the token order: the same report comes out of the same run every time.
    chosen = np.linspace(0, len(pairs) - 1, min(len(pairs), _SCATTER_POINTS)).astype(int)
    scatter = {
        "type": "scatter",
        "mode": "markers",
        "name": "a token",
        "x": [finite(float(p)) for p in probabilities[chosen]],
        "y": [finite(float(w)) for w in weights[chosen]],
        "marker": {"size": 5, "opacity": 0.5},
        "color": 1,
    }
    about = f"{len(pairs):,} trained tokens."
    return [
        {
            "title": "How the weights are spread",
            "note": about,
            "data": [histogram],
            "layout": {"xaxis": {"title": {"text": "weight w"}}, "yaxis": {"title": {"text": "share"}}},
        },
        {
            "title": "Weight against probability",
            "note": "p as sampled. " + (about if len(chosen) == len(pairs) else f"{len(chosen):,} of {about}"),
            "data": [scatter],
            "layout": {
                "xaxis": {"title": {"text": "probability p"}, "range": [0, 1]},
                "yaxis": {"title": {"text": "weight w"}},
            },
        },
    ]
