"""What a brain is asked to think through without doing it: dry runs of jobs, and why work is where it is.

Any server's brain answers from its own replica, as soon as that is as new as whoever asks. It thinks on the sideline,
never on its loop.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.cluster.controllers.rebalancing import start_moves
from wharf.cluster.operations.explanations.evaluations import explain_evaluation
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.jobs.plan import DryRun, dry_run_job
from wharf.cluster.scheduling.rebalancing import propose_moves
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.server.worker_process import WorkerProcess
from wharf.contract.model.explanations import EvaluationExplanation, JobExplanation
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.operator.rebalancing import Rebalancing
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import DecisionContext


class DryRunJobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`index`: what whoever asks has seen of the state."""

    index: int
    job: Job
    settings: JobSettings
    with_diff: bool
    warnings_of_reading: tuple[str, ...] = ()
    launches: int = 1


class ExplainJobRequest(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    namespace: str
    job_id: str


class ExplainEvaluationRequest(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    eval_id: str


class RebalanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`only_plan`: nothing is moved. `cause`: the request that asks for it."""

    only_plan: bool
    cause: str = ""


class WorkerReply(msgspec.Struct, frozen=True):
    """What comes back from the sideline: an answer, or a refusal."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    code: RefusalCode | None = None
    text: str = ""


DRY_RUN_JOB: Final = RpcMethod("try-job", DryRunJobRequest, DryRun)
EXPLAIN_JOB: Final = RpcMethod("explain-job", ExplainJobRequest, JobExplanation)
EXPLAIN_EVALUATION: Final = RpcMethod("explain-evaluation", ExplainEvaluationRequest, EvaluationExplanation)
REBALANCE: Final = RpcMethod("rebalance", RebalanceRequest, Rebalancing)

_encode = msgspec.msgpack.Encoder().encode
_read_thought = msgspec.msgpack.Decoder(WorkerReply).decode


class DryRunHandlers:
    def __init__(self, brain: Brain, sideline: WorkerProcess) -> None:
        self._brain = brain
        self._sideline = sideline

    async def dry_run_job(self, asked: DryRunJobRequest) -> msgspec.Raw:
        brain = self._brain
        # The ids of evaluations that will never be. From the kernel: the generator of a copied process would give the
        # same ones again, here or to real ones.
        moment = DecisionContext(brain.world.now_ns(), brain.world.new_secret)
        return await self._think(
            asked.index,
            lambda: dry_run_job(
                brain.follower.replica,
                asked.job,
                moment,
                asked.settings,
                should_include_diff=asked.with_diff,
                parser_warnings=asked.warnings_of_reading,
                max_launches=asked.launches,
                cache=brain.ground,
            ),
        )

    async def explain_job(self, asked: ExplainJobRequest) -> msgspec.Raw:
        brain = self._brain
        return await self._think(
            asked.index,
            lambda: explain_job(brain.follower.replica, asked.namespace, asked.job_id, lambda: brain.ground),
        )

    async def explain_evaluation(self, asked: ExplainEvaluationRequest) -> msgspec.Raw:
        brain = self._brain
        return await self._think(
            asked.index, lambda: explain_evaluation(brain.follower.replica, asked.eval_id, lambda: brain.ground)
        )

    async def rebalance(self, asked: RebalanceRequest) -> msgspec.Raw:
        """What is found on the sideline is begun here, as far as it still holds."""
        brain = self._brain
        thought = await self._think(
            brain.follower.replica.index, lambda: propose_moves(brain.follower.replica, brain.ground)
        )
        found = msgspec.msgpack.decode(thought, type=Rebalancing)
        if asked.only_plan or not found.moves:
            return thought
        begun = await brain.execute(
            lambda snapshot, moment: start_moves(
                snapshot, found.moves, moment, max_changes=brain.max_changes, cause=asked.cause
            )
        )
        return msgspec.Raw(_encode(msgspec.structs.replace(found, moving=begun.move_count)))

    async def _think(self, index: int, decide: Callable[[], object]) -> msgspec.Raw:
        await self._brain.follower.wait_until_applied(index)
        thought = _read_thought(await self._sideline.run(lambda: _thought(decide)))
        if thought.code is not None:
            raise Refusal(thought.code, thought.text)
        return thought.answer


def _thought(decide: Callable[[], object]) -> bytes:
    try:
        return _encode(WorkerReply(msgspec.Raw(_encode(decide()))))
    except Refusal as refusal:
        return _encode(WorkerReply(code=refusal.code, text=refusal.text))


def build_routes(brain: Brain, sideline: WorkerProcess) -> tuple[RpcRoute, ...]:
    thinking = DryRunHandlers(brain, sideline)
    return (
        (DRY_RUN_JOB, thinking.dry_run_job),
        (EXPLAIN_JOB, thinking.explain_job),
        (EXPLAIN_EVALUATION, thinking.explain_evaluation),
        (REBALANCE, thinking.rebalance),
    )
