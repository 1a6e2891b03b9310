"""Bugs that can be planted to test the simulation itself. It must detect each of them.

They change the simulated log, the watches of a replica, the disk of a node, its supervisor, or its addresses of servers.
They never change the product.
"""

import enum
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec.structs import replace

from simulation.cluster import Cluster, NodeHost, ServerProcess
from wharf.cluster.engines.port import EncodedWrite, LogPosition
from wharf.cluster.server.server import Server
from wharf.cluster.state import Subscription, WatchTarget
from wharf.cluster.state.tables import JOBS, LEADER


class PlantedBug(enum.StrEnum):
    """The bugs, by the names of the option `--plant`."""

    DROPPED_CONDITION = "dropped-condition"
    MISSED_WAKE = "missed-wake"
    LOST_LEADER_CHECK = "lost-leader-check"
    SPLIT_BATCH = "split-batch"
    INDEX_BACK = "index-back"
    FORGETFUL_DISK = "forgetful-disk"
    GUESSED_OUTCOMES = "guessed-outcomes"
    SAME_SERVER = "same-server"


def plant_bug(bug: PlantedBug, cluster: Cluster) -> None:
    BUG_PLANTERS[bug](cluster)


def _drop_condition(cluster: Cluster) -> None:
    """Remove the condition on the version of the job from all writes."""
    cluster.log.alter_write = lambda write: [_remove_conditions(write, JOBS.name)]


def _lose_leader_check(cluster: Cluster) -> None:
    """Remove the condition on the leader record from all writes except those of the election."""
    cluster.log.alter_write = lambda write: [write if _is_election(write) else _remove_conditions(write, LEADER.name)]


def _is_election(write: EncodedWrite) -> bool:
    return any(change.table == LEADER.name for change in write.changes)


def _remove_conditions(write: EncodedWrite, table: str) -> EncodedWrite:
    return replace(write, conditions=[condition for condition in write.conditions if condition.table != table])


def _split_batch(cluster: Cluster) -> None:
    """Store 5 % of the writes with several changes as two batches."""
    draw = Random(f"{cluster.seed}/plant")

    def split(write: EncodedWrite) -> list[EncodedWrite]:
        if len(write.changes) < 2 or draw.random() > 0.05:
            return [write]
        middle = len(write.changes) // 2
        first = replace(write, changes=write.changes[:middle])
        return [first, replace(write, id=f"{write.id}+", conditions=(), changes=write.changes[middle:])]

    cluster.log.alter_write = split


def _miss_wakes(cluster: Cluster) -> None:
    """Do not wake 20 % of the subscribers."""
    draw = Random(f"{cluster.seed}/plant")
    old_on_started = cluster.on_started

    def on_started(process: ServerProcess, server: Server) -> None:
        old_on_started(process, server)
        watches = server.replica.watches
        subscribe = watches.subscribe

        def subscribe_unreliably(watched: list[WatchTarget], wake: Callable[[], None]) -> Subscription:
            return subscribe(watched, (lambda: None) if draw.random() < 0.2 else wake)

        watches.subscribe = subscribe_unreliably  # type: ignore[method-assign,assignment]  # the planted bug

    cluster.on_started = on_started


def _send_index_back(cluster: Cluster) -> None:
    """Return no last changes of tables from a full read, so that a replica that loads again has lower indexes."""
    log = cluster.log
    get_position = log.get_position

    def get_position_without_changes() -> LogPosition:
        return replace(get_position(), last_changes={})

    log.get_position = get_position_without_changes  # type: ignore[method-assign]  # the planted bug


def _lose_synced_data(cluster: Cluster) -> None:
    """Let the disks of nodes confirm each sync and store nothing."""
    for host in cluster.nodes:
        if host.machine is not None:
            host.machine.disk.is_losing_all = True


def _guess_outcomes(cluster: Cluster) -> None:
    """Let supervisors report success for every program that ended."""
    for host in cluster.nodes:
        if host.machine is not None:
            host.machine.is_guessing_outcomes = True


def _lead_to_same_server(cluster: Cluster) -> None:
    """Let all server addresses of a node lead to the same server, so that the node cannot fail over to another one."""
    make_address_choosers = cluster.make_address_choosers

    def make_same_choosers(node: NodeHost) -> list[Callable[[], str]]:
        choosers = make_address_choosers(node)
        return [choosers[0]] * len(choosers)

    cluster.make_address_choosers = make_same_choosers  # type: ignore[method-assign]  # the planted bug


BUG_PLANTERS: Final[dict[PlantedBug, Callable[[Cluster], None]]] = {
    PlantedBug.DROPPED_CONDITION: _drop_condition,
    PlantedBug.MISSED_WAKE: _miss_wakes,
    PlantedBug.LOST_LEADER_CHECK: _lose_leader_check,
    PlantedBug.SPLIT_BATCH: _split_batch,
    PlantedBug.INDEX_BACK: _send_index_back,
    PlantedBug.FORGETFUL_DISK: _lose_synced_data,
    PlantedBug.GUESSED_OUTCOMES: _guess_outcomes,
    PlantedBug.SAME_SERVER: _lead_to_same_server,
}
