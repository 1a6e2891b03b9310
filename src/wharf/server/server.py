"""One serving process: its replica of the state, and its ways to read, to write and to ask the leader."""

import logging
from typing import Any, Final

import msgspec

from wharf.engines.port import Committed, Engine
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Write
from wharf.model.founding import founding_records
from wharf.model.job_settings import JobSettings
from wharf.server.asking import Leader, Link
from wharf.server.follower import Follower
from wharf.server.reading import Reader
from wharf.server.writer import Writer
from wharf.state import Replica, Table
from wharf.state.formats import NEWEST_FORMAT
from wharf.state.tables import ALL_TABLES, FORMAT, NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION
from wharf.world import World

log = logging.getLogger(__name__)

FOUNDED_TABLES: Final = (NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION, FORMAT)


class Identity(msgspec.Struct, frozen=True):
    """Who this server is."""

    member_id: str
    name: str
    region: str = "global"
    datacenter: str = "dc1"
    address: str = "127.0.0.1:4646"
    door_secret: str = ""


class Server:
    """What handlers work with. Made once a process; `brain` and `leader` are set by the wiring, which knows the links."""

    brain: Link
    """The way to this server's own brain."""

    leader: Leader
    """The way to whoever leads."""

    def __init__(
        self, world: World, engine: Engine, identity: Identity, *, job_settings: JobSettings | None = None
    ) -> None:
        self.world = world
        self.engine = engine
        self.identity = identity
        self.job_settings = job_settings or JobSettings(region=identity.region)
        self.replica = Replica(ALL_TABLES)
        self.follower = Follower(world, engine, self.replica)
        self.reader = Reader(world, engine, self.follower)
        self.writer = Writer(world, engine, self.follower)

    async def found(self) -> None:
        """Write the records that a new cluster begins with, where nobody has yet. Every server may try; one does."""
        await self.follower.loaded.wait()
        # Members put records of themselves into the log too: an index alone does not say that it was founded.
        if self.replica.get(FORMAT) is not None:
            return
        tables: dict[type, Table[Any]] = {table.record: table for table in FOUNDED_TABLES}
        records = [
            msgspec.structs.replace(record, create_index=THIS)
            for record in founding_records(cluster_format=NEWEST_FORMAT)
        ]
        changes = [tables[type(record)].put(record) for record in records]
        condition = Condition(FORMAT.name, FORMAT.name, 0)
        write = Write("founded", Cause(CauseKind.FOUNDING), changes, [condition])
        outcome = await self.writer.commit(write)
        if isinstance(outcome, Committed):
            log.info("a new cluster was founded")
            await self.follower.reached(outcome.index)
        else:
            await self.writer.catch_up()
