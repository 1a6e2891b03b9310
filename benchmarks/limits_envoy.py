"""Envoy's rate limit protocol: decisions over gRPC from another process, one and ten descriptors a request.

A decision is one descriptor with a limit. python -m benchmarks.limits_envoy FOLDER runs the server.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.figures import Figure, Figures
from wharf.limits.config.settings import LimiterSettings, ServeSettings, StoreSettings
from wharf.limits.decisions.descriptors import DescriptorDecisions
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.serving.envoy import RateLimitService
from wharf.limits.serving.grpc_server import RateLimitServer
from wharf.limits.serving.messages import SERVICE, RateLimitRequest
from wharf.world import RealWorld
from wharf.world.quiet_grpc import grpc

PARALLEL_CALLS: Final = 64
CALL_COUNT: Final = 3_000
ROUND_COUNT: Final = 3
USER_COUNT: Final = 2_000
BATCH_SIZE: Final = 10
RULES: Final = """
[[domain]]
name = "shop"
[[domain.descriptors]]
key = "path"
descriptors = [{ key = "user", ceiling = 1000000000, window = "1h" }]
"""


def measure() -> Figures:
    messages = {size: _build_messages(size) for size in (1, BATCH_SIZE)}
    with tempfile.TemporaryDirectory() as folder, _run_server(Path(folder)) as (port, pid):
        found = uvloop.run(_measure_at(port, pid, messages))
    figures: Figures = {}
    for size, rounds in found.items():
        name = "one descriptor a request" if size == 1 else f"{size} descriptors a request"
        figures[f"decisions, {name}"] = Figure(
            value=statistics.median(rate for rate, _ in rounds),
            unit="/s",
            at_least=20_000 if size == BATCH_SIZE else None,
            note="one process, which shares the machine with its caller",
        )
        figures[f"CPU of a decision, {name}"] = Figure(
            value=statistics.median(spent for _, spent in rounds), unit="us", at_most=50 if size == BATCH_SIZE else None
        )
    return figures


def _build_messages(size: int) -> Sequence[bytes]:
    """Return requests with this number of descriptors, of many users."""
    return [
        RateLimitRequest(
            domain="shop",
            descriptors=[
                {"entries": [{"key": "path", "value": f"/{index}"}, {"key": "user", "value": f"user{user}"}]}
                for index in range(size)
            ],
        ).SerializeToString()
        for user in range(USER_COUNT)
    ]


async def _measure_at(
    port: int, pid: int, messages_by_size: dict[int, Sequence[bytes]]
) -> dict[int, list[tuple[float, float]]]:
    """Return decisions per second and CPU time of a decision in microseconds, for each round and size of requests."""
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in messages_by_size}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")
        for number in range(ROUND_COUNT + 1):
            for size, messages in messages_by_size.items():
                before_s, began_s = _read_cpu_s(pid), time.perf_counter()
                await _send_all(call, messages)
                spent_s, took_s = _read_cpu_s(pid) - before_s, time.perf_counter() - began_s
                if number:  # The first round only warms up.
                    decisions = CALL_COUNT * size
                    found[size].append((decisions / took_s, spent_s / decisions * 1e6))
    return found


async def _send_all(call: Any, messages: Sequence[bytes]) -> None:
    """Send `CALL_COUNT` requests, with `PARALLEL_CALLS` at a time."""

    async def send(first: int) -> None:
        for number in range(first, CALL_COUNT, PARALLEL_CALLS):
            await call(messages[number % len(messages)])

    await asyncio.gather(*(send(first) for first in range(PARALLEL_CALLS)))


def _read_cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _run_server(folder: Path) -> Iterator[tuple[int, int]]:
    """Run the server in another process, and yield its port and process id."""
    (folder / "rules.toml").write_text(RULES)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.limits_envoy", str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


async def _serve(folder: Path) -> None:
    settings = LimiterSettings(
        rules_file=folder / "rules.toml", data_folder=folder / "data", store=StoreSettings(is_saved=False)
    )
    limits = RateLimiter(settings, RealWorld())
    await limits.open()
    service = RateLimitService(DescriptorDecisions(limits.decision_service))
    server = RateLimitServer(service, ServeSettings(grpc_host="127.0.0.1"))
    await server.open()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
