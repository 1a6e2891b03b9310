"""Load for an HTTP port: `wrk` for throughput, `http_waiters` for blocking queries, and one client for latencies."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from benchmarks.http_bare import RecordedReply

MAX_IDLE_S = 2.0
"""A connection that was idle for longer is replaced, because the server may close it."""

_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_ERRORS = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)")


def run_wrk(
    url: str, *, callers: int, seconds: float, headers: tuple[str, ...] = (), script: Path | None = None
) -> float:  # fmt: skip
    """Return the requests per second. An error or a status other than 2xx fails the benchmark."""
    assert shutil.which("wrk"), "install wrk (Debian: apt-get install wrk)"
    options = ["-t1", f"-c{callers}", f"-d{seconds:g}s", "--timeout", "30s"]
    options += [part for header in headers for part in ("-H", header)]
    if script is not None:
        options += ["-s", str(script)]
    output = subprocess.run(["wrk", *options, url], check=True, capture_output=True, text=True).stdout
    errors, rate = _ERRORS.search(output), _RATE.search(output)
    assert errors is None, output
    assert rate is not None, output
    return float(rate[1])


class HttpCaller:
    """A client with one persistent connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._last_request_s = time.monotonic()

    def send_request(self, method: str, target: str, body: object = None, **headers: str) -> RecordedReply:
        """Send a request and return its reply, which must have status 200. `_` in names of headers means `-`."""
        if time.monotonic() - self._last_request_s > MAX_IDLE_S:
            self._connection.close()  # The next request opens a new one.
        self._last_request_s = time.monotonic()
        data = None if body is None else json.dumps(body)
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, target, data, sent_headers)
        reply = self._connection.getresponse()
        content = reply.read()
        assert reply.status == 200, f"{method} {target}: {reply.status} {content[:300]!r}"
        reply_headers = [
            (name.lower().encode(), value.encode()) for name, value in reply.getheaders() if name.lower() != "date"
        ]
        return RecordedReply(reply_headers, content)

    def read_index(self, target: str) -> int:
        return int(dict(self.send_request("GET", target).headers)[b"x-cluster-index"])


class WaiterProcess:
    """A process of `http_waiters`. Its constructor returns when all requests are sent."""

    def __init__(self, port: int, count: int, target: str) -> None:
        command = [sys.executable, "-m", "benchmarks.http_waiters", str(port), str(count), target]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._out = self._process.stdout
        assert self._out.readline() == "sent\n", "the waiters could not send their requests"

    def read_reply_times(self) -> list[float]:
        """Wait for all replies. Return the time of each on the monotonic clock, in seconds."""
        reply_times_s: list[float] = json.loads(self._out.readline())
        return reply_times_s

    def __enter__(self) -> "WaiterProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


class BareProcess:
    """A process of the bare application, on a free port."""

    def __init__(self, folder: Path, replies: dict[str, RecordedReply], *, processes: int = 1) -> None:
        path = folder / "replies"
        path.write_bytes(msgspec.msgpack.encode(replies))
        command = [sys.executable, "-m", "benchmarks.http_bare", str(path), str(processes)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        deadline = time.monotonic() + 10
        while True:
            try:
                HttpCaller(self.port).send_request("GET", next(iter(replies)))
                return
            except ConnectionError:
                assert time.monotonic() < deadline, "the bare application does not reply"
                time.sleep(0.05)

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def run_bare(folder: Path, replies: dict[str, RecordedReply], *, processes: int = 1) -> Iterator[BareProcess]:
    app = BareProcess(folder, replies, processes=processes)
    try:
        yield app
    finally:
        app.stop()
