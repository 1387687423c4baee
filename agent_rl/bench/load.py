"""Clients of a retrieval server: so many at once, each sending its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from agent_rl.rollout.http_pool import HttpPool

TIMEOUT_S = 120.0
PROBE_EVERY_S = 0.05


@dataclass(slots=True)
class Load:
    """What one lot of clients saw. Times in seconds; ``cpu_s`` is the server's processor time meanwhile. ``refused``:
    answers of 429, each obeyed and sent again.
    """

    seconds: float = 0.0
    queries: int = 0
    cpu_s: float = 0.0
    took: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    refused: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def queries_per_s(self) -> float:
        return self.queries / self.seconds if self.seconds else 0.0

    @property
    def queries_per_cpu_s(self) -> float:
        """What it would answer in a second if it had a core to itself: a busy machine hardly moves it."""
        return self.queries / self.cpu_s if self.cpu_s else float("nan")

    def add(self, other: Load) -> None:
        """Another round of the same."""
        self.seconds += other.seconds
        self.queries += other.queries
        self.cpu_s += other.cpu_s
        self.refused += other.refused
        self.took += other.took
        self.health += other.health
        self.errors += other.errors


def quantile_ms(values: Sequence[float], share: float) -> float:
    """Milliseconds; the value that ``share`` of all are at or below. NaN of none."""
    return 1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def load(
    url: str,
    queries: Sequence[str],
    *,
    clients: int,
    seconds: float,
    batch: int = 1,
    topk: int = 3,
    warm_up: bool = True,
    cpu_s: Callable[[], float] = float,
) -> Load:
    """Let ``clients`` send requests of ``batch`` queries each for ``seconds``; what is on its way then is waited for
    and counted, and so is its time. ``cpu_s`` reads the server's processor time so far, in seconds.
    """
    seen, endless = Load(), itertools.cycle(queries)
    pool = HttpPool(url, {"Content-Type": "application/json"}, clients)
    # connected before the clock runs
    await asyncio.gather(*(_ask(pool, [next(endless)], topk) for _ in range(clients if warm_up else 0)))
    used, began = cpu_s(), time.perf_counter()
    ends = began + seconds

    async def client() -> None:
        while time.perf_counter() < ends:
            asked = [next(endless) for _ in range(batch)]
            started = time.perf_counter()
            try:
                while (wait := await _ask(pool, asked, topk)) is not None:
                    seen.refused += 1
                    await asyncio.sleep(wait)
            except (httpx.HTTPError, TimeoutError, ValueError, KeyError, TypeError) as error:
                seen.errors.append(f"{type(error).__name__}: {error}"[:200])
            else:
                seen.took.append(time.perf_counter() - started)
                seen.queries += batch

    try:
        await asyncio.gather(*(client() for _ in range(clients)))
    finally:
        seen.seconds, seen.cpu_s = time.perf_counter() - began, cpu_s() - used
        await pool.aclose()
    return seen


def probe_health(url: str, seconds: float) -> list[float]:
    """Seconds that GET /health took, asked every so often. To be run in a process of its own: beside a hundred clients
    in one event loop it would be them that are timed. Raises httpx.HTTPError, and ValueError on another answer than
    200.
    """
    took: list[float] = []
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        ends = time.perf_counter() + seconds  # from here: a client alone can take a tenth of a second to make
        while (started := time.perf_counter()) < ends:
            status = client.get("/health").status_code
            took.append(time.perf_counter() - started)
            if status != 200:
                raise ValueError(f"/health: {status}")
            time.sleep(PROBE_EVERY_S)
    return took


async def _ask(pool: HttpPool, queries: list[str], topk: int) -> float | None:
    """Seconds to wait before asking again, None where the answer is there. Raises ValueError on a wrong answer."""
    body = json.dumps({"queries": queries, "topk": topk, "return_scores": True})
    async with asyncio.timeout(TIMEOUT_S):
        answer = await pool.request("POST", "/retrieve", body)
    if answer.status_code == 429:
        return float(answer.headers.get("Retry-After", 1))
    if answer.status_code != 200:
        raise ValueError(f"{answer.status_code}: {answer.text[:100]}")
    found = answer.json()["result"]
    if len(found) != len(queries) or not all(hits and hits[0]["document"]["contents"] for hits in found):
        raise ValueError(f"{len(queries)} queries were answered by {str(found)[:100]}")
    return None
