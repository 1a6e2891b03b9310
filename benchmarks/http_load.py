"""Load on an HTTP port: `wrk` for throughput, processes of waiters for blocked queries, and one caller for latencies."""

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

CONNECTION_TRUST_S = 2.0
"""How long a silent connection is trusted to be open."""

_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_WRONG = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)")


def run_wrk(
    url: str, *, callers: int, seconds: float, headers: tuple[str, ...] = (), script: Path | None = None
) -> float:  # fmt: skip
    """Requests a second. Anything but good answers is a failure of the benchmark."""
    assert shutil.which("wrk"), "install wrk (Debian: apt-get install wrk)"
    options = ["-t1", f"-c{callers}", f"-d{seconds:g}s", "--timeout", "30s"]
    options += [part for header in headers for part in ("-H", header)]
    if script is not None:
        options += ["-s", str(script)]
    told = subprocess.run(["wrk", *options, url], check=True, capture_output=True, text=True).stdout
    wrong, rate = _WRONG.search(told), _RATE.search(told)
    assert wrong is None, told
    assert rate is not None, told
    return float(rate[1])


class HttpCaller:
    """One connection that is kept, for latencies."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._asked_at_s = time.monotonic()

    def send_request(self, method: str, target: str, body: object = None, **headers: str) -> RecordedReply:
        if time.monotonic() - self._asked_at_s > CONNECTION_TRUST_S:
            self._connection.close()  # The server may close it at any moment; the next request opens another.
        self._asked_at_s = time.monotonic()
        data = None if body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, target, data, named)
        reply = self._connection.getresponse()
        read = reply.read()
        assert reply.status == 200, f"{method} {target}: {reply.status} {read[:300]!r}"
        told = [(name.lower().encode(), value.encode()) for name, value in reply.getheaders() if name.lower() != "date"]
        return RecordedReply(told, read)

    def read_index(self, target: str) -> int:
        return int(dict(self.send_request("GET", target).headers)[b"x-cluster-index"])


class WaiterProcess:
    """Callers of `http_waiters`, all of whom have asked."""

    def __init__(self, port: int, count: int, target: str) -> None:
        command = [sys.executable, "-m", "benchmarks.http_waiters", str(port), str(count), target]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._out = self._process.stdout
        assert self._out.readline() == "asked\n", "the waiters could not ask"

    def read_answer_times(self) -> list[float]:
        """When each was answered, on the monotonic clock. Waits for the last."""
        answered: list[float] = json.loads(self._out.readline())
        return answered

    def __enter__(self) -> "WaiterProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


class BareProcess:
    """The bare application with these replies, on a port of its own."""

    def __init__(self, folder: Path, replies: dict[str, RecordedReply], *, processes: int = 1) -> None:
        path = folder / "replies"
        path.write_bytes(msgspec.msgpack.encode(replies))
        command = [sys.executable, "-m", "benchmarks.http_bare", str(path), str(processes)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        deadline = time.monotonic() + 10
        while True:
            try:
                HttpCaller(self.port).send_request("GET", next(iter(replies)))
                return
            except ConnectionError:
                assert time.monotonic() < deadline, "the bare application does not answer"
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
