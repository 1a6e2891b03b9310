"""Real Redis servers for tests, on free ports and with data in a folder of the test."""

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.ports import free_ports
from tests.waiting import wait_until


class RedisServer:
    """One process: a Redis server, or a Sentinel with `is_sentinel`."""

    def __init__(self, folder: Path, port: int, *options: str, is_sentinel: bool = False, text: str = "") -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._folder = folder / str(port)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._is_sentinel = is_sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self._file = self._folder / "redis.conf"
        self._file.write_text(f"port {port}\nbind 127.0.0.1\ndir {self._folder}\nprotected-mode no\n{text}")

    def start(self) -> None:
        assert self._process is None, f"{self.address} is running already"
        # Without saved data a killed server restarts empty, which is the worst case for counters.
        options = ["--sentinel"] if self._is_sentinel else ["--save", "", "--appendonly", "no", *self._options]
        with (self._folder / "log").open("ab") as log:
            command = ["redis-server", str(self._file), *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: self.ask("PING").startswith("+PONG"), what=f"Redis at {self.address}")

    def ask(self, *words: str) -> str:
        """Send one command and return the whole reply; empty without a reply."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as channel:
            message = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            channel.sendall(message.encode())
            with channel.makefile("rb") as stream:
                return _read_reply(stream).decode(errors="replace")
        return ""

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _read_reply(stream: IO[bytes]) -> bytes:
    """Read one whole reply: a line, and after it the text or the list that the line announces."""
    line = stream.readline()
    kind, size = line[:1], int(line[1:]) if line[:1] in (b"$", b"*") else 0
    if kind == b"$" and size >= 0:
        return line + stream.read(size + len(b"\r\n"))
    return line + b"".join(_read_reply(stream) for _ in range(size))


@contextlib.contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, free_ports(1)[0], *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
