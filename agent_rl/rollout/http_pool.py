"""A pool of HTTP connections to one server whose cost does not grow with their number.

httpx's own pool looks at every connection, several times, for every request. Here each connection is a client of its
own, and a free one is simply taken from a stack.
"""

from __future__ import annotations

import asyncio
import ssl

import httpx

CONNECT_TIMEOUT_S = 5.0
# shorter than the tool server's keep-alive, so that an idle connection is never closed under a request
KEEPALIVE_S = 30.0


class HttpPool:
    """At most ``max_connections`` requests at a time; more wait for their turn. Belongs to one event loop.

    Reading has no time limit: callers bring their own. Proxies of the environment are not used.
    """

    def __init__(self, url: str, headers: dict[str, str], max_connections: int) -> None:
        self._url, self._headers = url, headers
        self._turns = asyncio.Semaphore(max_connections)
        self._tls = ssl.create_default_context()  # made once: loading the certificates takes milliseconds
        self._all: list[httpx.AsyncClient] = []
        # the last one used is the first one taken, so that few connections stay open when few are needed
        self._idle: list[httpx.AsyncClient] = []

    async def request(self, method: str, path: str, content: str | None = None) -> httpx.Response:
        """The whole response. Raises httpx.TransportError. Cancelling closes the connection."""
        async with self._turns:
            client = self._idle.pop() if self._idle else self._new()
            try:
                return await client.request(method, path, content=content)
            finally:
                self._idle.append(client)

    async def aclose(self) -> None:
        for client in self._all:
            await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            trust_env=False,
            verify=self._tls,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_S),
        )
        self._all.append(client)
        return client
