"""Limits in front of a service: the middleware beside the same header bytes as constants, the gateway beside the bare app.

python -m benchmarks.limits_serving ROLE FOLDER UPSTREAM runs one of its processes. ROLE is `middleware`, `gateway` or `off`.
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
import uvloop

from benchmarks.figures import Figure, Figures
from benchmarks.http_bare import BareApp, RecordedReply
from benchmarks.http_load import HttpCaller, run_bare, run_wrk
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config.settings_file import read_upstream
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.world import RealWorld

CALLER_COUNT: Final = 32
ROUND_S: Final = 3.0
ROUND_COUNT: Final = 5
TOKEN: Final = "ghp_benchmarkbenchmarkbenchmark"
TARGET: Final = "/repos/acme/site/issues/7"
BODY: Final = b'{"number":7,"title":"A title of usual length","state":"open","body":"' + b"x" * 600 + b'"}'
REPLY: Final = RecordedReply([(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))], BODY)

# All limits of the profile, raised so that the load does not exceed them.
RULES: Final = """
[[rule]]
name = "core"
ceiling = 1000000000
[[rule]]
name = "points"
ceiling = 1000000000
[[rule]]
name = "cpu"
ceiling = 1000000000
[[rule]]
name = "compute"
ceiling = 1000000000
"""
REQUEST_HEADERS: Final = (f"Authorization: Bearer {TOKEN}", "Accept: application/json", "User-Agent: benchmark")


def measure() -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_settings(folder)
        with (
            run_bare(folder, {TARGET: REPLY}) as plain,
            _process("middleware", folder, "http://127.0.0.1:1") as middleware,
        ):
            limit_headers = _headers_of(middleware.port)
            with run_bare(folder, {TARGET: RecordedReply(limit_headers, BODY)}) as constant:
                pairs = _rounds(middleware, _Running(constant.port, constant.process.pid))
            with (
                _process("gateway", folder, plain.url) as gateway,
                _process("off", folder, plain.url) as off,
            ):
                through = _rounds(gateway, _Running(plain.port, plain.process.pid), off)
    with_limits, constant_headers = (_rate(of) for of in pairs)
    more_us = _cpu_us(pairs[0]) - _cpu_us(pairs[1])
    limited, alone, without = (_rate(of) for of in through)
    return {
        "middleware": Figure(
            value=with_limits,
            unit="requests/s",
            baseline=constant_headers,
            at_least=0.7,
            note="baseline: the same headers as constants",
        ),
        "middleware, by processor time": Figure(
            value=_cpu_us(pairs[1]) / _cpu_us(pairs[0]),
            unit="of the same app",
            at_least=0.7,
            note="what throughput comes to when nothing else runs",
        ),
        "middleware, CPU more": Figure(value=more_us, unit="us a request", at_most=50),
        "gateway": Figure(value=limited, unit="requests/s", baseline=alone, at_least=0.4, note="one process"),
        "gateway, limits beside none": Figure(
            value=limited,
            unit="requests/s",
            baseline=without,
            at_least=0.8,
            note="baseline: itself with limits off",
        ),
        "gateway, limits beside none, by processor time": Figure(
            value=_cpu_us(through[2]) / _cpu_us(through[0]), unit="of itself", at_least=0.8
        ),
        "gateway, by processor time": Figure(
            value=_cpu_us(through[1]) / _cpu_us(through[0]), unit="of the bare app", at_least=0.4
        ),
        "gateway, CPU": Figure(value=_cpu_us(through[0]), unit="us a request"),
    }


class _Running:
    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Rounds = list[tuple[float, float]]
"""Requests per second, and processor time per request in microseconds."""


def _rounds(*services: _Running) -> list[Rounds]:
    """Measure all servers in turn, several times, so that other load affects all of them."""
    found: list[Rounds] = [[] for _ in services]
    for number in range(ROUND_COUNT + 1):
        for service, rounds in zip(services, found, strict=True):
            before_s = service.cpu_s()
            rate = run_wrk(
                f"http://127.0.0.1:{service.port}{TARGET}",
                callers=CALLER_COUNT,
                seconds=ROUND_S,
                headers=REQUEST_HEADERS,
            )
            spent_s = service.cpu_s() - before_s
            if number:  # The first round only warms up.
                rounds.append((rate, spent_s / (rate * ROUND_S) * 1e6))
    return found


def _rate(rounds: Rounds) -> float:
    return statistics.median(rate for rate, _ in rounds)


def _cpu_us(rounds: Rounds) -> float:
    return statistics.median(spent for _, spent in rounds)


def _headers_of(port: int) -> list[tuple[bytes, bytes]]:
    headers = HttpCaller(port).send_request("GET", TARGET, authorization=f"Bearer {TOKEN}").headers
    return [(name, value) for name, value in headers if name not in (b"server", b"connection")]


def write_settings(folder: Path) -> None:
    (folder / "rules.toml").write_text(RULES)
    (folder / "people.toml").write_text(
        f'[[user]]\nlogin = "ada"\nid = 5\ntokens = [{{ sha256 = "{hash_secret(TOKEN)}" }}]\n'
    )
    (folder / "limits.toml").write_text('rules = "rules.toml"\ndirectory = "people.toml"\n[store]\nsaved = false\n')


@contextmanager
def _process(role: str, folder: Path, upstream: str) -> Iterator[_Running]:
    command = [sys.executable, "-m", "benchmarks.limits_serving", role, str(folder), upstream]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"{role} does not reply"
                time.sleep(0.05)
        yield _Running(port, process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def _serve(role: str, folder: Path, upstream: str) -> None:
    world = RealWorld()
    settings = load_settings(folder / "limits.toml")
    # Each process has its own counters and logs.
    own = msgspec.structs.replace(
        settings, data_folder=folder / role, gateway=msgspec.structs.replace(settings.gateway, port=0)
    )
    limits = RateLimiter(own, world)
    await limits.open()
    if role == "middleware":
        app: Any = LimitsMiddleware(BareApp({TARGET: REPLY}), limits.decision_service)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(4_096)
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
        await uvicorn.Server(config).serve(sockets=[listening])
        return
    gateway = Gateway(limits, read_upstream(upstream), world, is_bare=role == "off")
    await gateway.open()
    print(gateway.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
