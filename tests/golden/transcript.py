"""Transcripts: each command as a user would type it, then every change that it causes in the log, as text.

Nodes are fake and time is virtual; everything else is real. Ids are omitted, so that every run gives the same text.
`pytest tests/golden --rewrite-golden` rewrites the files: review the difference before you commit it.
"""

from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kit.cluster import OneServer
from tests.kit.virtual_time import pass_time
from wharf.cluster.engines.port import Batch
from wharf.cluster.state.replica import AppliedChange
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node

FOLDER: Final = Path(__file__).parent
SECOND_NS: Final = 1_000_000_000


class Transcript:
    """Records what commands change on one server."""

    def __init__(self, server: OneServer) -> None:
        self._server = server
        self._lines: list[str] = []
        self._last_text_by_record: dict[str, str] = {}
        self._start_ns = server.world.now_ns()
        server.server.follower.change_listeners.append(self._add_changes)

    async def run(self, command: str, call: Awaitable[Any] | None = None, *, wait_s: float = 60.0) -> None:
        """Add the command, run it, and record the changes of the next `wait_s` seconds."""
        self._lines += ["", f"$ {command}"] if self._lines else [f"$ {command}"]
        if call is not None:
            await call
        await pass_time(wait_s)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _add_changes(self, batch: Batch, changes: Sequence[AppliedChange]) -> None:
        del batch
        for table, key, _, record in changes:
            text = _describe_record(record)
            if text and self._last_text_by_record.get(f"{table} {key}") != text:
                self._last_text_by_record[f"{table} {key}"] = text
                elapsed_s = (self._server.world.now_ns() - self._start_ns) / SECOND_NS
                self._lines.append(f"{elapsed_s:7.1f}s  {text}")


def _describe_record(record: Any) -> str:
    match record:
        case Job():
            return f"job {record.id} v{record.version}: {record.status}{' stable' if record.stable else ''}" + (
                " stopped" if record.stop else ""
            )
        case Evaluation():
            lacking = f" lacks {', '.join(record.failed_tg_allocs)}" if record.failed_tg_allocs else ""
            return f"evaluation {record.triggered_by} of {record.job_id}: {record.status}{lacking}"
        case Deployment():
            return f"deployment of {record.job_id} v{record.job_version}: {record.status} ({record.status_description})"
        case Node():
            draining = " draining" if record.drain_strategy is not None else ""
            return f"node {record.name}: {record.status} {record.scheduling_eligibility}{draining}"
        case Allocation():
            return _describe_allocation(record)
    return ""


def _describe_allocation(allocation: Allocation) -> str:
    status = allocation.deployment_status
    parts = [f"{allocation.desired_status}/{allocation.client_status}"]
    if status is not None:
        parts += ["canary"] if status.canary else []
        parts += [] if status.healthy is None else ["healthy" if status.healthy else "unhealthy"]
    if allocation.should_migrate:
        parts.append("to move")
    reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
    return (
        f"allocation {allocation.name} v{allocation.job_version} on {allocation.node_name}: {' '.join(parts)}{reason}"
    )


def assert_golden(name: str, text: str, *, rewrite: bool) -> None:
    path = FOLDER / f"{name}.txt"
    if rewrite:
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} differs; rewrite it with --rewrite-golden"
