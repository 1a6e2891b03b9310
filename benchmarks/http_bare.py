"""A bare ASGI application on uvicorn that sends the bytes that it is told: what the HTTP API is measured beside.

python -m benchmarks.http_bare REPLIES PROCESSES: `REPLIES` is a file with headers and body by target. It prints its port.
Whoever starts it ends its whole process group. `/wait` is never answered.
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
    headers: list[tuple[bytes, bytes]]
    body: bytes


class BareApp:
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
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    listening.listen(4_096)
    print(listening.getsockname()[1], flush=True)
    for _ in range(processes - 1):
        if not os.fork():
            break
    app = BareApp(msgspec.msgpack.decode(replies.read_bytes(), type=dict[str, RecordedReply]))
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
    uvloop.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
