"""A bare ASGI application on uvicorn that sends recorded replies: the baseline of the HTTP API.

`python -m benchmarks.http_bare REPLIES PROCESSES` prints its port. `REPLIES` is a file with the headers and the body of
each target. It never replies to `/wait`. The caller must kill its whole process group.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop


class RecordedReply(msgspec.Struct, frozen=True):
    """The headers and the body that the application sends for a target."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


class BareApp:
    """An ASGI application that sends recorded replies."""

    def __init__(self, replies: dict[str, RecordedReply]) -> None:
        self._replies = {target.encode(): reply for target, reply in replies.items()}
        self._never = asyncio.Event()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        target = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        if target == b"/wait":
            await self._never.wait()
        reply = self._replies[target]
        await send({"type": "http.response.start", "status": 200, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})


def main(replies: Path, processes: int) -> None:
    """Serve the recorded replies with this number of processes on one port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4_096)
    print(listener.getsockname()[1], flush=True)
    for _ in range(processes - 1):
        if not os.fork():
            break
    app = BareApp(msgspec.msgpack.decode(replies.read_bytes(), type=dict[str, RecordedReply]))
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
    uvloop.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
