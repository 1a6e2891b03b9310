"""Runs a gateway as a process: opens it, prints its address, and stops it on a signal after running requests finish."""

import asyncio
import errno
import gc
import logging
import signal
from collections.abc import Callable
from typing import Final

from wharf.limits.admin.server import AdminServer
from wharf.limits.config.settings import LimiterSettings, Upstream
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.toml.problems import InvalidFile
from wharf.world import World
from wharf.world.addresses import format_host_and_port
from wharf.world.descriptors import require_open_files

log = logging.getLogger(__name__)

OTHER_OPEN_FILES: Final = 512
"""Open files of a gateway besides its connections: listening sockets, logs, the store, operators and refused connections."""


class GatewayStartError(Exception):
    """The gateway cannot start, such as because its port is in use. The text is the message for the operator."""


async def run_gateway(
    settings: LimiterSettings,
    upstream: Upstream,
    world: World,
    *,
    print_line: Callable[[str], object],
    stop_event: asyncio.Event | None = None,
    is_bare: bool = False,
) -> None:
    """Run a gateway until SIGTERM, SIGINT or `stop_event`, then stop it after running requests. SIGHUP reloads
    rules and directory.

    Raises `GatewayStartError` or `LimiterStartError`.
    """
    stop_event = stop_event or asyncio.Event()
    _require_connections(settings)
    limits = RateLimiter(settings, world)
    gateway = Gateway(limits, upstream, world, is_bare=is_bare)
    await limits.open()
    admin = AdminServer(limits, world, gateway)
    try:
        try:
            await gateway.open()
        except OSError as error:
            raise GatewayStartError(explain_listen_error(error, settings.gateway.host, settings.gateway.port)) from None
        except InvalidFile as error:
            raise GatewayStartError(f"cannot start the gateway: {error}") from None
        try:
            await admin.open()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise GatewayStartError(f"cannot listen for admin commands at {settings.socket_path}: {reason}") from None
        install_signal_handlers(stop_event, limits)
        # Objects that exist now live until the end, and requests create few reference cycles: collect garbage rarely, but
        # in short steps. To examine 20,000 young objects takes up to 20 ms.
        gc.freeze()
        gc.set_threshold(1_000, 50, 50)
        scheme = "https" if settings.gateway.certificate_file is not None else "http"
        address = format_host_and_port(settings.gateway.host, gateway.port)
        print_line(f"Gateway listens at {scheme}://{address} and forwards to {upstream}")
        print_line(f"Admin commands connect through {settings.socket_path}")
        await stop_event.wait()
    finally:
        await gateway.close()
        await admin.close()
        await limits.close()


def _require_connections(settings: LimiterSettings) -> None:
    """Raise the limit of open files so that all connections fit. If that is not allowed, log what to do."""
    gateway = settings.gateway
    needed = gateway.connections_most + gateway.upstream_connections_most + OTHER_OPEN_FILES
    limit = require_open_files(needed)
    if limit < needed:
        log.warning(
            "limit of open files too low for connections_most limit=%d needed=%d connections_most=%d",
            limit,
            needed,
            gateway.connections_most,
        )


def explain_listen_error(error: OSError, host: str, port: int) -> str:
    """Return the message for an operator whose gateway cannot listen on this address."""
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use: stop what listens there, or choose another with --port"
        case errno.EACCES:
            return f"not allowed to listen on port {port}: choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no address {host}: choose one that it has with --host"
        case _:
            return f"cannot listen on {host} port {port}: {error.strerror or error}"


def install_signal_handlers(stop_event: asyncio.Event, limits: RateLimiter) -> None:
    """Set `stop_event` on SIGTERM and SIGINT, and reload rules and directory on SIGHUP."""
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop_event.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: limits.decision_service.start_task(limits.watcher.reload_all()))
