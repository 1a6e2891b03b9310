"""Bugs to plant, one flag each: the simulation must catch every one of them, or it proves nothing.

They sit at seams of the simulation, never in the product: at the door to the log, around a replica's watches, around
what a door tells of a full read, under the disk of a node, at its supervisor.
"""

import enum
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec.structs import replace

from simulation.cluster import Cluster, ServerProcess
from wharf.cluster.engines.port import EncodedWrite, LogPosition
from wharf.cluster.server.server import Server
from wharf.cluster.state import Subscription, WatchTarget
from wharf.cluster.state.tables import JOBS, LEADER


class PlantedBug(enum.StrEnum):
    DROPPED_CONDITION = "dropped-condition"
    MISSED_WAKE = "missed-wake"
    LOST_LEADER_CHECK = "lost-leader-check"
    SPLIT_BATCH = "split-batch"
    INDEX_BACK = "index-back"
    FORGETFUL_DISK = "forgetful-disk"
    GUESSED_OUTCOMES = "guessed-outcomes"


def plant_bug(bug: PlantedBug, cluster: Cluster) -> None:
    BUG_PLANTERS[bug](cluster)


def _drop_condition(cluster: Cluster) -> None:
    """Writes no longer say which version of the job they rest on."""
    cluster.log.alter_write = lambda write: [_without(write, JOBS.name)]


def _lose_leader_check(cluster: Cluster) -> None:
    """A leader's write no longer says that it rests on the election."""
    cluster.log.alter_write = lambda write: [_without(write, LEADER.name) if _is_no_election(write) else write]


def _is_no_election(write: EncodedWrite) -> bool:
    return not any(change.table == LEADER.name for change in write.changes)


def _without(write: EncodedWrite, table: str) -> EncodedWrite:
    return replace(write, conditions=[condition for condition in write.conditions if condition.table != table])


def _split_batch(cluster: Cluster) -> None:
    """Every now and then a write is stored as two."""
    draw = Random(f"{cluster.seed}/plant")

    def split(write: EncodedWrite) -> list[EncodedWrite]:
        if len(write.changes) < 2 or draw.random() > 0.05:
            return [write]
        middle = len(write.changes) // 2
        first = replace(write, changes=write.changes[:middle])
        return [first, replace(write, id=f"{write.id}+", conditions=(), changes=write.changes[middle:])]

    cluster.log.alter_write = split


def _miss_wakes(cluster: Cluster) -> None:
    """Now and then a subscriber is not told."""
    draw = Random(f"{cluster.seed}/plant")
    started = cluster.on_started

    def on_started(process: ServerProcess, server: Server) -> None:
        started(process, server)
        watches = server.replica.watches
        subscribe = watches.subscribe

        def deaf(watched: list[WatchTarget], wake: Callable[[], None]) -> Subscription:
            return subscribe(watched, (lambda: None) if draw.random() < 0.2 else wake)

        watches.subscribe = deaf  # type: ignore[method-assign,assignment]  # that is the bug

    cluster.on_started = on_started


def _send_index_back(cluster: Cluster) -> None:
    """A full read forgets when tables changed last, so that a replica that loads again tells lower indexes."""
    log = cluster.log
    standing = log.get_position

    def forgetful() -> LogPosition:
        return replace(standing(), last_changes={})

    log.get_position = forgetful  # type: ignore[method-assign]  # that is the bug


def _forget_what_was_synced(cluster: Cluster) -> None:
    """The disks of nodes say that all is on them, and nothing is when the power fails."""
    for host in cluster.nodes:
        if host.machine is not None:
            host.machine.disk.is_losing_all = True


def _guess_outcomes(cluster: Cluster) -> None:
    """Supervisors tell of every program that it ended well."""
    for host in cluster.nodes:
        if host.machine is not None:
            host.machine.is_guessing_outcomes = True


BUG_PLANTERS: Final[dict[PlantedBug, Callable[[Cluster], None]]] = {
    PlantedBug.DROPPED_CONDITION: _drop_condition,
    PlantedBug.MISSED_WAKE: _miss_wakes,
    PlantedBug.LOST_LEADER_CHECK: _lose_leader_check,
    PlantedBug.SPLIT_BATCH: _split_batch,
    PlantedBug.INDEX_BACK: _send_index_back,
    PlantedBug.FORGETFUL_DISK: _forget_what_was_synced,
    PlantedBug.GUESSED_OUTCOMES: _guess_outcomes,
}
