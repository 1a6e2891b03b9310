"""Health checks of the log and of the scheduler process, which always return within seconds."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wharf.cluster.api.handlers.agents.folder_checks import FolderChecks
from wharf.cluster.engines.port import LogHealth, LogUnavailable
from wharf.cluster.server.rpc.handlers.agents import GET_SERVER_METRICS
from wharf.cluster.server.rpc.method import EmptyMessage
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Refusal
from wharf.world.disk_space import measure_disk_space
from wharf.world.problem_file import read_problem

HEALTH_TIMEOUT_S: Final = 2.0
"""Health checks need a reply within 3 s: a log or process that does not answer within this time is unhealthy."""


async def check_engine_health(server: Server) -> LogHealth:
    """Return whether the log is writable, why not, and its size. An unavailable or slow log counts as not writable."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await server.engine.read_health()
    except LogUnavailable as error:
        why, public_why = str(error), "the log cannot be reached"
    except TimeoutError:
        why = public_why = f"the log did not answer a health check within {HEALTH_TIMEOUT_S:g} s"
    return LogHealth(
        writable=False,
        why=server.reader.describe_outage(for_operators=True) or why,
        public_why=server.reader.describe_outage() or public_why,
    )


async def find_disk_problem(checks: FolderChecks, folders: Sequence[Path]) -> tuple[bool, str]:
    """Return whether the disk of one of the node's folders is full, and a sentence if one is full or nearly full.

    A disk that does not answer counts as full.
    """
    problem = ""
    for folder in folders:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S / len(folders)):
                space = await checks.run(measure_disk_space, folder)
        except FileNotFoundError:
            continue  # The node is starting and has not created it yet.
        except (OSError, TimeoutError) as error:
            return True, f"the disk of {folder} cannot be used: {error or 'it does not answer'}"
        if space.is_full:
            return True, f"the disk of {folder} is full: free some space; no task starts until then"
        if space.is_nearly_full:
            problem = f"the disk of {folder} {space.describe_shortage()}: free some space before no task starts"
    return False, problem


async def find_audit_problem(checks: FolderChecks, folder: Path | None) -> str:
    """Return a warning if the disk of the audit log is full or nearly full, or does not answer; empty otherwise.

    A problem does not stop the server from executing requests.
    """
    if folder is None:
        return ""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            space = await checks.run(measure_disk_space, folder)
    except (OSError, TimeoutError) as error:
        return f"the disk of the audit log in {folder} cannot be used: {error or 'it does not answer'}"
    if space.is_full:
        return f"the disk of the audit log in {folder} is full: free some space; records of the audit log are lost until then"
    if space.is_nearly_full:
        shortage = space.describe_shortage()
        return f"the disk of the audit log in {folder} {shortage}: free some space before records are lost"
    return ""


async def find_node_problem(checks: FolderChecks, folders: Sequence[Path]) -> str:
    """Return the problem that the node agent has stored in one of its folders, or ""."""
    for folder in folders:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S / len(folders)):
                problem = await checks.run(read_problem, folder)
        except TimeoutError:
            continue  # The check of its disk reports this.
        if problem:
            return problem
    return ""


async def find_brain_problem(server: Server) -> str:
    """Return why the scheduler process of this server is unhealthy, or "" if it answers."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            await server.leader.call_member(server.identity.member_id, GET_SERVER_METRICS, EmptyMessage())
    except Refusal as refusal:
        return f"the scheduler process does not answer: {refusal.text}"
    except TimeoutError:
        return f"the scheduler process has not answered for {HEALTH_TIMEOUT_S:g} s"
    return ""
