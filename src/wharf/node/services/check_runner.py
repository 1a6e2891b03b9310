"""Runs the health checks of every allocation at their intervals and keeps the results.

Reports to the node core whether all checks that count for health pass, and which task a failing check restarts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from wharf.contract.model.times import SECOND
from wharf.node.core import events
from wharf.node.open_files import FairSlots
from wharf.node.services import (
    CheckState,
    CheckStatus,
    ProbeResult,
    apply_probe_result,
    probe_service,
    should_restart,
)
from wharf.node.services.checks import create_check_state
from wharf.node.services.registrations import AllocationCheck
from wharf.world import World
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)

TaskCommandRunner = Callable[[str, str, tuple[str, ...]], Awaitable[tuple[int, str]]]
"""`(allocation_id, task, command)`: runs a command in a task and returns its exit code and output."""


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a check as the API shows it."""

    id: str = msgspec.field(name="ID")
    mode: str = msgspec.field(name="Mode")  # readiness, or healthiness if it counts for the allocation's health
    status: str = msgspec.field(name="Status")
    output: str = msgspec.field(name="Output")
    timestamp: int = msgspec.field(name="Timestamp")  # Unix time in seconds
    group: str = msgspec.field(name="Group")  # the allocation's name
    service: str = msgspec.field(name="Service")
    check: str = msgspec.field(name="Check")
    status_code: int = msgspec.field(name="StatusCode", default=0)
    task: str = msgspec.field(name="Task", default="")


class _Check:
    """One check of an allocation, with its state and the asyncio task that probes the service."""

    def __init__(self, definition: AllocationCheck, group: str, namespace: str) -> None:
        self.definition = definition
        self.namespace = namespace
        self.group = group
        self.state = create_check_state(definition.spec)
        self.probing: asyncio.Task[None] | None = None
        self.since_s = 0.0

    def build_result(self) -> CheckResult:
        """Return the current result of the check in the format of the API."""
        state, spec = self.state, self.definition.spec
        return CheckResult(
            id=spec.id,
            mode="readiness" if spec.is_readiness else "healthiness",
            status=state.status.value,
            output=state.last.output if state.last is not None else "wharf: waiting to run",
            timestamp=state.at_ns // SECOND,
            group=self.group,
            service=self.definition.service,
            check=spec.name,
            status_code=state.last.status_code if state.last is not None else 0,
            task=self.definition.task,
        )


class CheckRunner:
    """Probes the services of all allocations of the node at the intervals of their checks."""

    def __init__(
        self,
        world: World,
        handle_event: Callable[[str, events.AllocationEvent], None],
        run_in_task: TaskCommandRunner,
        slots: FairSlots,
    ) -> None:
        """`slots` limits how many checks are probed at a time, by namespace."""
        self._slots = slots
        self._world = world
        self._handle_event = handle_event
        self._run_in_task = run_in_task
        self._checks: dict[str, list[_Check]] = {}
        self._is_passing: dict[str, bool] = {}

    def has_checks(self, allocation_id: str) -> bool:
        """Return whether checks of the allocation are set."""
        return allocation_id in self._checks

    def set_checks(
        self, allocation_id: str, allocation_name: str, definitions: list[AllocationCheck], *, namespace: str = ""
    ) -> None:
        """Store the checks of an allocation; `update_running_checks` starts them.

        `allocation_name` is the allocation's name, as results show it.
        """
        self._checks[allocation_id] = [_Check(definition, allocation_name, namespace) for definition in definitions]

    def update_running_checks(self, allocation_id: str, running_since_s: Callable[[str], float | None]) -> None:
        """Start the checks of tasks that run, and stop the others.

        A check begins again if its task was restarted. `running_since_s` returns the start time of a task on the
        monotonic clock (for an empty name: of the group's first task), or `None` if it does not run.
        """
        for check in self._checks.get(allocation_id, ()):
            since_s = running_since_s(check.definition.task)
            if since_s is not None and check.probing is not None and check.since_s == since_s:
                continue
            if check.probing is not None:
                check.probing.cancel()
                check.probing = None
                # Later, because the caller is still applying an event to this allocation.
                asyncio.get_running_loop().call_soon(self._evaluate_checks, allocation_id)
            if since_s is not None:
                check.since_s = since_s
                check.state = create_check_state(check.definition.spec)
                check.probing = start_supervised(
                    self._world,
                    self._run_check(allocation_id, check),
                    name=f"check {check.definition.spec.name}",
                    on_failure=partial(self._on_check_failed, allocation_id, check),
                )

    def remove_checks(self, allocation_id: str) -> None:
        """Stop the checks of an allocation and delete their results."""
        for check in self._checks.pop(allocation_id, ()):
            if check.probing is not None:
                check.probing.cancel()
        self._is_passing.pop(allocation_id, None)

    async def build_results(self, allocation_id: str) -> Mapping[str, Any]:  # JSON.
        """Return the results of an allocation's checks by check id; empty if it has none."""
        return {check.definition.spec.id: check.build_result() for check in self._checks.get(allocation_id, ())}

    async def _run_check(self, allocation_id: str, check: _Check) -> None:
        """Probe the service at intervals, and update the state of the check. Runs until canceled.

        A restart of the task is requested after too many failures in a row.
        """
        spec, task, namespace = check.definition.spec, check.definition.script_task, check.namespace
        while True:
            # The first probe runs at once, so that a healthy service is soon known to be healthy.
            await self._slots.take(namespace)
            try:
                probe_result = await probe_service(
                    spec, lambda command: self._run_in_task(allocation_id, task, command)
                )
            finally:
                self._slots.release(namespace)
            running_for_s = self._world.monotonic_s() - check.since_s
            previous = check.state
            state = apply_probe_result(
                previous, spec, probe_result, at_ns=self._world.now_ns(), running_for_s=running_for_s
            )
            check.state = state
            self._on_probed(allocation_id, previous, state)
            if should_restart(state, spec):
                check.state = state._replace(counted_failures=0)
                tasks = (task,) if task else ()
                reason = f'healthcheck: check "{spec.name}" unhealthy'
                self._handle_event(allocation_id, events.RestartRequested(tasks, reason=reason, is_failure=True))
            await asyncio.sleep(spec.interval_s)

    def _on_check_failed(self, allocation_id: str, check: _Check, error: Exception) -> None:
        """Show a check that has ended unexpectedly as failed, so that its last result does not count any longer."""
        result = ProbeResult(False, f"internal error of the node: {type(error).__name__}; its log has the details")
        check.state = CheckState(CheckStatus.FAILURE, last=result, at_ns=self._world.now_ns())
        self._evaluate_checks(allocation_id)

    def _on_probed(self, allocation_id: str, previous: CheckState, current: CheckState) -> None:
        """If the status of a check has changed, evaluate all checks of the allocation."""
        if previous.status is not current.status:
            self._evaluate_checks(allocation_id)

    def _evaluate_checks(self, allocation_id: str) -> None:
        """Apply `ChecksChanged` if the checks that the allocation's health depends on have begun or stopped to pass."""
        health_checks = [
            check for check in self._checks.get(allocation_id, ()) if not check.definition.spec.is_readiness
        ]
        is_passing = all(
            check.probing is not None and check.state.status is CheckStatus.SUCCESS for check in health_checks
        )
        if health_checks and self._is_passing.get(allocation_id, False) is not is_passing:
            self._is_passing[allocation_id] = is_passing
            self._handle_event(allocation_id, events.ChecksChanged(is_passing))
