"""What a brain is asked to think through without doing it: dry runs of jobs, and why work is where it is.

Any server's brain answers from its own replica, as soon as that is as new as whoever asks. It thinks on the sideline,
never on its loop.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.controllers.rebalancer import begin
from wharf.model.explanation import EvaluationExplanation, Explanation
from wharf.model.job import Job
from wharf.model.job_settings import JobSettings
from wharf.model.moment import Moment
from wharf.model.rebalancing import Rebalancing
from wharf.model.refusal import Code, Refusal
from wharf.operations.explaining import explain
from wharf.operations.explaining_work import explain_evaluation
from wharf.operations.planning import DryRun, dry_run
from wharf.scheduling.rebalancing import rebalance
from wharf.server.brain import Brain
from wharf.server.sideline import Sideline
from wharf.server.subject import AnsweredBy, Subject


class JobToTry(msgspec.Struct, frozen=True, kw_only=True):
    """`index`: what whoever asks has seen of the state."""

    index: int
    job: Job
    settings: JobSettings
    with_diff: bool
    warnings_of_reading: tuple[str, ...] = ()
    launches: int = 1


class JobToExplain(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    namespace: str
    job_id: str


class EvaluationToExplain(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    eval_id: str


class ToRebalance(msgspec.Struct, frozen=True, kw_only=True):
    """`only_plan`: nothing is moved. `cause`: the request that asks for it."""

    only_plan: bool
    cause: str = ""


class Thought(msgspec.Struct, frozen=True):
    """What comes back from the sideline: an answer, or a refusal."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    code: Code | None = None
    text: str = ""


TRY_JOB: Final = Subject("try-job", JobToTry, DryRun)
EXPLAIN_JOB: Final = Subject("explain-job", JobToExplain, Explanation)
EXPLAIN_EVALUATION: Final = Subject("explain-evaluation", EvaluationToExplain, EvaluationExplanation)
REBALANCE: Final = Subject("rebalance", ToRebalance, Rebalancing)

_encode = msgspec.msgpack.Encoder().encode
_read_thought = msgspec.msgpack.Decoder(Thought).decode


class Forethought:
    def __init__(self, brain: Brain, sideline: Sideline) -> None:
        self._brain = brain
        self._sideline = sideline

    async def try_job(self, asked: JobToTry) -> msgspec.Raw:
        brain = self._brain
        # The ids of evaluations that will never be. From the kernel: the generator of a copied process would give the
        # same ones again, here or to real ones.
        moment = Moment(brain.world.now_ns(), brain.world.new_secret)
        return await self._think(
            asked.index,
            lambda: dry_run(
                brain.follower.replica,
                asked.job,
                moment,
                asked.settings,
                with_diff=asked.with_diff,
                warnings_of_reading=asked.warnings_of_reading,
                launches=asked.launches,
                ground=brain.ground,
            ),
        )

    async def explain_job(self, asked: JobToExplain) -> msgspec.Raw:
        brain = self._brain
        return await self._think(
            asked.index,
            lambda: explain(brain.follower.replica, asked.namespace, asked.job_id, lambda: brain.ground),
        )

    async def explain_evaluation(self, asked: EvaluationToExplain) -> msgspec.Raw:
        brain = self._brain
        return await self._think(
            asked.index, lambda: explain_evaluation(brain.follower.replica, asked.eval_id, lambda: brain.ground)
        )

    async def rebalance(self, asked: ToRebalance) -> msgspec.Raw:
        """What is found on the sideline is begun here, as far as it still holds."""
        brain = self._brain
        thought = await self._think(
            brain.follower.replica.index, lambda: rebalance(brain.follower.replica, brain.ground)
        )
        found = msgspec.msgpack.decode(thought, type=Rebalancing)
        if asked.only_plan or not found.moves:
            return thought
        begun = await brain.decide(
            lambda snapshot, moment: begin(
                snapshot, found.moves, moment, changes_max=brain.changes_max, cause=asked.cause
            )
        )
        return msgspec.Raw(_encode(msgspec.structs.replace(found, moving=begun.moving)))

    async def _think(self, index: int, decide: Callable[[], object]) -> msgspec.Raw:
        await self._brain.follower.reached(index)
        thought = _read_thought(await self._sideline.run(lambda: _thought(decide)))
        if thought.code is not None:
            raise Refusal(thought.code, thought.text)
        return thought.answer


def _thought(decide: Callable[[], object]) -> bytes:
    try:
        return _encode(Thought(msgspec.Raw(_encode(decide()))))
    except Refusal as refusal:
        return _encode(Thought(code=refusal.code, text=refusal.text))


def answers_of(brain: Brain, sideline: Sideline) -> tuple[AnsweredBy, ...]:
    thinking = Forethought(brain, sideline)
    return (
        (TRY_JOB, thinking.try_job),
        (EXPLAIN_JOB, thinking.explain_job),
        (EXPLAIN_EVALUATION, thinking.explain_evaluation),
        (REBALANCE, thinking.rebalance),
    )
