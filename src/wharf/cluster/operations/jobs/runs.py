"""What users do with a run: cancel it, and answer the gate of a step (record 0308)."""

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.operations.run_changes import MAX_ANSWER_BYTES, cancel_steps, start_builder
from wharf.cluster.operations.step_states import settle_steps, store_step_states
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOBS
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepPhase, limit_detail_bytes
from wharf.contract.model.jobs.steps import suggest_step
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found


class RunCancellation(msgspec.Struct, frozen=True, kw_only=True):
    """A request to cancel a run."""

    namespace: str
    job_id: str
    actor: str = ""  # Who cancels it, as users know them.
    detail: str = ""  # Why, in the words of the caller.
    at_once: bool = False  # Stop also the final steps. A second cancellation does so in any case.
    cause: str = ""  # The origin of the request, for the log.


class GateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a person to the gate of a step."""

    namespace: str
    job_id: str
    step: str
    approve: bool
    text: str = ""  # What the person says about it.
    deadline: int = (
        0  # The deadline of the gate that the person has read, in ns since the epoch; 0: of whichever is open.
    )
    actor: str = ""  # Who answers, as users know them.
    policies: tuple[str, ...] = ()  # The ACL policies of the caller.
    is_management: bool = True  # The caller may answer every gate.
    may_submit: bool = True  # The caller may submit jobs in the namespace, and so answer gates without a policy.
    cause: str = ""


class RunResult(msgspec.Struct, frozen=True):
    """The result of a change of a run."""

    index: int  # The log index of the write.
    job_modify_index: int = 0
    eval_id: str = ""  # The evaluation that was created; empty if none was.
    eval_create_index: int = 0
    is_stopped: bool = False  # The whole job was stopped at once, also its final steps.


def find_run(snapshot: Replica, namespace: str, job_id: str) -> Job:
    """Return a job with steps that run. Raises if it does not exist or is not a run."""
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found(f'job "{job_id}" not found')
    if not job.has_steps:
        raise invalid_request(f'job "{job_id}" is not a run: no group has Depends or another field of steps')
    if not job.is_run:
        raise invalid_request(f'job "{job_id}" is a flow: name one of its runs')
    return job


def cancel_run(
    snapshot: Replica, request: RunCancellation, context: DecisionContext, settings: JobSettings
) -> Decision[RunResult]:
    """Return the decision that cancels a run.

    Its tasks stop, waiting steps end, and final steps run for at most `Flow.FinalTimeout`. A run that is canceled already, or
    a cancellation with `at_once`, stops the job with its final steps. Raises if the run has ended.
    """
    job = find_run(snapshot, request.namespace, request.job_id)
    run = read_snapshot_run(snapshot, job)
    newest = run.newest_attempt
    if job.stop or newest is None or judge_run(run.iter_facts()).outcome:
        raise Refusal(RefusalCode.CONFLICT, f'run "{job.id}" has ended')
    if request.at_once or newest.cancel_cause is not None:
        stop_cause = StepCause(kind=StepCauseKind.STOP, actor=request.actor, detail=request.detail)
        stop = deregister_job(
            snapshot, job.namespace, job.id, context, settings=settings, cause=request.cause, stop_cause=stop_cause
        )
        reply = stop.build_reply

        def build_stop_reply(index: int) -> RunResult:
            result = reply(index)
            return RunResult(index, result.job_modify_index, result.eval_id, result.eval_create_index, is_stopped=True)

        return Decision(stop.write, build_stop_reply)
    builder = start_builder(snapshot, "run-canceled", Cause(CauseKind.REQUEST, request.cause))
    cause = StepCause(kind=StepCauseKind.CANCEL, actor=request.actor, detail=request.detail)
    cancel_steps(builder, job, cause, context.now_ns)
    return _finish(builder, job, make_evaluation(job, context, EvaluationTrigger.RUN_CANCEL))


def make_unknown_step_refusal(job: Job, name: str) -> Refusal:
    """Return the refusal of a step that a run does not have, with a similar name, or the names of its first steps."""
    hint = suggest_step([group.name for group in job.groups], name)
    return not_found(f'run "{job.id}" has no step "{name}"; {hint}')


def answer_gate(snapshot: Replica, request: GateAnswer, context: DecisionContext) -> Decision[RunResult]:
    """Return the decision that approves or rejects the gate of a step.

    An approved step is ready; a rejected one has failed. Raises if the gate is not open, or if the caller may not answer it.
    """
    job = find_run(snapshot, request.namespace, request.job_id)
    run = read_snapshot_run(snapshot, job)
    record = run.steps.get(request.step)
    if record is None:
        raise make_unknown_step_refusal(job, request.step)
    gate = record.facts.group.gate
    if gate is None:
        raise invalid_request(f'step "{request.step}" of run "{job.id}" has no gate')
    if gate.policy and not request.is_management and gate.policy not in request.policies:
        raise Refusal(
            RefusalCode.FORBIDDEN, f'only tokens with the policy "{gate.policy}" may answer the gate of {request.step}'
        )
    if not gate.policy and not request.is_management and not request.may_submit:
        # The API has checked this too, but the job may have been replaced since.
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f"the gate of {request.step} names no policy: the token needs the capability register-job to answer it",
        )
    max_bytes = limit_detail_bytes(MAX_ANSWER_BYTES, len(job.groups))
    if len(request.text.encode()) > max_bytes:
        raise invalid_request(
            f"the text of an answer is {len(request.text.encode())} bytes long: in a run with {len(job.groups)} steps it has at "
            f"most {max_bytes} bytes"
        )
    state = record.facts.state
    if state.phase is StepPhase.WAITING:
        raise Refusal(
            RefusalCode.CONFLICT, f'the gate of step "{request.step}" is not open yet: the step waits for others'
        )
    if state.phase is not StepPhase.GATED or context.now_ns >= state.gate_deadline:
        raise Refusal(RefusalCode.CONFLICT, f'the gate of step "{request.step}" is not open any more')
    if request.deadline and request.deadline != state.gate_deadline:
        raise Refusal(
            RefusalCode.CONFLICT,
            f'the gate of step "{request.step}" was opened again since its question was read: read the run again, then answer',
        )
    builder = start_builder(snapshot, "gate-answered", Cause(CauseKind.REQUEST, request.cause))
    answered = replace(
        state,
        phase=StepPhase.READY if request.approve else StepPhase.FAILED,
        cause=StepCause(kind=StepCauseKind.GATE, actor=request.actor, detail=request.text),
        since=context.now_ns,
    )
    store_step_states(builder, run, {request.step: answered})
    settle_steps(builder, job, context.now_ns)
    return _finish(builder, job, make_evaluation(job, context, EvaluationTrigger.STEP_READY))


def _finish(builder: DerivedWriteBuilder, job: Job, evaluation: Evaluation) -> Decision[RunResult]:
    """Return the decision of a write about a run, with an evaluation that begins ready steps and stops canceled ones."""
    # The job itself is not stored again: it may be as large as the states of its steps, and a write is limited.
    builder.require_unchanged(JOBS, job.namespace, job.id)
    builder.put_record(EVALUATIONS, evaluation)
    return Decision(
        builder.build_write(),
        lambda index: RunResult(index, job.job_modify_index, evaluation.id, index),
    )
