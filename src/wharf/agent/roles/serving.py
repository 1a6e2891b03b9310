"""What api and brain have in common: a door to the log, a replica that follows it, and who this server is."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from wharf.agent.access_control import set_up_access
from wharf.agent.collector import freeze_loaded, tune_collector
from wharf.agent.identity import name_of, server_id
from wharf.agent.life import CannotStart, Life
from wharf.agent.log_access import engine_for
from wharf.engines.port import Engine, Misconfigured, Unavailable
from wharf.model.job_settings import JobSettings
from wharf.operations.search import SearchLimits
from wharf.server.server import Identity, Server
from wharf.state.codec import Damaged, NewerFormat

OPEN_AGAIN_S: Final = 2.0
BRAIN_SOCKET: Final = "brain.sock"

log = logging.getLogger(__name__)


def brain_socket(life: Life) -> Path:
    return Path(life.order.data_folder) / BRAIN_SOCKET


def make_server(life: Life) -> Server:
    settings = life.order.settings
    address = settings.advertise.http or life.order.address.partition("://")[2]
    identity = Identity(
        member_id=server_id(life.world, Path(life.order.data_folder)),
        name=name_of(settings),
        region=settings.region,
        datacenter=settings.datacenter,
        address=address,
        door_secret=life.order.door_secret,
    )
    server = Server(
        life.world,
        engine_for(life.order.settings, life.world),
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
    set_up_access(life, server)
    search = settings.server.search
    server.search_limits = SearchLimits(
        is_fuzzy_enabled=search.fuzzy_enabled,
        examined_max=search.limit_query,
        results_max=search.limit_results,
        term_length_min=search.min_term_length,
    )
    life.tell_facts(lambda: facts_of(server))
    tune_collector()
    server.follower.on_load.append(freeze_loaded)
    return server


async def open_log(life: Life, engine: Engine) -> bool:
    """Wait until the log can be reached, saying so. False when the process should stop instead.

    Raises `CannotStart` where no waiting helps.
    """
    said = ""
    while not life.stopping.is_set():
        try:
            await engine.open()
        except Misconfigured as error:
            raise CannotStart(str(error)) from error
        except Unavailable as error:
            if said != str(error):
                said = str(error)
                log.warning("the log cannot be reached yet: %s; trying again until it answers", said)
            try:
                async with asyncio.timeout(OPEN_AGAIN_S):
                    await life.stopping.wait()
            except TimeoutError:
                continue
        else:
            if said:
                log.info("the log is reached")
            return True
    return False


async def follow(server: Server) -> None:
    """Until cancelled. What this program cannot read gets no better by starting again: a person must be told."""
    try:
        await server.follower.run()
    except (Damaged, NewerFormat) as error:
        raise CannotStart(str(error)) from error


def facts_of(server: Server) -> dict[str, str]:
    """Sizes of the state, for debug archives. Called from another thread: it only counts."""
    replica = server.replica
    rows = {f"records in {name}": str(replica.count(table)) for name, table in replica.tables.items()}
    return {"log index": str(replica.index)} | {name: count for name, count in rows.items() if count != "0"}
