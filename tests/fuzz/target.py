"""The fuzzed server in this process: real sockets, the real application, and a log in memory that tests can read."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from tests.builders import some_job_settings
from tests.fuzz.generated_requests import HOST, RequestMaterial
from tests.fuzz.server_records import BOOTSTRAP, create_records
from tests.kit.cluster import OneServer
from tests.kit.loop_holds import MeasuredCluster
from tests.kit.settings import USUAL_HEARTBEATS, USUAL_SEARCH_LIMITS
from tests.waiting import wait_on_loop_until
from wharf.agent.forked_worker import ForkedWorker
from wharf.agent.http.server import HttpServer
from wharf.agent.sockets import listen_tcp
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.port import Batch
from wharf.cluster.server.request_worker import RequestWorker
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.cluster.state.tables import IDEMPOTENCY_KEYS
from wharf.config.settings import AgentSettings
from wharf.contract.model.log import CauseKind

REQUEST_CAUSES = frozenset((CauseKind.REQUEST, CauseKind.NODE, CauseKind.OPERATOR))
"""Causes of writes that clients requested. All other writes come from the leader, at any time."""

MAX_LEADER_SUBSCRIPTIONS = 8
"""Maximum number of subscriptions of the leader's own loops. Leaked requests would add hundreds."""
FOLLOW_UP_KINDS = frozenset(("sealed-anew",))
"""Kinds of writes by which the leader continues, in steps, what one request has started."""


class Log(logging.Handler):
    """Records all log lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)} {record.__dict__}"  # With the fields of the line.
        self.lines.append(line)
        if record.levelno == logging.WARNING:
            self.warnings.append(line)
        if record.levelno >= logging.ERROR:
            self.errors.append(line)


class Target:
    """The fuzzed server and the observations of a test."""

    def __init__(self, server: OneServer, http: HttpServer, port: int, log: Log) -> None:
        self.server = server
        self.port = port
        self.log = log
        self.http = http
        self.batches: list[Batch] = []
        self.material = RequestMaterial({}, (), {})
        self.faults: list[str] = []
        """Unhandled task failures that the event loop reported."""

    @property
    def open_connections(self) -> int:
        state = self.http._server.server_state  # uvicorn offers no public access.
        return len(state.connections) + len(state.tasks)

    async def is_quiet(self) -> None:
        """Wait until the server has dropped all closed connections. Fails if one remains."""
        if not self.open_connections:
            return
        await wait_on_loop_until(lambda: not self.open_connections, what="all connections are closed")

    async def list_requested_writes(self, since: int) -> list[Batch]:
        """Return the writes after this index that a client requested.

        Writes of idempotency keys only are omitted: a refused request claims its key and releases it again.
        """
        await self.server.server.follower.wait_until_applied(self.server.replica.index)
        # The log's own list has all writes.
        return [
            batch
            for batch in reversed(self.server.engine.log._batches[-50:])
            if batch.index > since
            and batch.cause.kind in REQUEST_CAUSES
            and batch.kind not in FOLLOW_UP_KINDS
            and any(change.table != IDEMPOTENCY_KEYS.name for change in batch.changes)
        ]

    @property
    def held_resources(self) -> dict[str, int]:
        """Return the number of resources that requests hold, by kind."""
        server = self.server.server
        return {
            "connections": self.open_connections,
            "blocked queries": server.reader.waiter_count,
            "listeners": server.events.subscription_count if server.events is not None else 0,
            "watches": max(0, self.server.replica.watches.subscription_count - MAX_LEADER_SUBSCRIPTIONS),
        }

    async def load_state_from_log(self) -> dict[str, list[Any]]:
        """Return the state that a newly started server loads from the log."""
        engine = MemoryEngine(self.server.world, self.server.engine.log, is_single_server=False)
        fresh = Server(
            self.server.world,
            engine,
            ServerIdentity("fresh", "fresh"),
            job_settings=some_job_settings(),
            search_limits=USUAL_SEARCH_LIMITS,
        )
        await engine.open()
        follower_task = asyncio.get_running_loop().create_task(fresh.follower.run())
        await fresh.follower.loaded_event.wait()
        await fresh.follower.wait_until_applied(self.server.engine.log.last_write_index)
        follower_task.cancel()
        await asyncio.gather(follower_task, return_exceptions=True)
        await engine.close()
        return read_state(fresh)


def read_state(server: Server) -> dict[str, list[Any]]:
    replica = server.replica
    return {name: list(replica.iter_all(table)) for name, table in replica.tables.items()}


@asynccontextmanager
async def open_target(
    *, access: bool = True, make_worker: Callable[[Server], RequestWorker] | None = None
) -> AsyncIterator[Target]:
    """Run a server with its records; stop it and all its tasks at the end. `make_worker`: executes large requests."""
    loop = asyncio.get_running_loop()
    # Its servers read the CPU clock, so that long work runs in slices, as in an agent.
    cluster = MeasuredCluster()
    server = OneServer(
        cluster,
        "m1",
        heartbeats=replace(USUAL_HEARTBEATS, min_ttl_s=36_000),
        access=access,
        worker=None if make_worker is None else ForkedWorker(cluster.world("worker")),
    )
    await server.follow()
    await server.server.bootstrap_cluster()
    tasks = [cluster.start(server.brain.run(), name="leader")]
    await wait_on_loop_until(lambda: server.brain.is_leading, what="the server leads")

    api = server.build_api(worker=None if make_worker is None else make_worker(server.server))
    server.api = server.exchange.api = api
    listening = listen_tcp(HOST, 0)
    port = listening.getsockname()[1]
    http = HttpServer(
        server.world, RegionRelay(api, server.server, api.region_slots), AgentSettings(), listening.detach()
    )
    log = Log()
    logging.getLogger().addHandler(log)
    stopping = asyncio.Event()
    await http.open()
    tasks.append(cluster.start(http.serve(stopping), name="http"))
    target = Target(server, http, port, log)
    loop.set_exception_handler(lambda _, context: target.faults.append(str(context)))
    try:
        target.material = await create_records(target.port, BOOTSTRAP if access else "")
        yield target
    finally:
        stopping.set()
        server.server.reader.close()
        api.close()
        await tasks[-1]
        logging.getLogger().removeHandler(log)
        loop.set_exception_handler(None)
        for task in cluster._tasks:  # The cluster's own cleanup works only in virtual time.
            task.cancel()
        await asyncio.gather(*cluster._tasks, return_exceptions=True)
        await server.server.reader.wait_closed()
        await server.engine.close()
