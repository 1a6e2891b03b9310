"""How a serving process runs Python's collector of cycles.

Records hold no cycles and are not tracked, so what the collector finds is little: tracebacks, tasks, closed
connections. What it costs is not: it walks everything it tracks, and a loop stands still meanwhile. Of the state it tracks
the packed maps, one for each allocation that has begun to run since the start; so it looks often, at few, and lets
what has lived twice alone for long.

What api and brain have in common: a door to the log, a replica that follows it, and who this server is.
"""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Final

from wharf.agent.access_control import configure_access
from wharf.agent.engine import build_engine
from wharf.agent.errors import StartupError
from wharf.agent.identity import get_agent_name, load_server_id
from wharf.agent.process_context import ProcessContext
from wharf.cluster.engines.port import LogEngine, LogMisconfigured, LogUnavailable
from wharf.cluster.operations.search import SearchLimits
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.cluster.state.codec import DamagedRecord, NewerFormat
from wharf.contract.model.jobs.defaults import JobSettings

GC_YOUNG_THRESHOLD: Final = 10_000
"""Containers that came and stayed before the young ones are looked at: a millisecond or two for that many."""

GC_MIDDLE_THRESHOLD: Final = 1
GC_OLD_THRESHOLD: Final = 3_000


def tune_garbage_collector() -> None:
    """Call when the process starts: loading makes millions of containers, and none of them is garbage."""
    gc.set_threshold(GC_YOUNG_THRESHOLD, GC_MIDDLE_THRESHOLD, GC_OLD_THRESHOLD)


def freeze_loaded_state() -> None:
    """Call once the state is loaded, before anybody is served: what is there now is never walked again."""
    gc.collect()
    gc.freeze()


REOPEN_DELAY_S: Final = 2.0
BRAIN_SOCKET: Final = "brain.sock"

log = logging.getLogger(__name__)


def get_brain_socket(life: ProcessContext) -> Path:
    return Path(life.order.data_folder) / BRAIN_SOCKET


def build_server(life: ProcessContext) -> Server:
    settings = life.order.settings
    address = settings.advertise.http or life.order.address.partition("://")[2]
    identity = ServerIdentity(
        member_id=load_server_id(life.world, Path(life.order.data_folder)),
        name=get_agent_name(settings),
        region=settings.region,
        datacenter=settings.datacenter,
        address=address,
        door_secret=life.order.door_secret,
    )
    server = Server(
        life.world,
        build_engine(life.order.settings, life.world),
        identity,
        job_settings=JobSettings(
            region=settings.region,
            default_priority=settings.server.job_default_priority,
            max_priority=settings.server.job_max_priority,
            max_count=settings.server.job_max_count,
            max_source_bytes=settings.server.job_max_source_size.bytes,
            versions_kept=settings.server.job_tracked_versions,
        ),
        scheduler=settings.server.default_scheduler_config.configuration(),
    )
    configure_access(life, server)
    search = settings.server.search
    server.search_limits = SearchLimits(
        is_fuzzy_enabled=search.fuzzy_enabled,
        max_examined_records=search.limit_query,
        max_results=search.limit_results,
        min_query_bytes=search.min_term_length,
    )
    life.set_facts(lambda: collect_facts(server))
    tune_garbage_collector()
    server.follower.load_listeners.append(freeze_loaded_state)
    return server


async def open_log(life: ProcessContext, engine: LogEngine) -> bool:
    """Wait until the log can be reached, saying so. False when the process should stop instead.

    Raises `CannotStart` where no waiting helps.
    """
    said = ""
    while not life.stopping.is_set():
        try:
            await engine.open()
        except LogMisconfigured as error:
            raise StartupError(str(error)) from error
        except LogUnavailable as error:
            if said != str(error):
                said = str(error)
                log.warning("the log cannot be reached yet: %s; trying again until it answers", said)
            try:
                async with asyncio.timeout(REOPEN_DELAY_S):
                    await life.stopping.wait()
            except TimeoutError:
                continue
        else:
            if said:
                log.info("the log is reached")
            return True
    return False


async def follow_log(server: Server) -> None:
    """Until cancelled. What this program cannot read gets no better by starting again: a person must be told."""
    try:
        await server.follower.run()
    except (DamagedRecord, NewerFormat) as error:
        raise StartupError(str(error)) from error


def collect_facts(server: Server) -> dict[str, str]:
    """Sizes of the state, for debug archives. Called from another thread: it only counts."""
    replica = server.replica
    rows = {f"records in {name}": str(replica.count_records(table)) for name, table in replica.tables.items()}
    return {"log index": str(replica.index)} | {name: count for name, count in rows.items() if count != "0"}
