"""What people ask of the leader about jobs: stop and purge them, have them evaluated, make children of them.

The leader also goes on with purges that wait for nodes, whoever began them.
"""

import asyncio
import logging
from typing import Final

import msgspec

from wharf.model.job_settings import JobSettings
from wharf.model.moment import Moment
from wharf.model.purge import JobPurge
from wharf.model.refusal import Refusal
from wharf.operations import children, jobs, marks, purging
from wharf.operations.children import ChildMade, Dispatch
from wharf.operations.decision import Decision
from wharf.operations.jobs import Registered
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject
from wharf.state import Replica, watches
from wharf.state.tables import ALLOCATIONS_OF_JOB, JOB_PURGES

log = logging.getLogger(__name__)


class JobToStop(msgspec.Struct, frozen=True):
    namespace: str
    job_id: str
    settings: JobSettings
    eval_priority: int = 0
    purge: bool = False
    no_shutdown_delay: bool = False
    cause: str = ""


class JobToEvaluate(msgspec.Struct, frozen=True):
    namespace: str
    job_id: str
    force_reschedule: bool = False
    cause: str = ""


class JobToLaunch(msgspec.Struct, frozen=True):
    namespace: str
    job_id: str
    settings: JobSettings
    cause: str = ""


class JobToDispatch(msgspec.Struct, frozen=True):
    dispatch: Dispatch
    settings: JobSettings


STOP_JOB: Final = Subject("stop-job", JobToStop, Registered)
EVALUATE_JOB: Final = Subject("evaluate-job", JobToEvaluate, Registered)
FORCE_PERIODIC: Final = Subject("force-periodic", JobToLaunch, ChildMade)
DISPATCH_JOB: Final = Subject("dispatch-job", JobToDispatch, ChildMade)


class Jobs:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def stop(self, wanted: JobToStop) -> Registered:
        """The marks come first: work that hears of its stop must have heard that it is to hurry."""
        if wanted.no_shutdown_delay:
            await self._mark_all(
                lambda snapshot, moment: marks.mark_to_hurry(
                    snapshot,
                    wanted.namespace,
                    wanted.job_id,
                    moment,
                    at_most=self._brain.changes_max,
                    cause=wanted.cause,
                )
            )
        return await (self._purge(wanted) if wanted.purge else self._stop(wanted))

    async def _stop(self, wanted: JobToStop) -> Registered:
        return await self._brain.decide(
            lambda snapshot, moment: jobs.deregister(
                snapshot,
                wanted.namespace,
                wanted.job_id,
                moment,
                eval_priority=wanted.eval_priority,
                cause=wanted.cause,
                settings=wanted.settings,
            )
        )

    async def _purge(self, wanted: JobToStop) -> Registered:
        """Answers when all is gone that need not wait for a node."""
        done = await self._brain.decide(
            lambda snapshot, moment: purging.purge(
                snapshot,
                wanted.namespace,
                wanted.job_id,
                moment,
                changes_max=self._brain.changes_max,
                eval_priority=wanted.eval_priority,
                cause=wanted.cause,
            )
        )
        try:
            for intent in list(self._brain.follower.replica.all(JOB_PURGES)):
                if (intent.namespace, intent.job_id) == (wanted.namespace, wanted.job_id):
                    await self._take_steps(intent)
        except Refusal as refusal:  # The job is purged, whatever becomes of this step: whoever leads goes on with it.
            log.info("the purge of %s goes on later: %s", wanted.job_id, refusal.text)
        return done

    async def evaluate(self, wanted: JobToEvaluate) -> Registered:
        key = (wanted.namespace, wanted.job_id)
        if wanted.force_reschedule:
            await self._mark_all(
                lambda snapshot, moment: marks.mark_to_reschedule(
                    snapshot, *key, moment, at_most=self._brain.changes_max, cause=wanted.cause
                )
            )
        return await self._brain.decide(
            lambda snapshot, moment: marks.evaluate(snapshot, *key, moment, cause=wanted.cause)
        )

    async def force_periodic(self, wanted: JobToLaunch) -> ChildMade:
        return await self._brain.decide(
            lambda snapshot, moment: children.force_periodic(
                snapshot, wanted.namespace, wanted.job_id, moment, wanted.settings, cause=wanted.cause
            )
        )

    async def dispatch(self, wanted: JobToDispatch) -> ChildMade:
        return await self._brain.decide(
            lambda snapshot, moment: children.dispatch(snapshot, wanted.dispatch, moment, wanted.settings)
        )

    async def _mark_all(self, mark: marks.Marking) -> None:
        while (await self._brain.decide(mark)).count:
            pass

    # -- purges that go on ---------------------------------------------------------------------------------------------

    async def go_on_purging(self) -> None:
        """A duty of the leader: whenever a node has said that work of a purged job ended, take the next steps."""
        replica = self._brain.follower.replica
        while True:
            changed = asyncio.Event()
            intents = list(replica.all(JOB_PURGES))
            subscription = replica.watches.subscribe(
                [
                    watches.whole(JOB_PURGES),
                    *(watches.those(ALLOCATIONS_OF_JOB, intent.namespace, intent.job_id) for intent in intents),
                ],
                changed.set,
            )
            try:
                for intent in intents:
                    await self._take_steps(intent)
                await changed.wait()
            finally:
                subscription.end()

    async def _take_steps(self, intent: JobPurge) -> None:
        def step(snapshot: Replica, moment: Moment) -> Decision[purging.PurgeStep]:
            standing = snapshot.get(JOB_PURGES, intent.namespace, intent.job_id, intent.job_create_index)
            if standing is None:
                return Decision(None, lambda index: purging.PurgeStep(index, 0))
            return purging.go_on(snapshot, standing, moment, changes_max=self._brain.changes_max)

        while (await self._brain.decide(step)).changed:
            pass


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    answers = Jobs(brain)
    brain.duties.append(answers.go_on_purging)
    return (
        (STOP_JOB, answers.stop),
        (EVALUATE_JOB, answers.evaluate),
        (FORCE_PERIODIC, answers.force_periodic),
        (DISPATCH_JOB, answers.dispatch),
    )
