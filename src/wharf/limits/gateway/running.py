"""A gateway as a process: opened, told where it is, ended by signals without cutting anyone off."""

import asyncio
import gc
import signal
from collections.abc import Callable

from wharf.limits.building import Limits
from wharf.limits.configuration.settings import Settings, Upstream
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.operating.admin import AdminServer
from wharf.world import World


class GatewayRefused(Exception):
    """A gateway that cannot listen. Its text says why, and what to do."""


async def serve(
    settings: Settings,
    upstream: Upstream,
    world: World,
    *,
    say: Callable[[str], object],
    until: asyncio.Event | None = None,
    is_bare: bool = False,
) -> None:
    """Serve until a signal says to end (or the event). SIGHUP reads rules and directory again."""
    ended = until or asyncio.Event()
    limits = Limits(settings, world)
    await limits.open()
    gateway = Gateway(limits, upstream, world, is_bare=is_bare)
    admin = AdminServer(limits, world, gateway)
    try:
        try:
            await gateway.open()
            await admin.open()
        except OSError as problem:
            where = f"{settings.gateway.host}:{settings.gateway.port}"
            raise GatewayRefused(f"the gateway cannot listen on {where} or {settings.socket_path}: {problem}") from None
        except ValueError as problem:
            raise GatewayRefused(f"the gateway cannot listen: {problem}") from None
        _on_signals(ended, limits)
        # What is here now stays. Of what requests make hardly anything is in circles: to look for these seldom is enough.
        gc.freeze()
        gc.set_threshold(20_000, 50, 50)
        scheme = "https" if settings.gateway.certificate_file is not None else "http"
        host = f"[{settings.gateway.host}]" if ":" in settings.gateway.host else settings.gateway.host
        say(f"Limits stand at {scheme}://{host}:{gateway.port} in front of {upstream}")
        say(f"Operators' commands find it at {settings.socket_path}")
        await ended.wait()
    finally:
        await gateway.close()
        await admin.close()
        await limits.close()


def _on_signals(ended: asyncio.Event, limits: Limits) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: limits.desk.start(limits.watcher.look()))
