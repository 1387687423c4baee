"""What sandboxed code printed: the beginning and the end are kept, the length of the rest is told."""

from __future__ import annotations


class Output:
    """Takes any number of bytes and holds about ``limit`` of them (at most a chunk more)."""

    def __init__(self, limit: int) -> None:
        self._head_limit, self._tail_limit = limit - limit // 4, limit // 4
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk
            del self._tail[: len(self._tail) - self._tail_limit]

    @property
    def truncated(self) -> bool:
        return self.total > len(self._head) + len(self._tail)

    def text(self) -> str:
        """As valid Unicode: what is not UTF-8 becomes U+FFFD. A cut is marked, with the lengths."""
        if not self.truncated:
            return (self._head + self._tail).decode("utf-8", errors="replace")
        missing = self.total - len(self._head) - len(self._tail)
        mark = f"\n[... {missing} of {self.total} bytes left out ...]\n"
        head, tail = (part.decode("utf-8", errors="replace") for part in (self._head, self._tail))
        return head + mark + tail
