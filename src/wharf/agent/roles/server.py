"""What api and brain processes share: the log engine, the replica that follows the log, and the server's identity.

It also tunes Python's garbage collector. A collection blocks the event loop while it scans all tracked objects, but finds
little, because records hold no cycles. So it scans young objects often and old objects rarely.
"""

import gc
import logging
from functools import cache
from pathlib import Path
from typing import Final

from wharf.agent.access_control import configure_access
from wharf.agent.engine import build_engine
from wharf.agent.errors import StartupError
from wharf.agent.identity import get_agent_name, load_server_id
from wharf.agent.process_context import ProcessContext
from wharf.cluster.engines.port import LogEngine, LogMisconfigured, LogUnavailable
from wharf.cluster.operations.search import SearchLimits
from wharf.cluster.server.cpu_budget import ReadLimits
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.cluster.state.codec import DamagedRecord, NewerFormat, get_decoder
from wharf.cluster.state.tables import ALL_TABLES
from wharf.config.settings import AgentSettings
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.world.tasks import wait_for_event

GC_YOUNG_THRESHOLD: Final = 10_000
"""How many new objects start a collection of the young generation. Scanning that many takes 1 to 2 ms."""

GC_MIDDLE_THRESHOLD: Final = 1
"""How many collections of the young generation start one of the middle generation."""
GC_OLD_THRESHOLD: Final = 3_000
"""How many collections of the middle generation start one of the old generation."""


def tune_garbage_collector() -> None:
    """Set the collector's thresholds. Call at the start: loading creates millions of objects that are not garbage."""
    gc.set_threshold(GC_YOUNG_THRESHOLD, GC_MIDDLE_THRESHOLD, GC_OLD_THRESHOLD)


class LoadedStateFreezer:
    """Excludes the loaded state from garbage collections."""

    def __init__(self) -> None:
        self._is_first = True

    def freeze(self) -> None:
        """Exclude all existing objects from later collections. Call once the state is loaded, in the same step.

        The first load ends before requests are served, so it may collect all garbage before. A later one may not hold the event
        loop for that long: cycles that are garbage at that moment stay in memory, some kilobytes.
        """
        if self._is_first:
            gc.collect()
        gc.freeze()
        self._is_first = False


REOPEN_DELAY_S: Final = 2.0
"""Pause before another attempt to open the log."""
BRAIN_SOCKET: Final = "brain.sock"

log = logging.getLogger(__name__)


@cache
def prepare_server() -> None:
    """Create the decoders of all tables, which takes 50 ms. Brain and api processes share them as copies of one process."""
    for table in ALL_TABLES:
        get_decoder(table)


def get_brain_socket(context: ProcessContext) -> Path:
    return Path(context.order.data_folder) / BRAIN_SOCKET


def build_search_limits(settings: AgentSettings) -> SearchLimits:
    """Return how much a search may examine and return."""
    search = settings.server.search
    return SearchLimits(
        is_fuzzy_enabled=search.fuzzy_enabled,
        max_examined_records=search.limit_query,
        max_results=search.limit_results,
        min_query_bytes=search.min_term_length,
    )


def build_job_settings(settings: AgentSettings) -> JobSettings:
    """Return the defaults and limits for jobs.

    Where the namespace of a job has a node pool, or the scheduler configuration permits oversubscription, these count.
    """
    server = settings.server
    return JobSettings(
        region=settings.region,
        node_pool=DEFAULT_NODE_POOL,
        default_priority=server.job_default_priority,
        max_priority=server.job_max_priority,
        max_count=server.job_max_count,
        memory_oversubscription=False,
        max_source_bytes=server.job_max_source_size.bytes,
        versions_kept=server.job_tracked_versions,
    )


def build_server(context: ProcessContext) -> Server:
    """Return the server of this process, with the configured settings and not yet opened."""
    settings = context.order.settings
    identity = ServerIdentity(
        member_id=load_server_id(context.world, Path(context.order.data_folder)),
        name=get_agent_name(settings),
        region=settings.region,
        datacenter=settings.datacenter,
        address=context.order.advertised_address,
        door_secret=context.order.door_secret,
    )
    server = Server(
        context.world,
        build_engine(context.order.settings, context.world, index_descriptor=context.order.index_descriptor),
        identity,
        job_settings=build_job_settings(settings),
        search_limits=build_search_limits(settings),
        scheduler=settings.server.default_scheduler_config.configuration(),
    )
    configure_access(context, server)
    server.read_limits = ReadLimits(
        filter_cpu_s=settings.api.max_filter_cpu.seconds,
        list_cpu_s=settings.api.max_list_cpu.seconds,
        view_cpu_s=settings.api.max_view_cpu.seconds,
    )
    context.set_facts(lambda: collect_facts(server))
    tune_garbage_collector()
    server.follower.load_listeners.append(LoadedStateFreezer().freeze)
    return server


async def open_log(context: ProcessContext, engine: LogEngine) -> bool:
    """Open the log, retrying until it is available. Return `False` if the process should stop instead.

    Raises `StartupError` if the log is misconfigured.
    """
    logged_error = ""
    while not context.stopping.is_set():
        try:
            await engine.open()
        except LogMisconfigured as error:
            raise StartupError(str(error)) from error
        except LogUnavailable as error:
            if logged_error != str(error):
                logged_error = str(error)
                log.warning("log cannot be reached; retrying error=%s", logged_error)
            await wait_for_event(context.stopping, REOPEN_DELAY_S)
        else:
            if logged_error:
                log.info("log reached")
            return True
    return False


async def follow_log(server: Server) -> None:
    """Follow the log until cancelled.

    Raises `StartupError` for records that this version cannot read: a restart would not help.
    """
    try:
        await server.follower.run()
    except (DamagedRecord, NewerFormat) as error:
        raise StartupError(str(error)) from error


def collect_facts(server: Server) -> dict[str, str]:
    """Return the record counts of the state, for debug archives. It runs on another thread, so it only counts."""
    replica = server.replica
    rows = {f"records in {name}": str(replica.count_records(table)) for name, table in replica.tables.items()}
    return {"log index": str(replica.index)} | {name: count for name, count in rows.items() if count != "0"}
