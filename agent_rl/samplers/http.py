"""Requests to a server that samples: one pool of connections, repeated where that may help."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import httpx

from agent_rl.config.schema import RemoteSamplerConfig
from agent_rl.errors import SamplerError, UsageError
from agent_rl.rollout.http_pool import HttpPool

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 10.0


class ModelServer:
    """The server at ``config.url``. Belongs to one event loop; ``aclose`` at the end."""

    def __init__(self, config: RemoteSamplerConfig) -> None:
        self.config, self.url = config, config.url.rstrip("/").removesuffix("/v1")
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(config.key_env):
            headers["Authorization"] = f"Bearer {key}"
        self._pool = HttpPool(self.url, headers, config.max_batch)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def model_name(self) -> str:
        """``config.model``, or the first that the server lists. Raises UsageError where none can be had."""
        if self.config.model is not None:
            return self.config.model
        try:
            return str((await self._ask("GET", "/v1/models", None))["data"][0]["id"])
        except (SamplerError, KeyError, IndexError, TypeError) as error:
            raise UsageError(
                f"sampler.url={self.config.url}: no model is listed there ({error}); start the server, or give its "
                "model's name as sampler.model"
            ) from error

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer. A lost connection, 429 and 5xx are tried again; raises SamplerError in the end."""
        return await self._ask("POST", path, json.dumps(body | self.config.extra_body))

    async def _ask(self, method: str, path: str, content: str | None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.config.timeout_s):
                return await self._attempts(method, path, content)
        except TimeoutError:
            raise SamplerError(
                f"{self.url}{path}: no answer within sampler.timeout_s={self.config.timeout_s}"
            ) from None

    async def _attempts(self, method: str, path: str, content: str | None) -> dict[str, Any]:
        pause_s = FIRST_BACKOFF_S
        for attempt in range(self.config.retries + 1):
            if attempt:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, MAX_BACKOFF_S)
            try:
                answer = await self._pool.request(method, path, content)
            except httpx.TransportError as error:
                failure = f"{self.url}{path}: {type(error).__name__} {error}".rstrip()
                continue
            if answer.status_code == 200:
                try:
                    found = answer.json()
                except ValueError:
                    found = None
                if not isinstance(found, dict):
                    raise SamplerError(f"{self.url}{path} answered {answer.text[:200]!r}, which is no JSON object")
                return found
            failure = f"{self.url}{path} answered {answer.status_code} {answer.text[:300]}"
            if answer.status_code == 429:
                pause_s = max(pause_s, _seconds(answer.headers.get("Retry-After")))
            elif answer.status_code < 500:
                break
        raise SamplerError(failure)


def _seconds(header: str | None) -> float:
    try:
        return min(float(header or 0), MAX_BACKOFF_S)
    except ValueError:  # a date
        return 0.0
