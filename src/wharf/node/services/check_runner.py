"""Asks after the services of every allocation at their intervals, and keeps what was found.

What follows from it is the core's: it is told whether all that health rests on passes, and which task a check restarts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from wharf.node.core import events as on
from wharf.node.services import CheckState, CheckStatus, apply_probe_result, probe_service, should_restart
from wharf.node.services.checks import create_check_state
from wharf.node.services.registrations import AllocationCheck
from wharf.world import World

log = logging.getLogger(__name__)

SECOND_NS: Final = 1_000_000_000
TaskCommandRunner = Callable[[str, str, tuple[str, ...]], Awaitable[tuple[int, str]]]
"""(allocation, task, command)"""


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """As it is shown."""

    id: str = msgspec.field(name="ID")
    mode: str = msgspec.field(name="Mode")
    status: str = msgspec.field(name="Status")
    output: str = msgspec.field(name="Output")
    timestamp: int = msgspec.field(name="Timestamp")
    group: str = msgspec.field(name="Group")
    service: str = msgspec.field(name="Service")
    check: str = msgspec.field(name="Check")
    status_code: int = msgspec.field(name="StatusCode", default=0)
    task: str = msgspec.field(name="Task", default="")


class _Check:
    def __init__(self, looked: AllocationCheck, group: str) -> None:
        self.looked = looked
        self.group = group
        self.standing = create_check_state(looked.spec)
        self.asking: asyncio.Task[None] | None = None
        self.since_s = 0.0

    def shown(self) -> CheckResult:
        standing, wanted = self.standing, self.looked.spec
        return CheckResult(
            id=wanted.id,
            mode="readiness" if wanted.is_readiness else "healthiness",
            status=standing.status.value,
            output=standing.last.output if standing.last is not None else "wharf: waiting to run",
            timestamp=standing.at_ns // SECOND_NS,
            group=self.group,
            service=self.looked.service,
            check=wanted.name,
            status_code=standing.last.status_code if standing.last is not None else 0,
            task=self.looked.task,
        )


class CheckRunner:
    def __init__(
        self, world: World, handle_event: Callable[[str, on.AllocationEvent], None], run_in_task: TaskCommandRunner
    ) -> None:
        self._world = world
        self._happen = handle_event
        self._run_in_task = run_in_task
        self._checks: dict[str, list[_Check]] = {}
        self._passes: dict[str, bool] = {}

    def has_checks(self, allocation_id: str) -> bool:
        return allocation_id in self._checks

    def set_checks(self, allocation_id: str, group: str, looked: list[AllocationCheck]) -> None:
        """`group`: the allocation's name, as results show it."""
        self._checks[allocation_id] = [_Check(each, group) for each in looked]

    def update_running_checks(self, allocation_id: str, running_since_s: Callable[[str], float | None]) -> None:
        """Ask after those whose task runs, and after no others. `up`: since when a task (or, by the empty name, any) runs."""
        for check in self._checks.get(allocation_id, ()):
            since_s = running_since_s(check.looked.task)
            if since_s is not None and check.asking is not None and check.since_s == since_s:
                continue
            if check.asking is not None:
                check.asking.cancel()
                check.asking = None
                # Not now: whoever says what runs is in the middle of it.
                asyncio.get_running_loop().call_soon(self._judge, allocation_id)
            if since_s is not None:
                check.since_s = since_s
                check.standing = create_check_state(check.looked.spec)
                check.asking = self._world.start_task(
                    self._ask_on(allocation_id, check), name=f"check {check.looked.spec.name}"
                )

    def remove_checks(self, allocation_id: str) -> None:
        for check in self._checks.pop(allocation_id, ()):
            if check.asking is not None:
                check.asking.cancel()
        self._passes.pop(allocation_id, None)

    async def build_results(self, allocation_id: str) -> Mapping[str, Any]:  # JSON.
        return {check.looked.spec.id: check.shown() for check in self._checks.get(allocation_id, ())}

    async def _ask_on(self, allocation_id: str, check: _Check) -> None:
        wanted, task = check.looked.spec, check.looked.script_task
        while True:
            # Asked at once, and then at its interval: what is well is soon known to be.
            finding = await probe_service(wanted, lambda command: self._run_in_task(allocation_id, task, command))
            runs_for_s = self._world.monotonic_s() - check.since_s
            before = check.standing
            standing = apply_probe_result(before, wanted, finding, at_ns=self._world.now_ns(), running_for_s=runs_for_s)
            check.standing = standing
            self._tell(allocation_id, before, standing)
            if should_restart(standing, wanted):
                check.standing = standing._replace(counted_failures=0)
                tasks = (task,) if task else ()
                reason = f'healthcheck: check "{wanted.name}" unhealthy'
                self._happen(allocation_id, on.RestartRequested(tasks, reason=reason, is_failure=True))
            await asyncio.sleep(wanted.interval_s)

    def _tell(self, allocation_id: str, before: CheckState, now: CheckState) -> None:
        """What is found is only told when it changes what all of them say."""
        if before.status is not now.status:
            self._judge(allocation_id)

    def _judge(self, allocation_id: str) -> None:
        judged = [check for check in self._checks.get(allocation_id, ()) if not check.looked.spec.is_readiness]
        passes = all(check.asking is not None and check.standing.status is CheckStatus.SUCCESS for check in judged)
        if judged and self._passes.get(allocation_id, False) is not passes:
            self._passes[allocation_id] = passes
            self._happen(allocation_id, on.ChecksChanged(passes))
