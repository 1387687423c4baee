"""Where the time of rollouts went: in the sampler, in its queue, in tools, and how much of the tools' was hidden."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from statistics import fmean

from agent_rl.rollout.trajectory import Trajectory

Span = tuple[float, float]  # seconds of time.perf_counter


def time_split(everyone: Sequence[Trajectory]) -> dict[str, float]:
    """Mean seconds of a trajectory by what it did, and ``rollout/tool_hidden_share`` where tools were waited for.

    The hidden share is the part of all seconds spent waiting for tools in which the sampler was at work on some other
    trajectory of ``everyone``: 1 where a slow tool cost nothing, 0 where everybody stood still.
    """
    found = {
        "rollout/generate_s_mean": fmean(sum(turn.generate_s for turn in t.turns) for t in everyone),
        "rollout/queued_s_mean": fmean(sum(turn.queued_s for turn in t.turns) for t in everyone),
        "rollout/tool_s_mean": fmean(sum(turn.tool_s for turn in t.turns) for t in everyone),
    }
    turns = [turn for t in everyone for turn in t.turns]
    ended = [(turn, turn.began + turn.queued_s + turn.generate_s) for turn in turns]
    waits = [(end, end + turn.tool_s) for turn, end in ended if turn.tool_s > 0]
    if waits:
        busy = _union((turn.began + turn.queued_s, end) for turn, end in ended)
        found["rollout/tool_hidden_share"] = _covered(waits, busy) / sum(end - begin for begin, end in waits)
    return found


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same times as disjoint spans, in order."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _covered(spans: Iterable[Span], union: Sequence[Span]) -> float:
    """Seconds of ``spans``, overlaps counted as often as they are, that lie within ``union``."""
    begins, before = [begin for begin, _ in union], [0.0]
    for begin, end in union:
        before.append(before[-1] + end - begin)

    def until(moment: float) -> float:
        place = bisect_right(begins, moment)
        return before[place] - max(0.0, union[place - 1][1] - moment) if place else 0.0

    return sum(until(end) - until(begin) for begin, end in spans)
