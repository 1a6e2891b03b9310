"""Open connections of many addresses at the gateway: memory for each, refusals, and how long the event loop is held.

Real connections come from 1,000 addresses of the loopback network, as many as the limit of open files of this process permits. For
100,000 connections, the gateway's part is measured without sockets.

python -m benchmarks.limits_connections gateway FOLDER UPSTREAM runs the gateway. python -m benchmarks.limits_connections held COUNT
measures connections without sockets, and prints its figures as JSON.
"""

import asyncio
import contextlib
import gc
import json
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from benchmarks import limits_serving
from benchmarks.figures import Figure, Figures
from benchmarks.http_load import run_bare
from benchmarks.limits_core import measure_resident_mb
from benchmarks.limits_serving import REPLY, TARGET, TOKEN
from wharf.limits.config.settings_file import read_upstream
from wharf.limits.gateway import Gateway
from wharf.limits.gateway.caller.connection import CallerConnection
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.world import RealWorld

ADDRESS_COUNT: Final = 1_000
MANY_CONNECTIONS: Final = 100_000
SPARE_FILES: Final = 1_000
"""Open files that the gateway and this process need besides the connections of callers."""
EXCESS_CONNECTIONS: Final = 20
"""Connections that each greedy address opens beyond its share."""
GREEDY_ADDRESSES: Final = 50
SAMPLE: Final = 200
"""Connections on which another request is sent while all others are open."""
MAX_BYTES: Final = 8_000
"""The target for the memory of the gateway for each open connection, besides the buffers of the kernel."""
REQUEST: Final = f"GET {TARGET} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


def measure() -> Figures:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    share = min(MANY_CONNECTIONS, files - SPARE_FILES) // ADDRESS_COUNT
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_settings(folder, share)
        with run_bare(folder, {TARGET: REPLY}) as service, _running_gateway(folder, service.url) as (port, pid):
            figures = _measure_real(port, pid, share)
    held = [sys.executable, "-m", "benchmarks.limits_connections", "held", str(MANY_CONNECTIONS)]
    numbers = json.loads(subprocess.run(held, check=True, capture_output=True, text=True).stdout)
    name = f"{MANY_CONNECTIONS:,} connections of {ADDRESS_COUNT:,} addresses, without sockets"
    return figures | {
        f"{name}, memory of each": Figure(value=numbers["bytes"], unit="bytes", at_most=MAX_BYTES),
        f"{name}, refused beyond the share of an address": Figure(
            value=numbers["refused"], unit="connections", at_least=EXCESS_CONNECTIONS, at_most=EXCESS_CONNECTIONS
        ),
        f"{name}, longest step of the event loop": Figure(value=numbers["step_ms"], unit="ms", at_most=20),
    }


# -- real connections --------------------------------------------------------------------------------------------------


