"""What a run says while it works: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLAIN_EVERY_S = 15.0


@contextmanager
def progress(label: str, total: int, unit: str, log: Callable[[str], None]) -> Iterator[Callable[..., None]]:
    """Yields a function to call once for each unit done (what it is given is not looked at)."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, desc=label, unit=unit, leave=False, dynamic_ncols=True) as bar:
            yield lambda *_: bar.update() and None
        return
    began = last = time.perf_counter()
    done = 0

    def advance(*_: object) -> None:
        nonlocal done, last
        done += 1
        now = time.perf_counter()
        if now - last >= PLAIN_EVERY_S and done < total:
            last = now
            rate = done / (now - began)
            # Many are in flight together, so the first to finish say little about the rest.
            left = f", {(total - done) / rate:.0f} s left" if done * 5 >= total else ""
            log(f"{label}: {done}/{total} {unit}, {rate:.1f} {unit}/s{left}")

    yield advance


def step_line(step: int, steps: int, found: dict[str, float]) -> str:
    """The metrics of a step that a person watches, in one line."""

    def show(name: str, label: str, digits: int = 3) -> str:
        return f" {label} {found[name]:.{digits}f}" if name in found else ""

    return (
        f"step {step}/{steps}"
        + show("reward/mean", "reward")
        + show("reward/em", "EM")
        + show("rollout/searches_mean", "searches", 2)
        + show("objective/grad_norm", "grad", 2)
        + show("weight/mean", "w", 2)
        + show("objective/entropy", "entropy")
        + show("mismatch/mean_abs_logp", "mismatch", 4)
        + show("rollout/failed", "failed", 0)
        + f" | rollout {found['time/rollout_s']:.1f} s, update {found.get('time/update_s', 0.0):.1f} s"
    )


def nothing_learnt(found: dict[str, float]) -> str | None:
    """A warning for a step in which no trajectory did anything that could be rewarded, else None."""
    answered = found.get("reward/answered", found.get("reward/em"))  # a task need not log the first
    acted = found.get("rollout/searches_mean") or answered
    if not found.get("rollout/turns_mean") or acted or found["rollout/uniform_groups"] < 1:
        return None
    return (
        "warning: no trajectory of this step called a tool or answered, so there is nothing to learn from: the "
        "model does not know the tags. Warm it up (warmup.traces), or begin from a model that does"
    )
