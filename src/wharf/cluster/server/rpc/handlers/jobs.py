"""What people ask of the leader about jobs: stop and purge them, have them evaluated, make children of them.

The leader also goes on with purges that wait for nodes, whoever began them.
"""

import asyncio
import logging
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs import desired_transitions, periodic, registration
from wharf.cluster.operations.jobs import dispatch as children_to_cluster_operations_jobs_dispatch
from wharf.cluster.operations.jobs import purge as purging
from wharf.cluster.operations.jobs.children import ChildJobResult
from wharf.cluster.operations.jobs.dispatch import DispatchRequest
from wharf.cluster.operations.jobs.registration import JobWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica, watches
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOB_PURGES
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import JobPurge
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import DecisionContext

log = logging.getLogger(__name__)


class StopJobRequest(msgspec.Struct, frozen=True):
    namespace: str
    job_id: str
    settings: JobSettings
    eval_priority: int = 0
    purge: bool = False
    no_shutdown_delay: bool = False
    cause: str = ""


class EvaluateJobRequest(msgspec.Struct, frozen=True):
    namespace: str
    job_id: str
    force_reschedule: bool = False
    cause: str = ""


class ForcePeriodicRequest(msgspec.Struct, frozen=True):
    namespace: str
    job_id: str
    settings: JobSettings
    cause: str = ""


class DispatchJobRequest(msgspec.Struct, frozen=True):
    dispatch: DispatchRequest
    settings: JobSettings


STOP_JOB: Final = RpcMethod("stop-job", StopJobRequest, JobWriteResult)
EVALUATE_JOB: Final = RpcMethod("evaluate-job", EvaluateJobRequest, JobWriteResult)
FORCE_PERIODIC: Final = RpcMethod("force-periodic", ForcePeriodicRequest, ChildJobResult)
DISPATCH_JOB: Final = RpcMethod("dispatch-job", DispatchJobRequest, ChildJobResult)


class JobHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def stop_job(self, wanted: StopJobRequest) -> JobWriteResult:
        """The marks come first: work that hears of its stop must have heard that it is to hurry."""
        if wanted.no_shutdown_delay:
            await self._mark_all(
                lambda snapshot, moment: desired_transitions.skip_shutdown_delays(
                    snapshot,
                    wanted.namespace,
                    wanted.job_id,
                    moment,
                    max_allocations=self._brain.max_changes,
                    cause=wanted.cause,
                )
            )
        return await (self._purge(wanted) if wanted.purge else self._stop(wanted))

    async def _stop(self, wanted: StopJobRequest) -> JobWriteResult:
        return await self._brain.execute(
            lambda snapshot, moment: registration.deregister_job(
                snapshot,
                wanted.namespace,
                wanted.job_id,
                moment,
                eval_priority=wanted.eval_priority,
                cause=wanted.cause,
                settings=wanted.settings,
            )
        )

    async def _purge(self, wanted: StopJobRequest) -> JobWriteResult:
        """Answers when all is gone that need not wait for a node."""
        done = await self._brain.execute(
            lambda snapshot, moment: purging.purge_job(
                snapshot,
                wanted.namespace,
                wanted.job_id,
                moment,
                max_changes=self._brain.max_changes,
                eval_priority=wanted.eval_priority,
                cause=wanted.cause,
            )
        )
        try:
            for intent in list(self._brain.follower.replica.iter_all(JOB_PURGES)):
                if (intent.namespace, intent.job_id) == (wanted.namespace, wanted.job_id):
                    await self._take_steps(intent)
        except Refusal as refusal:  # The job is purged, whatever becomes of this step: whoever leads goes on with it.
            log.info("the purge of %s goes on later: %s", wanted.job_id, refusal.text)
        return done

    async def evaluate_job(self, wanted: EvaluateJobRequest) -> JobWriteResult:
        key = (wanted.namespace, wanted.job_id)
        if wanted.force_reschedule:
            await self._mark_all(
                lambda snapshot, moment: desired_transitions.force_reschedule_allocations(
                    snapshot, *key, moment, max_allocations=self._brain.max_changes, cause=wanted.cause
                )
            )
        return await self._brain.execute(
            lambda snapshot, moment: registration.evaluate_job(snapshot, *key, moment, cause=wanted.cause)
        )

    async def force_periodic(self, wanted: ForcePeriodicRequest) -> ChildJobResult:
        return await self._brain.execute(
            lambda snapshot, moment: periodic.force_periodic_launch(
                snapshot, wanted.namespace, wanted.job_id, moment, wanted.settings, cause=wanted.cause
            )
        )

    async def dispatch_job(self, wanted: DispatchJobRequest) -> ChildJobResult:
        return await self._brain.execute(
            lambda snapshot, moment: children_to_cluster_operations_jobs_dispatch.dispatch_job(
                snapshot, wanted.dispatch, moment, wanted.settings
            )
        )

    async def _mark_all(self, mark: desired_transitions.MarkingOperation) -> None:
        while (await self._brain.execute(mark)).remaining_count:
            pass

    # -- purges that go on ---------------------------------------------------------------------------------------------

    async def continue_purges(self) -> None:
        """A duty of the leader: whenever a node has said that work of a purged job ended, take the next steps."""
        replica = self._brain.follower.replica
        while True:
            changed = asyncio.Event()
            intents = list(replica.iter_all(JOB_PURGES))
            subscription = replica.watches.subscribe(
                [
                    watches.watch_table(JOB_PURGES),
                    *(watches.watch_index(ALLOCATIONS_OF_JOB, intent.namespace, intent.job_id) for intent in intents),
                ],
                changed.set,
            )
            try:
                for intent in intents:
                    await self._take_steps(intent)
                await changed.wait()
            finally:
                subscription.close()

    async def _take_steps(self, intent: JobPurge) -> None:
        def step(snapshot: Replica, moment: DecisionContext) -> Decision[purging.PurgeStepResult]:
            standing = snapshot.get(JOB_PURGES, intent.namespace, intent.job_id, intent.job_create_index)
            if standing is None:
                return Decision(None, lambda index: purging.PurgeStepResult(index, 0))
            return purging.continue_purge(snapshot, standing, moment, max_changes=self._brain.max_changes)

        while (await self._brain.execute(step)).changed_count:
            pass


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    answers = JobHandlers(brain)
    brain.duties.append(answers.continue_purges)
    return (
        (STOP_JOB, answers.stop_job),
        (EVALUATE_JOB, answers.evaluate_job),
        (FORCE_PERIODIC, answers.force_periodic),
        (DISPATCH_JOB, answers.dispatch_job),
    )
