"""A gateway as a process: opened, told where it is, ended by signals without cutting anyone off."""

import asyncio
import errno
import gc
import signal
from collections.abc import Callable

from wharf.limits.admin.server import AdminServer
from wharf.limits.config.settings import LimiterSettings, Upstream
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World


class GatewayStartError(Exception):
    """A gateway that cannot listen. Its text says why, and what to do."""


async def run_gateway(
    settings: LimiterSettings,
    upstream: Upstream,
    world: World,
    *,
    print_line: Callable[[str], object],
    stop_event: asyncio.Event | None = None,
    is_bare: bool = False,
) -> None:
    """Serve until a signal says to end (or the event). SIGHUP reads rules and directory again."""
    ended = stop_event or asyncio.Event()
    limits = RateLimiter(settings, world)
    await limits.open()
    gateway = Gateway(limits, upstream, world, is_bare=is_bare)
    admin = AdminServer(limits, world, gateway)
    try:
        try:
            await gateway.open()
        except OSError as problem:
            raise GatewayStartError(
                explain_listen_error(problem, settings.gateway.host, settings.gateway.port)
            ) from None
        except ValueError as problem:
            raise GatewayStartError(f"the gateway cannot listen: {problem}") from None
        try:
            await admin.open()
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise GatewayStartError(
                f"the gateway cannot listen for operators at {settings.socket_path}: {why}"
            ) from None
        _on_signals(ended, limits)
        # What is here now stays. Of what requests make hardly anything is in circles: to look for these seldom is enough.
        gc.freeze()
        gc.set_threshold(20_000, 50, 50)
        scheme = "https" if settings.gateway.certificate_file is not None else "http"
        host = f"[{settings.gateway.host}]" if ":" in settings.gateway.host else settings.gateway.host
        print_line(f"Limits stand at {scheme}://{host}:{gateway.port} in front of {upstream}")
        print_line(f"Operators' commands find it at {settings.socket_path}")
        await ended.wait()
    finally:
        await gateway.close()
        await admin.close()
        await limits.close()


def explain_listen_error(problem: OSError, host: str, port: int) -> str:
    match problem.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use: stop what listens there, or choose another with --port"
        case errno.EACCES:
            return f"not allowed to listen on port {port}: choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no address {host}: choose one that it has with --host"
        case _:
            return f"the gateway cannot listen on {host}:{port}: {problem.strerror or problem}"


def _on_signals(ended: asyncio.Event, limits: RateLimiter) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: limits.decision_service.start_task(limits.watcher.reload_all()))
