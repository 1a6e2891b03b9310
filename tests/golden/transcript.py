"""What people do and what follows, as text: each command as it would be typed, then every change that the log takes in.

Everything is real but the nodes, which are fake ones, and time, which passes at once. Ids are left out: what is told is the
same on every run. `pytest tests/golden --rewrite-golden` writes the files anew: read the difference before you keep it.
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
    def __init__(self, server: OneServer) -> None:
        self._server = server
        self._lines: list[str] = []
        self._told: dict[str, str] = {}
        self._began_ns = server.world.now_ns()
        server.server.follower.change_listeners.append(self._hear)

    async def type(self, command: str, call: Awaitable[Any] | None = None, *, then_s: float = 60.0) -> None:
        """The command, and what follows within so much time."""
        self._lines += ["", f"$ {command}"] if self._lines else [f"$ {command}"]
        if call is not None:
            await call
        await pass_time(then_s)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _hear(self, batch: Batch, taken: Sequence[AppliedChange]) -> None:
        del batch
        for table, key, _, record in taken:
            said = _said(record)
            if said and self._told.get(f"{table} {key}") != said:
                self._told[f"{table} {key}"] = said
                at_s = (self._server.world.now_ns() - self._began_ns) / SECOND_NS
                self._lines.append(f"{at_s:7.1f}s  {said}")


def _said(record: Any) -> str:
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
            return _of_allocation(record)
    return ""


def _of_allocation(allocation: Allocation) -> str:
    status = allocation.deployment_status
    words = [f"{allocation.desired_status}/{allocation.client_status}"]
    if status is not None:
        words += ["canary"] if status.canary else []
        words += [] if status.healthy is None else ["healthy" if status.healthy else "unhealthy"]
    if allocation.should_migrate:
        words.append("to move")
    why = f" ({allocation.desired_description})" if allocation.desired_description else ""
    return f"allocation {allocation.name} v{allocation.job_version} on {allocation.node_name}: {' '.join(words)}{why}"


def assert_golden(name: str, text: str, *, rewrite: bool) -> None:
    path = FOLDER / f"{name}.txt"
    if rewrite:
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} tells otherwise; with --rewrite-golden it is written anew"
