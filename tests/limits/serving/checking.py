"""A running check server for tests, in the thread of the test or beside it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.limits.decision_services import DIRECTORY
from wharf.limits.config.credential_settings import CredentialSettings
from wharf.limits.config.settings import DecisionLogSettings, LimiterSettings, ServeSettings, StoreSettings
from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.serving.check_server import CheckServer
from wharf.world import RealWorld

RULES = """
[[rule]]
name = "core"
ceiling = { credential = 5, none = 3 }
[[rule]]
name = "reports"
match = ["GET /reports/*"]
resource = "reports"
status = 429
ceiling = 1
[[rule]]
name = "graphql"
ceiling = { none = 1 }
"""
SETTINGS = ServeSettings(check_host="127.0.0.1", drain_ms=200)


@asynccontextmanager
async def running_check(
    folder: Path,
    *,
    proxies: ProxySettings | None = None,
    rules: str = RULES,
    credentials: CredentialSettings | None = None,
    decisions: DecisionLogSettings | None = None,
    **fields: Any,
) -> AsyncIterator[CheckServer]:
    """Run a check server on a free port. `fields` are settings of the table `[serve]`."""
    rules_file, directory = folder / "rules.toml", folder / "people.toml"
    rules_file.write_text(rules)
    directory.write_text(DIRECTORY)
    settings = LimiterSettings(
        rules_file=rules_file,
        directory_file=directory,
        data_folder=folder / "data",
        store=StoreSettings(is_saved=False),
        proxies=proxies or ProxySettings(),
        credentials=credentials or CredentialSettings(),
        decisions=decisions or DecisionLogSettings(),
        serve=msgspec.structs.replace(SETTINGS, **fields),
    )
    world = RealWorld()
    limits = RateLimiter(settings, world)
    await limits.open()
    server = CheckServer(limits, settings.serve, world)
    try:
        await server.open()
        yield server
    finally:
        await server.close()
        await limits.close()


@contextmanager
def check_in_thread(folder: Path) -> Iterator[int]:
    """Run a check server in a thread, and yield its port."""
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    ports: list[int] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with running_check(folder) as server:
            ports.append(server.port)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30), "the check server did not start"
    try:
        yield ports[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(30)
