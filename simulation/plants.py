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
from wharf.engines.port import LogWrite, Standing
from wharf.server.server import Server
from wharf.state import Subscription, Watched
from wharf.state.tables import JOBS, LEADER


class Plant(enum.StrEnum):
    DROPPED_CONDITION = "dropped-condition"
    MISSED_WAKE = "missed-wake"
    LOST_LEADER_CHECK = "lost-leader-check"
    SPLIT_BATCH = "split-batch"
    INDEX_BACK = "index-back"
    FORGETFUL_DISK = "forgetful-disk"
    GUESSED_OUTCOMES = "guessed-outcomes"


def plant(bug: Plant, cluster: Cluster) -> None:
    PLANTED[bug](cluster)


def _drop_condition(cluster: Cluster) -> None:
    """Writes no longer say which version of the job they rest on."""
    cluster.log.tamper = lambda write: [_without(write, JOBS.name)]


def _lose_leader_check(cluster: Cluster) -> None:
    """A leader's write no longer says that it rests on the election."""
    cluster.log.tamper = lambda write: [_without(write, LEADER.name) if _is_no_election(write) else write]


def _is_no_election(write: LogWrite) -> bool:
    return not any(change.table == LEADER.name for change in write.changes)


def _without(write: LogWrite, table: str) -> LogWrite:
    return replace(write, conditions=[condition for condition in write.conditions if condition.table != table])


def _split_batch(cluster: Cluster) -> None:
    """Every now and then a write is stored as two."""
    draw = Random(f"{cluster.seed}/plant")

    def split(write: LogWrite) -> list[LogWrite]:
        if len(write.changes) < 2 or draw.random() > 0.05:
            return [write]
        middle = len(write.changes) // 2
        first = replace(write, changes=write.changes[:middle])
        return [first, replace(write, id=f"{write.id}+", conditions=(), changes=write.changes[middle:])]

    cluster.log.tamper = split


def _miss_wakes(cluster: Cluster) -> None:
    """Now and then a subscriber is not told."""
    draw = Random(f"{cluster.seed}/plant")
    started = cluster.on_started

    def on_started(process: ServerProcess, server: Server) -> None:
        started(process, server)
        watches = server.replica.watches
        subscribe = watches.subscribe

        def deaf(watched: list[Watched], wake: Callable[[], None]) -> Subscription:
            return subscribe(watched, (lambda: None) if draw.random() < 0.2 else wake)

        watches.subscribe = deaf  # type: ignore[method-assign,assignment]  # that is the bug

    cluster.on_started = on_started


def _send_index_back(cluster: Cluster) -> None:
    """A full read forgets when tables changed last, so that a replica that loads again tells lower indexes."""
    log = cluster.log
    standing = log.standing

    def forgetful() -> Standing:
        return replace(standing(), last_changes={})

    log.standing = forgetful  # type: ignore[method-assign]  # that is the bug


def _forget_what_was_synced(cluster: Cluster) -> None:
    """The disks of nodes say that all is on them, and nothing is when the power fails."""
    for host in cluster.nodes:
        if host.ground is not None:
            host.ground.disk.loses_all = True


def _guess_outcomes(cluster: Cluster) -> None:
    """Supervisors tell of every program that it ended well."""
    for host in cluster.nodes:
        if host.ground is not None:
            host.ground.guesses_outcomes = True


PLANTED: Final[dict[Plant, Callable[[Cluster], None]]] = {
    Plant.DROPPED_CONDITION: _drop_condition,
    Plant.MISSED_WAKE: _miss_wakes,
    Plant.LOST_LEADER_CHECK: _lose_leader_check,
    Plant.SPLIT_BATCH: _split_batch,
    Plant.INDEX_BACK: _send_index_back,
    Plant.FORGETFUL_DISK: _forget_what_was_synced,
    Plant.GUESSED_OUTCOMES: _guess_outcomes,
}
