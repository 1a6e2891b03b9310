"""What a server can say in figures, gathered at the moment somebody asks: gauges with names and labels."""

import asyncio
from typing import Final

import msgspec

from wharf.api.health import health_of
from wharf.engines.port import Unavailable
from wharf.model.evaluation import EvaluationStatus
from wharf.model.refusal import Refusal
from wharf.server.answering.servers import FIGURES, Nothing, Told
from wharf.server.process_figures import ProcessFigures, measure_process
from wharf.server.server import Server
from wharf.state.tables import EVALUATIONS_BY_STATUS, LEADER

ASKED_WITHIN_S: Final = 2.0
"""Whoever collects figures asks often: what does not answer in time is left out this time."""


class Figure(msgspec.Struct, frozen=True):
    name: str
    value: float
    labels: dict[str, str] = {}


async def gather_figures(server: Server) -> list[Figure]:
    """In order of name. What the brain or the log does not tell in time is missing, never made up."""
    told, behind, health = await asyncio.gather(_brain(server), _behind(server), health_of(server.engine))
    found = [*_of_replica(server), *_of_process(measure_process(), "api")]
    if told is not None:
        found += [*_of_brain(server, told), *_of_process(told.process, "brain")]
    if behind is not None:
        found.append(Figure("replica.index_behind", behind))
    found += [
        Figure("log.writable", float(health.writable)),
        Figure("log.size_bytes", health.size_bytes),
        Figure("log.quota_bytes", health.quota_bytes),
    ]
    return sorted(found, key=lambda figure: (figure.name, sorted(figure.labels.items())))


def _of_replica(server: Server) -> list[Figure]:
    replica, reader = server.replica, server.reader
    leader = replica.get(LEADER)
    leads = leader is not None and leader.member_id == server.identity.member_id
    contact_ms = reader.last_contact_ms()
    found = [
        Figure("raft.appliedIndex", replica.index),
        Figure("raft.state.leader", float(leads)),
        Figure("raft.state.follower", float(not leads)),
        Figure("state.snapshotIndex", replica.index),
        Figure("state.known_leader", float(reader.knows_leader())),
        Figure("http.blocked_queries", reader.waiting_count),
    ]
    if contact_ms is not None:
        found.append(Figure("raft.leader.lastContact", contact_ms))
    return found + [
        Figure("state.records", replica.count(table), {"table": name}) for name, table in replica.tables.items()
    ]


def _of_brain(server: Server, told: Told) -> list[Figure]:
    brain = told.brain
    if not brain.is_leading:
        return []
    return [
        Figure("broker.total_ready", brain.ready),
        Figure("broker.total_pending", brain.behind),
        Figure("broker.total_unacked", brain.busy),
        Figure("broker.unsettled_jobs", brain.unsettled_jobs),
        Figure(
            "blocked_evals.total_blocked",
            server.replica.count_those(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED),
        ),
        Figure("heartbeat.active", brain.nodes_expected),
        Figure("heartbeat.silent", brain.silent_nodes),
    ]


def _of_process(process: ProcessFigures, name: str) -> list[Figure]:
    labels = {"process": name}
    return [
        Figure("runtime.resident_bytes", process.resident_bytes, labels),
        Figure("runtime.peak_bytes", process.peak_bytes, labels),
        Figure("runtime.cpu_seconds", process.cpu_s, labels),
        Figure("runtime.open_files", process.open_files, labels),
    ]


async def _brain(server: Server) -> Told | None:
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            return await server.leader.ask_member(server.identity.member_id, FIGURES, Nothing())
    except (Refusal, TimeoutError):
        return None


async def _behind(server: Server) -> int | None:
    """By how many indexes the replica was behind the log when it was asked; None: the log did not say."""
    index = server.replica.index
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            return max(0, await server.engine.barrier() - index)
    except (Unavailable, TimeoutError):
        return None
