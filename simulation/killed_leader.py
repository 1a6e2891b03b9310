"""One run in a cluster without other faults, whose leader is killed at one write of the run: just before or just after its commit."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from simulation.cluster import JOB_SETTINGS, ServerProcess
from simulation.process import current_process
from simulation.run import SeedRun
from simulation.run_moments import read_moments
from simulation.timeline import InvariantViolation
from wharf.cluster.engines.port import EncodedWrite, WriteConflict, WriteOutcome
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.registration import JobRegistration, register_job
from wharf.cluster.operations.jobs.runs import GateAnswer, answer_gate
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, JOBS, LEADER
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.step_states import StepPhase
from wharf.contract.model.refusal import Refusal

START_S: Final = 8.0
RESTART_S: Final = 2.0
MAX_RUN_S: Final = 400.0
"""A new leader waits 40 s for the nodes, and each step runs for a few seconds."""


class KilledLeaderRun(SeedRun):
    """A run of one job. The leader is killed at the write with the number `kill_at` of those that concern the job."""

    def __init__(self, seed: int, job: Job, *, kill_at: int, is_before: bool) -> None:
        super().__init__(seed)
        self.job = job
        self.kill_at = kill_at
        self.is_before = is_before
        self.write_kinds: list[str] = []
        """The kinds of the writes that concern the job, also those that were not committed."""
        self._commit = self.log.commit
        self.log.commit = self._commit_or_kill  # type: ignore[method-assign]  # the fault

    def _commit_or_kill(self, write: EncodedWrite) -> WriteOutcome:
        """Commit a write. If it is the chosen one, kill the process that writes it, and the leader."""
        if not self._concerns_run(write):
            return self._commit(write)
        self.write_kinds.append(write.kind)
        is_chosen = len(self.write_kinds) == self.kill_at
        outcome = WriteConflict(()) if is_chosen and self.is_before else self._commit(write)
        if is_chosen:
            writer = current_process()
            for server in self.cluster.server_processes:
                if server.process is not None and (server.process is writer or self._leads(server)):
                    self._kill(server)
        return outcome

    def _concerns_run(self, write: EncodedWrite) -> bool:
        name = self.job.id.encode()
        return any(name in change.key.encode() or (change.data and name in change.data) for change in write.changes)

    def _leads(self, server: ServerProcess) -> bool:
        leader = self.record_history.replica.get(LEADER)
        return server.role == "brain" and leader is not None and leader.member_id == server.member.name

    def _kill(self, server: ServerProcess) -> None:
        if not server.is_alive:
            return
        self.cluster.kill(server)

        async def restart() -> None:
            await asyncio.sleep(RESTART_S)
            server.start()

        self.cluster.log_world.start_task(restart(), name="restart")

    async def _run_phases(self) -> None:
        """Register the job, approve its gates, and wait for its end."""
        self.cluster.start()
        await asyncio.sleep(START_S)
        deadline_s = self.loop.time() + MAX_RUN_S
        while not self._has_ended():
            self._act()
            await asyncio.sleep(1.0)
            if self.loop.time() > deadline_s:
                raise InvariantViolation(
                    f"{self.job.id} does not end; its writes: {' '.join(self.write_kinds)}", self.job.id
                )
        self.run_invariants.require_ended()

    def _find_job(self) -> Job | None:
        job: Job | None = self.record_history.replica.get(JOBS, self.job.namespace, self.job.id)
        return job

    def _has_ended(self) -> bool:
        job = self._find_job()
        return job is not None and job.status is JobStatus.DEAD

    def _act(self) -> None:
        """Register the job if it does not exist, and approve the gates that are open. Nobody waits for the outcome."""
        api = next((member.api for member in self.cluster.members if member.api.is_alive), None)
        if api is None or api.server is None or api.process is None or not api.server.replica.index:
            return
        if self._find_job() is None:
            registration = JobRegistration(job=self.job)
            self._execute(api, lambda snapshot, context: register_job(snapshot, registration, context, JOB_SETTINGS))
        for attempt in self.record_history.replica.iter_all(ARRAY_ATTEMPTS):
            for name, part in attempt.groups.items():
                if part.step is not None and part.step.phase is StepPhase.GATED:
                    answer = GateAnswer(
                        namespace=self.job.namespace, job_id=self.job.id, step=name, approve=True, actor="eve"
                    )
                    self._execute(api, _make_answer(answer))

    def _execute(self, api: ServerProcess, decide: Callable[[Replica, DecisionContext], Decision[Any]]) -> None:
        async def execute() -> None:
            assert api.server is not None, "the process has started"
            try:
                await api.server.writer.execute(decide)
            except Refusal as refusal:
                self.timeline.add_event(f"refused: {refusal.text}", self.job.id)

        assert api.process is not None, "the process has started"
        api.process.start(execute(), name="user")

    def read_elements(self) -> dict[str, str]:
        """Return the results of the elements of each step."""
        job = self._find_job()
        assert job is not None, "the job was registered"
        return {name: moment.elements for name, moment in read_moments(self.record_history.replica, job).items()}


def _make_answer(answer: GateAnswer) -> Callable[[Replica, DecisionContext], Decision[Any]]:
    return lambda snapshot, context: answer_gate(snapshot, answer, context)
