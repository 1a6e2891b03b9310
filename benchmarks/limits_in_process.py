"""Middleware and gateway in one process without sockets: the processor time of a request, which other programs disturb least.

The middleware runs in the protocol of uvicorn, beside the same application with constant headers. The gateway forwards to connections
that reply at once, beside itself without limits. Each is measured with the compiled counters and without, all in turn.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from benchmarks import limits_serving
from benchmarks.figures import Figure, Figures
from benchmarks.http_bare import BareApp, RecordedReply
from benchmarks.limits_serving import BODY, REPLY, REQUEST_HEADERS, TARGET
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config.settings_file import read_upstream
from wharf.limits.core.counting.compiled import USUAL_CALLS
from wharf.limits.gateway import Gateway
from wharf.limits.gateway.caller.connection import CallerConnection
from wharf.limits.gateway.upstream import UpstreamConnection
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.world import RealWorld

CONNECTION_COUNT: Final = 32
REQUESTS_PER_ROUND: Final = 3_200
ROUND_COUNT: Final = 60
REQUEST: Final = (
    f"GET {TARGET} HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n" + "".join(f"{line}\r\n" for line in REQUEST_HEADERS) + "\r\n"
).encode()
SERVICE_REPLY: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 28 Nov 2026 20:34:48 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
Round = Callable[[], Awaitable[None]]


def measure() -> Figures:
    assert USUAL_CALLS is not None, "the compiled counters were not built: pip install --editable ."
    with tempfile.TemporaryDirectory() as name:
        return uvloop.run(measure_in(Path(name)))


async def measure_in(folder: Path) -> Figures:
    limits_serving.write_settings(folder)
    limiters = {
        name: await _open_limiter(folder, name) for name in ("compiled", "python", "gateway", "gateway-python", "off")
    }
    compiled, head = await _make_middleware_round(limiters["compiled"])
    python, _ = await _make_middleware_round(limiters["python"])
    constant = _make_app_round(BareApp({TARGET: RecordedReply(_read_constant_headers(head), BODY)}))[0]
    rounds: dict[str, Round] = {
        "middleware": compiled,
        "middleware-python": python,
        "constant": constant,
        "gateway": _make_gateway_round(limiters["gateway"], is_bare=False),
        "gateway-python": _make_gateway_round(limiters["gateway-python"], is_bare=False),
        "off": _make_gateway_round(limiters["off"], is_bare=True),
    }
    gc.freeze()
    gc.set_threshold(1_000, 50, 50)
    times_us: dict[str, list[float]] = {name: [] for name in rounds}
    for number in range(ROUND_COUNT + 1):
        for name, run_round in rounds.items():
            began_s = time.process_time()
            await run_round()
            if number:  # The first round only warms up.
                times_us[name].append((time.process_time() - began_s) / REQUESTS_PER_ROUND * 1e6)
    best_us = {name: _find_low(times) for name, times in times_us.items()}
    for limiter in limiters.values():
        await limiter.decision_service.close()
    return _build_figures(best_us)


def _build_figures(best_us: dict[str, float]) -> Figures:
    figures: Figures = {}
    for title, name, baseline in (
        ("middleware beside constant headers", "middleware", "constant"),
        ("middleware without compiled counters, beside constant headers", "middleware-python", "constant"),
        ("gateway beside itself without limits", "gateway", "off"),
        ("gateway without compiled counters, beside itself without limits", "gateway-python", "off"),
    ):
        figures[title] = Figure(
            value=best_us[baseline] / best_us[name],
            unit="of the baseline",
            note=f"{best_us[name]:.1f} us a request, baseline {best_us[baseline]:.1f} us, "
            f"{best_us[name] - best_us[baseline]:.1f} us more",
        )
    return figures


def _find_low(times: Sequence[float]) -> float:
    """Return the tenth lowest of a hundred: other programs only add to a time."""
    return statistics.quantiles(times, n=10)[0]


async def _open_limiter(folder: Path, name: str) -> RateLimiter:
    settings = msgspec.structs.replace(load_settings(folder / "limits.toml"), data_folder=folder / name)
    limiter = RateLimiter(settings, RealWorld())
    await limiter.open()
    counters = limiter.decision_service.evaluator.local_counters
    assert counters is not None
    if name.endswith("python"):
        counters.usual_calls = None
    return limiter


class _Transport:
    """A transport without a socket, which stores the last head that was written."""

    def __init__(self) -> None:
        self.head = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/"):
            self.head = data

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        return

    abort = pause_reading = resume_reading = close


def _make_app_round(app: Any) -> tuple[Round, _Transport]:
    """Return a function that sends the requests of a round to an ASGI application in uvicorn, and one of its transports."""
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
    config.load()
    protocols = [HttpToolsProtocol(config, ServerState(), {}) for _ in range(CONNECTION_COUNT)]
    transports = [_Transport() for _ in protocols]
    for protocol, transport in zip(protocols, transports, strict=True):
        protocol.connection_made(transport)  # type: ignore[arg-type] # It has what uvicorn uses.

    async def run_round() -> None:
        for _ in range(REQUESTS_PER_ROUND // CONNECTION_COUNT):
            for protocol in protocols:
                protocol.data_received(REQUEST)
            for _ in range(2):  # The tasks of the requests begin in the first pass of the loop, and end in it.
                await asyncio.sleep(0)

    return run_round, transports[0]


async def _make_middleware_round(limiter: RateLimiter) -> tuple[Round, bytes]:
    """Return the round of the middleware, and the head of one of its replies."""
    run_round, transport = _make_app_round(LimitsMiddleware(BareApp({TARGET: REPLY}), limiter.decision_service))
    await run_round()
    assert transport.head.startswith(b"HTTP/1.1 200"), transport.head
    return run_round, transport.head


def _read_constant_headers(head: bytes) -> list[tuple[bytes, bytes]]:
    pairs = [line.partition(b": ")[::2] for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
    return [(name, value) for name, value in pairs if name not in (b"server", b"date", b"connection")]


def _make_gateway_round(limiter: RateLimiter, *, is_bare: bool) -> Round:
    gateway = Gateway(limiter, read_upstream("http://127.0.0.1:1"), RealWorld(), is_bare=is_bare)
    environment = gateway.environment
    services = [UpstreamConnection(environment.pool) for _ in range(CONNECTION_COUNT)]
    callers = [CallerConnection(environment, lambda _: None, lambda _: None) for _ in range(CONNECTION_COUNT)]
    for connection in (*services, *callers):
        connection.connection_made(_Transport())  # type: ignore[arg-type] # It has what the gateway uses.
    for service in services:
        environment.pool.return_connection(service)

    async def run_round() -> None:
        for _ in range(REQUESTS_PER_ROUND // CONNECTION_COUNT):
            for caller in callers:
                caller.data_received(REQUEST)
            for service in services:
                service.data_received(SERVICE_REPLY)

    return run_round
