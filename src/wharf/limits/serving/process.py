"""Runs the servers for proxies as a process: opens them, prints their addresses, and stops them on a signal."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterable

from wharf.limits.admin.metrics import Metric
from wharf.limits.admin.server import AdminServer
from wharf.limits.config.credential_settings import CredentialMode
from wharf.limits.config.settings import LimiterSettings
from wharf.limits.decisions.descriptors import DescriptorDecisions
from wharf.limits.gateway.process import install_signal_handlers
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.serving.check_server import CheckServer
from wharf.limits.serving.envoy import RateLimitService
from wharf.limits.serving.grpc_server import RateLimitServer
from wharf.limits.toml.problems import InvalidFile
from wharf.world import World
from wharf.world.addresses import format_host_and_port

log = logging.getLogger(__name__)


class ServeStartError(Exception):
    """The servers cannot start, such as because a port is in use. The text is the message for the operator."""


async def run_servers(
    settings: LimiterSettings,
    world: World,
    *,
    print_line: Callable[[str], object],
    stop_event: asyncio.Event | None = None,
) -> None:
    """Run the configured servers until SIGTERM, SIGINT or `stop_event`. SIGHUP reloads rules and directory.

    Raises `ServeStartError` or `LimiterStartError`.
    """
    serve = settings.serve
    if not serve.grpc_host and not serve.check_host:
        raise ServeStartError(
            'nothing to serve: set `grpc_listen` or `check_listen` in [serve], such as grpc_listen = "127.0.0.1:8081"'
        )
    stop_event = stop_event or asyncio.Event()
    limits = RateLimiter(settings, world)
    metrics: list[Callable[[], Iterable[Metric]]] = []
    admin = AdminServer(limits, world, list_more_metrics=lambda: [m for source in metrics for m in source()])
    async with contextlib.AsyncExitStack() as exits:
        await limits.open()
        exits.push_async_callback(limits.close)
        exits.push_async_callback(admin.close)
        if serve.grpc_host:
            grpc_server = RateLimitServer(RateLimitService(DescriptorDecisions(limits.decision_service)), serve)
            exits.push_async_callback(grpc_server.close)
            metrics.append(grpc_server.list_metrics)
            try:
                await grpc_server.open()
            except (OSError, InvalidFile) as error:
                raise ServeStartError(str(error)) from None
            if (watched := grpc_server.build_watched_certificate()) is not None:
                limits.watcher.add(watched)
            address = format_host_and_port(serve.grpc_host, grpc_server.port)
            print_line(f"Envoy's rate limit protocol is served at {address}")
        if serve.check_host:
            if settings.credentials.mode is CredentialMode.OPAQUE:
                log.warning("checks show no replies: every unlisted credential counts by its address")
            check_server = CheckServer(limits, serve, world)
            exits.push_async_callback(check_server.close)
            metrics.append(check_server.list_metrics)
            try:
                await check_server.open()
            except OSError as error:
                address = format_host_and_port(serve.check_host, serve.check_port)
                raise ServeStartError(f"cannot listen on {address}: {error.strerror or error}") from None
            address = format_host_and_port(serve.check_host, check_server.port)
            print_line(f"Checks of nginx, Traefik and Caddy are served at http://{address}/check")
        try:
            await admin.open()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ServeStartError(f"cannot listen for admin commands at {settings.socket_path}: {reason}") from None
        install_signal_handlers(stop_event, limits)
        gc.freeze()  # As in the gateway: objects that exist now live until the end.
        gc.set_threshold(1_000, 50, 50)
        print_line(f"Admin commands connect through {settings.socket_path}")
        await stop_event.wait()
