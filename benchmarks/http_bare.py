"""A bare ASGI application on uvicorn that sends the bytes that it is told: what the HTTP API is measured beside.

python -m benchmarks.http_bare REPLIES PROCESSES: `REPLIES` is a file with headers and body by target. It prints its port.
`/wait` is never answered.
"""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop


class Recorded(msgspec.Struct, frozen=True):
    headers: list[tuple[bytes, bytes]]
    body: bytes


class BareApp:
    def __init__(self, replies: dict[str, Recorded]) -> None:
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


def _fork(count: int) -> list[int]:
    """The process ids of the children, in the parent; none in a child."""
    children: list[int] = []
    for _ in range(count):
        child = os.fork()
        if not child:
            return []
        children.append(child)
    return children


def main(replies: Path, processes: int) -> None:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    listening.listen(4_096)
    print(listening.getsockname()[1], flush=True)
    children = _fork(processes - 1)
    app = BareApp(msgspec.msgpack.decode(replies.read_bytes(), type=dict[str, Recorded]))
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
    try:
        uvloop.run(uvicorn.Server(config).serve(sockets=[listening]))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
