"""RPC handlers for dry runs, reports of use and rebalancing, which compute without writing or before writing.

Every server's brain can answer from its own replica once that has reached the caller's index. Computations run in a
worker process.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.cluster.controllers.rebalancing import start_moves
from wharf.cluster.operations.jobs.plan import DryRun, dry_run_job
from wharf.cluster.operations.usage import report_usage
from wharf.cluster.scheduling.rebalancing import propose_moves
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.server.worker_process import WorkerProcess
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.operator.rebalancing import Rebalancing
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.model.times import DecisionContext
from wharf.contract.model.usage import ClusterUsage, UsageOrder

ComputationOwner = tuple[str, ...]
"""The caller that requested a computation. Owners share the worker fairly. Servers of older versions send none."""
NO_OWNER: Final[ComputationOwner] = ()


class DryRunJobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the plan that the scheduler would make for a job."""

    index: int
    """The log index that the caller has seen. The brain computes from this state or a newer one."""
    job: msgspec.Raw
    """The encoded `Job`. The worker decodes it, because a large one would hold the brain's loop."""
    settings: JobSettings
    with_diff: bool
    """Whether to include the differences from the registered job."""
    warnings_of_reading: tuple[str, ...] = ()
    """Warnings from parsing the request body, such as unknown fields."""
    sensitive_fields: tuple[str, ...] = ()
    """JSON pointers of the fields of the job that the differences do not show."""
    launches: int = 1
    """How many next launches of a periodic job to list."""
    owner: ComputationOwner = NO_OWNER


class DryRunReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a dry run, in the form in which the api process sends it on."""

    plan: DryRun
    """Without its difference."""
    diff: bytes = b""
    """The difference to the stored job as JSON, if requested. A process would hold its loop for 25 ms to decode and encode
    that of a job with 5,000 actions."""


class ReportUsageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to report the use of the cluster. `index`: the log index that the caller has seen."""

    index: int
    order: UsageOrder
    limit: int
    namespaces: tuple[str, ...] | None
    """The namespaces whose jobs the caller may list; None: all."""
    owner: ComputationOwner = NO_OWNER


class RebalanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to move allocations to better nodes."""

    only_plan: bool
    """Whether to return the proposed moves without starting them."""
    cause: str = ""
    """The id of the HTTP request."""
    owner: ComputationOwner = NO_OWNER


class WorkerReply(msgspec.Struct, frozen=True):
    """The outcome of a computation in the worker process: an encoded result, or the parts of a `Refusal`."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    """The result in MessagePack; nil if the computation was refused."""
    code: RefusalCode | None = None
    """The code of the refusal; `None` for a result."""
    text: str = ""
    reason: RefusalReason = RefusalReason.UNSPECIFIED


DRY_RUN_JOB: Final = RpcMethod("try-job", DryRunJobRequest, DryRunReply, is_repeatable=True)
REPORT_USAGE: Final = RpcMethod("report-usage", ReportUsageRequest, ClusterUsage, is_repeatable=True)
REBALANCE: Final = RpcMethod("rebalance", RebalanceRequest, Rebalancing)

_encode = msgspec.msgpack.Encoder().encode
_decode_worker_reply = msgspec.msgpack.Decoder(WorkerReply).decode


class DryRunHandlers:
    """Handles RPC methods whose work is a long computation."""

    def __init__(self, brain: Brain, worker: WorkerProcess) -> None:
        self._brain = brain
        self._worker = worker

    async def dry_run_job(self, request: DryRunJobRequest) -> msgspec.Raw:
        """Return the plan for a job as an encoded `DryRunReply`, without registering the job."""
        brain = self._brain
        # Ids of evaluations that are never stored. They come from the kernel: a forked process shares the state of the
        # id generator, so it would repeat ids.
        context = DecisionContext(brain.world.now_ns(), brain.world.new_secret)
        return await self._run_in_worker(
            request.index,
            lambda: _build_reply(
                dry_run_job(
                    brain.replica,
                    msgspec.msgpack.decode(request.job, type=Job),
                    context,
                    request.settings,
                    should_include_diff=request.with_diff,
                    parser_warnings=request.warnings_of_reading,
                    max_launches=request.launches,
                    sensitive_fields=request.sensitive_fields,
                    cache=brain.cache,
                )
            ),
            request.owner,
        )

    async def report_usage(self, request: ReportUsageRequest) -> msgspec.Raw:
        """Return an encoded `ClusterUsage`: the fullest nodes, the largest jobs, and what waits."""
        brain = self._brain
        return await self._run_in_worker(
            request.index,
            lambda: report_usage(
                brain.replica,
                brain.cache.fleet,
                order=request.order,
                limit=request.limit,
                namespaces=request.namespaces,
            ),
            request.owner,
        )

    async def rebalance(self, request: RebalanceRequest) -> msgspec.Raw:
        """Propose moves of allocations in the worker, then start those that are still valid. Return an encoded
        `Rebalancing`.

        With `only_plan`, no move is started.
        """
        brain = self._brain
        reply = await self._run_in_worker(
            brain.replica.index, lambda: propose_moves(brain.replica, brain.cache), request.owner
        )
        proposal = msgspec.msgpack.decode(reply, type=Rebalancing)
        if request.only_plan or not proposal.moves:
            return reply
        started = await brain.execute(
            lambda snapshot, context: start_moves(
                snapshot, proposal.moves, context, max_changes=brain.max_changes, cause=request.cause
            )
        )
        return msgspec.Raw(_encode(msgspec.structs.replace(proposal, moving=started.move_count)))

    async def _run_in_worker(self, index: int, compute: Callable[[], object], owner: ComputationOwner) -> msgspec.Raw:
        """Wait until the replica has reached `index`, run `compute` in the worker process and return its encoded
        result.

        Raises the `Refusal` that `compute` raises.
        """
        await self._brain.follower.wait_until_applied(index)
        reply = _decode_worker_reply(await self._worker.run(lambda: _compute_reply(compute), owner))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text, reply.reason)
        return reply.answer


def _build_reply(plan: DryRun) -> DryRunReply:
    """Return the result of a dry run with its difference as JSON."""
    diff = b"" if plan.diff is None else msgspec.json.encode(plan.diff)
    return DryRunReply(plan=msgspec.structs.replace(plan, diff=None), diff=diff)


def _compute_reply(compute: Callable[[], object]) -> bytes:
    """Run the computation and return its result or its refusal as an encoded `WorkerReply`."""
    try:
        return _encode(WorkerReply(msgspec.Raw(_encode(compute()))))
    except Refusal as refusal:
        return _encode(WorkerReply(code=refusal.code, text=refusal.text, reason=refusal.reason))


def build_routes(brain: Brain, worker: WorkerProcess) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of dry runs, reports and rebalancing with their handlers."""
    handlers = DryRunHandlers(brain, worker)
    return (
        (DRY_RUN_JOB, handlers.dry_run_job),
        (REPORT_USAGE, handlers.report_usage),
        (REBALANCE, handlers.rebalance),
    )
