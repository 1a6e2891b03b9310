"""The port under the client: one request out, one reply back."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Unreachable(Exception):
    """No reply came. `sent`: the request may have reached the server, so a write may have happened."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class Reply(msgspec.Struct, frozen=True):
    """`headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Exchange(Protocol):
    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> Reply:
        """Raises `Unreachable`."""
        ...

    async def close(self) -> None: ...
