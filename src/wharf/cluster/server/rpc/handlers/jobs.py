"""RPC handlers for jobs: stop, purge, evaluate, dispatch and periodic launch.

Also the duty that continues purges which wait for nodes.
"""

import asyncio
import logging
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs import desired_transitions, periodic, registration
from wharf.cluster.operations.jobs import dispatch as job_dispatch
from wharf.cluster.operations.jobs import purge as purge
from wharf.cluster.operations.jobs.children import ChildJobResult, has_large_children
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


MAX_ALLOCATIONS_ON_LOOP: Final = 500
"""With more allocations of the job, the steps of its purge are decided off the event loop."""


class StopJobRequest(msgspec.Struct, frozen=True):
    """A request to stop a job; with `purge`, also to delete it. `cause`: the id of the HTTP request."""

    namespace: str
    job_id: str
    settings: JobSettings
    eval_priority: int = 0
    """Priority of the evaluation; 0 uses the priority of the job."""
    purge: bool = False
    no_shutdown_delay: bool = False
    """Stop the tasks without waiting for their `shutdown_delay`."""
    cause: str = ""


class EvaluateJobRequest(msgspec.Struct, frozen=True):
    """A request to create an evaluation of a job. `cause`: the id of the HTTP request."""

    namespace: str
    job_id: str
    force_reschedule: bool = False
    """Whether to reschedule the failed allocations of the job first, whatever its reschedule policy allows."""
    cause: str = ""


class ForcePeriodicRequest(msgspec.Struct, frozen=True):
    """A request to launch a periodic job now. `cause`: the id of the HTTP request."""

    namespace: str
    job_id: str
    settings: JobSettings
    cause: str = ""


class DispatchJobRequest(msgspec.Struct, frozen=True):
    """A request to create a child of a parameterized job."""

    dispatch: DispatchRequest
    settings: JobSettings


STOP_JOB: Final = RpcMethod("stop-job", StopJobRequest, JobWriteResult)
EVALUATE_JOB: Final = RpcMethod("evaluate-job", EvaluateJobRequest, JobWriteResult)
FORCE_PERIODIC: Final = RpcMethod("force-periodic", ForcePeriodicRequest, ChildJobResult)
DISPATCH_JOB: Final = RpcMethod("dispatch-job", DispatchJobRequest, ChildJobResult)


class JobHandlers:
    """Handles the calls of other servers and processes that concern jobs."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def stop_job(self, request: StopJobRequest) -> JobWriteResult:
        """Stop the job or, with `purge`, delete it.

        With `no_shutdown_delay`, its allocations are first marked to stop without that delay, because a task reads the
        mark when it is stopped.
        """
        if request.no_shutdown_delay:
            await self._mark_all(
                lambda snapshot, context: desired_transitions.skip_shutdown_delays(
                    snapshot,
                    request.namespace,
                    request.job_id,
                    context,
                    max_allocations=self._brain.max_changes,
                    cause=request.cause,
                )
            )
        return await (self._purge(request) if request.purge else self._stop(request))

    async def _stop(self, request: StopJobRequest) -> JobWriteResult:
        """Stop the job and create its evaluation."""
        return await self._brain.execute(
            lambda snapshot, context: registration.deregister_job(
                snapshot,
                request.namespace,
                request.job_id,
                context,
                eval_priority=request.eval_priority,
                cause=request.cause,
                settings=request.settings,
            )
        )

    async def _purge(self, request: StopJobRequest) -> JobWriteResult:
        """Mark the job for deletion and delete at once all that need not wait for a node to stop allocations.

        If a step is refused, a duty of the leader continues the purge later.
        """
        result = await self._brain.execute(
            lambda snapshot, context: purge.purge_job(
                snapshot,
                request.namespace,
                request.job_id,
                context,
                max_changes=self._brain.max_changes,
                eval_priority=request.eval_priority,
                cause=request.cause,
            )
        )
        try:
            for intent in list(self._brain.replica.iter_all(JOB_PURGES)):
                if (intent.namespace, intent.job_id) == (request.namespace, request.job_id):
                    await self._continue_purge(intent)
        except Refusal as refusal:  # The purge is recorded. The leader's duty continues it.
            log.info("purge will continue later job=%s reason=%s", request.job_id, refusal.text)
        return result

    async def evaluate_job(self, request: EvaluateJobRequest) -> JobWriteResult:
        """Create an evaluation of the job, optionally after marking its failed allocations for rescheduling."""
        key = (request.namespace, request.job_id)
        if request.force_reschedule:
            await self._mark_all(
                lambda snapshot, context: desired_transitions.force_reschedule_allocations(
                    snapshot, *key, context, max_allocations=self._brain.max_changes, cause=request.cause
                )
            )
        return await self._brain.execute(
            lambda snapshot, context: registration.evaluate_job(snapshot, *key, context, cause=request.cause)
        )

    async def force_periodic(self, request: ForcePeriodicRequest) -> ChildJobResult:
        """Launch a periodic job now."""
        return await self._brain.execute(
            lambda snapshot, context: periodic.force_periodic_launch(
                snapshot, request.namespace, request.job_id, context, request.settings, cause=request.cause
            ),
            is_long=has_large_children(self._brain.replica, request.namespace, request.job_id),
        )

    async def dispatch_job(self, request: DispatchJobRequest) -> ChildJobResult:
        """Create a child of a parameterized job."""
        dispatch = request.dispatch
        return await self._brain.execute(
            lambda snapshot, context: job_dispatch.dispatch_job(snapshot, dispatch, context, request.settings),
            is_long=has_large_children(self._brain.replica, dispatch.namespace, dispatch.job_id),
        )

    async def _mark_all(self, operation: desired_transitions.MarkingOperation) -> None:
        """Repeat an operation that marks some allocations of a job, one write at a time, until none remains to be
        marked.
        """
        while (await self._brain.execute(operation)).remaining_count:
            pass

    # -- purges in progress --------------------------------------------------------------------------------------------

    async def continue_purges(self) -> None:
        """Continue all purges whenever one is added or an allocation of a purged job changes. Runs until cancelled."""
        replica = self._brain.replica
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
                    await self._continue_purge(intent)
                await changed.wait()
            finally:
                subscription.close()

    async def _continue_purge(self, intent: JobPurge) -> None:
        """Make all writes of a purge that are possible now. `intent`: the record of the purge."""

        def step(snapshot: Replica, context: DecisionContext) -> Decision[purge.PurgeStepResult]:
            current_intent = snapshot.get(JOB_PURGES, intent.namespace, intent.job_id, intent.job_create_index)
            if current_intent is None:
                return Decision(None, lambda index: purge.PurgeStepResult(index, 0))
            return purge.continue_purge(snapshot, current_intent, context, max_changes=self._brain.max_changes)

        replica = self._brain.replica
        while replica.count_by_index(ALLOCATIONS_OF_JOB, intent.namespace, intent.job_id) > MAX_ALLOCATIONS_ON_LOOP:
            if await self._brain.execute_if_due(step, is_long=True) is None:
                return
        while (await self._brain.execute(step)).changed_count:
            pass


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of jobs with their handlers, and register the purge duty."""
    handlers = JobHandlers(brain)
    brain.duties.append(handlers.continue_purges)
    return (
        (STOP_JOB, handlers.stop_job),
        (EVALUATE_JOB, handlers.evaluate_job),
        (FORCE_PERIODIC, handlers.force_periodic),
        (DISPATCH_JOB, handlers.dispatch_job),
    )