def _measure_real(port: int, pid: int, share: int) -> Figures:
    _ask(port, _make_address(0))
    before_bytes = _read_resident_bytes(pid)
    connections: list[socket.socket] = []
    try:
        for number in range(ADDRESS_COUNT * share):
            connections.append(_open(port, _make_address(number % ADDRESS_COUNT)))
            assert _exchange(connections[-1]) == 200
        used_bytes = _read_resident_bytes(pid) - before_bytes
        times_ms = []
        refused = 0
        for number in range(GREEDY_ADDRESSES):
            for _ in range(EXCESS_CONNECTIONS):
                refused += _ask(port, _make_address(number)) == 429
        served = 0
        for connection in connections[:: max(1, len(connections) // SAMPLE)]:
            began_s = time.perf_counter()
            served += _exchange(connection) == 200
            times_ms.append((time.perf_counter() - began_s) * 1_000)
        other = _ask(port, _make_address(ADDRESS_COUNT))
        final_bytes = _read_resident_bytes(pid) - before_bytes
    finally:
        for connection in connections:
            connection.close()
    times_ms.sort()
    count = len(connections)
    name = f"{count:,} open connections of {ADDRESS_COUNT:,} addresses"
    attempts = GREEDY_ADDRESSES * EXCESS_CONNECTIONS
    return {
        f"{name}, memory of each": Figure(
            value=used_bytes / count,
            unit="bytes",
            at_most=MAX_BYTES,
            note=f"{final_bytes / count:,.0f} after the refusals",
        ),
        f"{name}, refused of those beyond the share": Figure(
            value=refused, unit="connections", baseline=attempts, at_least=1, at_most=1
        ),
        f"{name}, requests served on open ones meanwhile": Figure(
            value=served, unit="requests", baseline=len(times_ms), at_least=1, at_most=1
        ),
        f"{name}, another address is served": Figure(value=int(other == 200), unit="requests", at_least=1),
        f"{name}, 99th of a hundred requests": Figure(value=times_ms[len(times_ms) * 99 // 100], unit="ms", at_most=50),
    }


def _make_address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _open(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0))


def _exchange(connection: socket.socket) -> int:
    """Send a request on an open connection and return the status of the reply. The reply is read completely."""
    connection.sendall(REQUEST)
    data = b""
    while b"\r\n\r\n" not in data or (data[9:12] == b"200" and not data.endswith(b'"}')):
        part = connection.recv(65_536)
        if not part:
            break
        data += part
    return int(data[9:12] or 0)


def _ask(port: int, address: str) -> int:
    """Return the status of a request on a new connection; 0 if it was closed or reset without a reply."""
    with contextlib.suppress(ConnectionError, TimeoutError), _open(port, address) as connection:
        return _exchange(connection)
    return 0


def _read_resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1_024


def _write_settings(folder: Path, share: int) -> None:
    limits_serving.write_settings(folder)
    with (folder / "limits.toml").open("a") as file:
        file.write(
            f"[gateway]\nconnections_most = {MANY_CONNECTIONS + SPARE_FILES}\nconnections_per_address = {share}\n"
            'idle_timeout = "10m"\n'
        )


@contextlib.contextmanager
def _running_gateway(folder: Path, upstream: str) -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "benchmarks.limits_connections", "gateway", str(folder), upstream]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _make_gateway(folder: Path, upstream: str) -> tuple[RateLimiter, Gateway]:
    settings = load_settings(folder / "limits.toml")
    own = msgspec.structs.replace(
        settings, data_folder=folder / "gateway", gateway=msgspec.structs.replace(settings.gateway, port=0)
    )
    world = RealWorld()
    limits = RateLimiter(own, world)
    return limits, Gateway(limits, read_upstream(upstream), world)


async def serve(folder: Path, upstream: str) -> None:
    """Run the gateway until the process is killed."""
    limits, gateway = _make_gateway(folder, upstream)
    await limits.open()
    await gateway.open()
    gc.freeze()  # As in `wharf gateway`.
    gc.set_threshold(1_000, 50, 50)
    print(gateway.port, flush=True)
    await asyncio.Event().wait()


# -- connections without sockets ---------------------------------------------------------------------------------------


class _SilentTransport:
    """A transport without a socket."""

    __slots__ = ("_address", "is_aborted", "written")

    def __init__(self, address: str) -> None:
        self._address = address
        self.is_aborted = False
        self.written = b""

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written = data

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        return

    pause_reading = resume_reading = close

    def abort(self) -> None:
        self.is_aborted = True


async def hold(count: int) -> None:
    """Measure a gateway with so many connections without sockets, and print the figures as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_settings(folder, count // ADDRESS_COUNT)
        limits, gateway = _make_gateway(folder, "http://127.0.0.1:1")
        await limits.open()
        await gateway.open()
        gc.freeze()
        gc.set_threshold(1_000, 50, 50)
        transports = [_SilentTransport(_make_address(number % ADDRESS_COUNT)) for number in range(count)]
        before_mb = measure_resident_mb()
        for transport in transports:
            _connect(gateway, transport)
        used_bytes = (measure_resident_mb() - before_mb) * 1e6 / count
        greedy = [_SilentTransport(_make_address(0)) for _ in range(EXCESS_CONNECTIONS)]
        for transport in greedy:
            _connect(gateway, transport)
        refused = sum(transport.written.startswith(b"HTTP/1.1 429") for transport in greedy)
        step_ms = await _measure_longest_step_ms()
        print(json.dumps({"bytes": used_bytes, "refused": refused, "step_ms": step_ms}), flush=True)


def _connect(gateway: Gateway, transport: _SilentTransport) -> None:
    connection = CallerConnection(gateway.environment, gateway._on_opened, gateway._on_closed)  # The listener's way.
    connection.connection_made(transport)  # type: ignore[arg-type] # It has what the gateway uses.


async def _measure_longest_step_ms() -> float:
    """Return the longest processor time between two passes of the event loop during three seconds."""
    longest_s, until_s = 0.0, time.monotonic() + 3
    last_s = time.thread_time()
    while time.monotonic() < until_s:
        await asyncio.sleep(0)
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s * 1_000


if __name__ == "__main__":
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if sys.argv[1] == "held":
        asyncio.run(hold(int(sys.argv[2])))
    else:
        uvloop.run(serve(Path(sys.argv[2]), sys.argv[3]))
