"""A caller that reads a stream: the lines received so far, and whether the stream has ended."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import pass_time, until


class AStream:
    """One request for a stream. While `reads` is not set, the caller reads nothing.

    It stops reading when it has received `stop_after_parts`.
    """

    def __init__(
        self,
        cluster: ACluster,
        server: OneServer,
        path: str,
        query: list[tuple[str, str]],
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.is_over = False
        self.has_proper_end = False
        """Whether the server sent the end of the body, instead of cutting it off."""
        self.disconnected = asyncio.Event()
        self.stop_after_parts = 0
        self.reads = asyncio.Event()
        self.reads.set()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(query).encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 40_000),
        }
        self._task = cluster.start(self._run(server, scope), name="stream")

    async def _run(self, server: OneServer, scope: dict[str, Any]) -> None:
        try:
            await server.api(scope, self._receive, self._send)
        finally:
            self.is_over = True

    async def _receive(self) -> Any:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if message.get("body"):
            self.parts.append(message["body"])
            if len(self.parts) == self.stop_after_parts:
                self.reads.clear()
        self.has_proper_end = not message.get("more_body", False)

    @property
    def lines(self) -> list[dict[str, Any]]:
        complete, _, _rest = b"".join(self.parts).rpartition(b"\n")
        return [json.loads(line) for line in complete.splitlines()]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for line in self.lines for event in line.get("Events", ())]

    @property
    def heartbeats(self) -> int:
        return self.lines.count({})

    async def wait_begin(self) -> None:
        await until(lambda: self.status and (self.parts or self.is_over), what="the stream begins")

    async def wait_for_event(self, *, topic: str = "", type: str = "", key: str = "") -> dict[str, Any]:
        """Return the first event with these values; wait for it if necessary."""
        expected = {name: value for name, value in (("Topic", topic), ("Type", type), ("Key", key)) if value}

        def find() -> dict[str, Any] | None:
            return next((event for event in self.events if expected.items() <= event.items()), None)

        return await until(find, what=f"an event with {expected}; received: {self.event_keys}")

    async def wait_end(self) -> None:
        await until(lambda: self.is_over, what="the stream ends", within_s=120)

    async def disconnect(self) -> None:
        self.disconnected.set()
        await self.wait_end()

    @property
    def event_keys(self) -> list[tuple[str, str, str]]:
        return [(event["Topic"], event["Type"], event["Key"]) for event in self.events]


async def listen(
    cluster: ACluster,
    server: OneServer,
    *topics: str,
    index: int | str | None = None,
    namespace: str = "",
    headers: dict[str, str] | None = None,
) -> AStream:
    """Return an event stream that has begun."""
    query = [("topic", topic) for topic in topics]
    if index is not None:
        query.append(("index", str(index)))
    if namespace:
        query.append(("namespace", namespace))
    stream = AStream(cluster, server, "/v1/event/stream", query, headers)
    await stream.wait_begin()
    await pass_time(0.05)  # Retained events have been sent.
    return stream
