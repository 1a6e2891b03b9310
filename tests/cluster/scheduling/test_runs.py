"""Runs: which steps begin, what follows from the end of a step, and what cancellations and gates do."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS
from wharf.cluster.controllers.runs import expire_run
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.operations.jobs.plan import dry_run_job
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.operations.jobs.rerun import RerunRequest, rerun_elements
from wharf.cluster.operations.jobs.run_retry import RunRetry, plan_retry, retry_run
from wharf.cluster.operations.jobs.runs import (
    GateAnswer,
    RunCancellation,
    answer_gate,
    cancel_run,
)
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.scheduling.steps.decider import judge_step
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, ARRAY_RESULTS, CLUSTER_FORMAT, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import JobStatus, Parameterized
from wharf.contract.model.jobs.step_states import StepOutcome
from wharf.contract.model.jobs.steps import Flow, Gate, Need
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import SECOND, to_datetime

NO_RETRY = ReschedulePolicy(unlimited=False)


def a_step(name: str, *needs: str | Need, **fields: Any) -> TaskGroup:
    depends = tuple(need if isinstance(need, Need) else Need(on=need) for need in needs)
    return a_group(
        name,
        *fields.pop("tasks", ()),
        **{"count": 1, "reschedule_policy": NO_RETRY, "depends": depends or None, **fields},
    )


class Run(SimulatedCluster):
    """A cluster with a run `shop`."""

    def __init__(self, *steps: TaskGroup, **fields: Any) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.with_node("node-0", cpu=100_000, memory_mb=1_000_000)
        self.submit(*steps, **fields)

    def submit(self, *steps: TaskGroup, **fields: Any) -> None:
        job = a_batch_job("shop", *steps)
        self.register(canonicalize_job(replace(job, **fields), SETTINGS))
        self.process_pending()

    @property
    def facts(self) -> Any:
        return read_snapshot_run(self.replica, self.job()).get_facts()

    @property
    def phases(self) -> dict[str, str]:
        return {name: each.state.phase.value for name, each in self.facts.items()}

    @property
    def outcomes(self) -> dict[str, str]:
        return {name: judge_step(each).value for name, each in self.facts.items()}

    @property
    def outcome(self) -> str:
        """How the run ended, as lists of jobs show it."""
        summary = self.replica.get(JOB_SUMMARIES, "default", "shop")
        assert summary is not None
        return summary.outcome

    @property
    def alive(self) -> dict[str, Allocation]:
        """The allocations that have not ended, by name without the job. No element has two."""
        found = [each for each in self.list_allocations() if not each.is_client_terminal]
        by_name = {each.name.removeprefix("shop."): each for each in found}
        assert len(by_name) == len(found)
        return by_name

    def end(self, *names: str, status: ClientStatus = ClientStatus.COMPLETE) -> None:
        """Let the allocations of these elements end, and process what follows."""
        alive = self.alive
        for name in names:
            self.report(alive[name if "[" in name else f"{name}[0]"], status)
        self.process_pending()

    def kill(self, name: str) -> None:
        """Let the node report that it has killed the task of an element, and process what follows."""
        self.report(self.alive[f"{name}[0]"], ClientStatus.COMPLETE, successful=False)
        self.process_pending()

    def fail(self, *names: str) -> None:
        self.end(*names, status=ClientStatus.FAILED)

    def cancel(self, **fields: Any) -> Any:
        request = RunCancellation(namespace="default", job_id="shop", **{"actor": "ada", **fields})
        result = self.do(cancel_run(self.replica, request, self.moment, SETTINGS))
        self.process_pending()
        return result

    def retry(self, **fields: Any) -> Any:
        request = RunRetry(namespace="default", job_id="shop", **fields)
        result = self.do(retry_run(self.replica, request, self.moment, SETTINGS))
        self.process_pending()
        return result

    def plan_retry(self, **fields: Any) -> Any:
        return plan_retry(self.replica, RunRetry(namespace="default", job_id="shop", **fields))

    def answer(self, step: str, *, approve: bool, **fields: Any) -> Any:
        request = GateAnswer(namespace="default", job_id="shop", step=step, approve=approve, actor="ada", **fields)
        result = self.do(answer_gate(self.replica, request, self.moment))
        self.process_pending()
        return result


@pytest.mark.parametrize(
    ("node_offset_s", "run_s", "expected_s"),
    [
        (0, 3, 3),
        (-500, 3, 3),  # The clock of the node is behind that of the servers.
        (0, 90, 60),  # It cannot have begun before its step was ready.
    ],
)
def test_a_step_that_begins_and_ends_in_one_report_took_as_long_as_its_node_says(
    node_offset_s: int, run_s: int, expected_s: int
) -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.pass_time(60)
    ended = to_datetime(run.now_ns + node_offset_s * SECOND)
    began = to_datetime(run.now_ns + (node_offset_s - run_s) * SECOND)
    state = TaskState(state=TaskStatus.DEAD, started_at=began, finished_at=ended)

    report = AllocationReport(run.alive["build[0]"].id, ClientStatus.COMPLETE, task_states={"server": state})
    run.lead(apply_reports(run.replica, "node-0", [report], run.moment, is_complete=False, max_evaluations=100))

    step = run.facts["build"].state
    assert (step.ended_at - step.began_at) / SECOND == expected_s


def test_a_stopped_version_of_a_run_that_has_not_ended_may_not_change_its_steps() -> None:
    steps = (a_step("build"), a_step("test", "build"))
    run = Run(*steps)

    with pytest.raises(Refusal, match="is a run that has not ended, and its list of groups would change"):
        run.submit(a_step("other"), stop=True)
    run.submit(*steps, stop=True)
    assert (run.phases, run.job().status) == ({"build": "canceled", "test": "canceled"}, JobStatus.RUNNING)
    run.kill("build")

    assert run.job().status is JobStatus.DEAD


def test_an_answer_to_a_gate_that_was_opened_again_is_refused() -> None:
    run = Run(a_step("ship", gate=Gate()))
    read_deadline = run.facts["ship"].state.gate_deadline
    run.cancel()
    run.pass_time(1)
    run.retry()

    with pytest.raises(Refusal, match='the gate of step "ship" was opened again since its question was read'):
        run.answer("ship", approve=True, deadline=read_deadline)
    run.answer("ship", approve=True, deadline=run.facts["ship"].state.gate_deadline)

    assert run.phases == {"ship": "ready"}


def test_a_gate_that_names_no_policy_any_more_is_answered_only_by_callers_who_may_submit_jobs() -> None:
    # The API has checked the caller against an earlier job with this ID, whose gate named a policy of the caller.
    run = Run(a_step("ship", gate=Gate()))

    with pytest.raises(Refusal, match="the gate of ship names no policy: the token needs the capability register-job"):
        run.answer("ship", approve=True, is_management=False, may_submit=False, policies=("deployers",))
    run.answer("ship", approve=True, is_management=False, may_submit=True)

    assert run.phases == {"ship": "ready"}


def test_a_step_begins_after_the_step_that_it_needs() -> None:
    run = Run(a_step("build"), a_step("test", "build"))

    assert list(run.alive) == ["build[0]"]
    assert run.phases == {"build": "ready", "test": "waiting"}
    run.end("build")
    assert list(run.alive) == ["test[0]"]
    run.end("test")
    assert (run.outcome, run.job().status) == ("succeeded", JobStatus.DEAD)


def test_a_step_whose_need_failed_is_skipped_in_the_same_write() -> None:
    run = Run(a_step("build"), a_step("test", "build"), a_step("ship", "test"))

    run.report(run.alive["build[0]"], ClientStatus.FAILED)

    assert run.phases == {"build": "ready", "test": "skipped", "ship": "skipped"}
    assert (run.outcome, run.job().status) == ("failed", JobStatus.DEAD)
    cause = run.facts["ship"].state.cause
    assert (cause.kind, cause.step, cause.outcome) == ("need", "test", StepOutcome.SKIPPED_BY_NEED)


def test_a_step_that_may_fail_does_not_stop_the_run() -> None:
    run = Run(a_step("check", may_fail=True), a_step("ship", "check"))

    run.fail("check")
    run.end("ship")

    assert run.outcome == "succeeded-with-failures"


def test_a_waiting_run_is_not_dead() -> None:
    run = Run(a_step("build"), a_step("test", "build", gate=Gate()))

    run.end("build")

    assert run.phases["test"] == "gated"
    assert run.job().status is JobStatus.PENDING


def test_the_status_of_a_run_does_not_change_between_two_steps() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    version = run.job().modify_index

    run.report(run.alive["build[0]"], ClientStatus.COMPLETE)  # The next step is ready, and not placed yet.
    assert (run.alive, run.job().status) == ({}, JobStatus.RUNNING)
    run.process_pending()

    assert (run.job().status, run.job().modify_index) == (JobStatus.RUNNING, version)


def test_a_canceled_run_stops_its_tasks_and_runs_its_final_steps() -> None:
    run = Run(a_step("build"), a_step("test", "build"), a_step("tidy", "test", final=True))

    run.cancel()

    assert run.phases == {"build": "canceled", "test": "canceled", "tidy": "waiting"}
    assert run.alive["build[0]"].desired_status.value == "stop"
    run.end("build")
    assert list(run.alive) == ["tidy[0]"]
    run.end("tidy")
    assert (run.outcome, run.job().status) == ("canceled", JobStatus.DEAD)


def test_a_second_cancellation_stops_the_final_steps_too() -> None:
    run = Run(a_step("build"), a_step("tidy", final=True))
    run.cancel()
    run.end("build")
    assert list(run.alive) == ["tidy[0]"]

    assert run.cancel().is_stopped
    assert run.job().stop
    assert run.alive["tidy[0]"].desired_status.value == "stop"
    run.end("tidy")
    assert (run.outcome, run.job().status) == ("canceled", JobStatus.DEAD)


def test_an_approved_gate_lets_its_step_begin() -> None:
    run = Run(a_step("ship", gate=Gate()))
    assert not run.alive

    run.answer("ship", approve=True, text="go")

    assert list(run.alive) == ["ship[0]"]
    assert run.facts["ship"].state.cause.detail == "go"


def test_a_rejected_gate_fails_its_step() -> None:
    run = Run(a_step("ship", gate=Gate()), a_step("tell", "ship"))

    run.answer("ship", approve=False)

    assert run.outcomes == {"ship": "failed", "tell": "skipped-by-need"}
    assert run.job().status is JobStatus.DEAD


def test_each_element_waits_only_for_its_own() -> None:
    array = GroupArray(size=3)
    run = Run(a_step("train", array=array), a_step("check", Need(on="train", each=True), array=array))

    run.end("train[1]")
    assert sorted(run.alive) == ["check[1]", "train[0]", "train[2]"]
    run.fail("train[0]")
    assert run.facts["check"].elements == b"x.."
    run.end("train[2]", "check[1]")
    run.end("check[2]")
    assert run.facts["check"].elements == b"xss"
    assert run.outcomes == {"train": "failed", "check": "skipped-by-need"}
    assert run.job().status is JobStatus.DEAD


def test_a_stopped_run_begins_none_of_its_steps() -> None:
    run = Run(a_step("build"), a_step("tidy", final=True), flow=Flow(deadline=10))

    run.do(deregister_job(run.replica, "default", "shop", run.moment, settings=SETTINGS))
    run.process_pending()
    assert run.outcomes == {"build": "open", "tidy": "canceled-before-begin"}
    run.end("build")

    assert not run.alive
    assert run.outcomes == {"build": "canceled-while-running", "tidy": "canceled-before-begin"}
    assert run.job().status is JobStatus.DEAD


# -- retries


def test_a_retry_runs_what_failed_and_what_follows_and_keeps_the_rest() -> None:
    run = Run(a_step("build"), a_step("lint"), a_step("test", "build", "lint"), a_step("tidy", final=True))
    run.end("build")
    run.fail("lint")
    run.end("tidy")
    assert run.outcome == "failed"

    plan = run.plan_retry()
    assert [(each.name, each.reason) for each in plan.steps] == [
        ("lint", "it failed"),
        ("test", "it follows lint"),
        ("tidy", "it follows lint"),
    ]
    assert [(each.name, each.reason) for each in plan.other_steps] == [("build", "it succeeded")]
    result = run.retry()
    assert (result.plan, result.attempt) == (plan, 2)
    assert list(run.alive) == ["lint[0]"]
    run.end("lint")
    run.end("test")
    run.end("tidy")
    assert (run.outcome, run.job().status) == ("succeeded", JobStatus.DEAD)


def test_a_retry_runs_only_the_elements_that_failed_and_those_that_follow_them() -> None:
    array = GroupArray(size=3)
    run = Run(
        a_step("train", array=array), a_step("check", Need(on="train", each=True), array=array), a_step("ship", "check")
    )
    run.end("train[0]", "train[2]")
    run.fail("train[1]")
    run.end("check[0]", "check[2]")
    assert run.outcomes == {"train": "failed", "check": "skipped-by-need", "ship": "skipped-by-need"}

    plan = run.retry().plan

    assert [(each.name, each.element_count) for each in plan.steps] == [("train", 1), ("check", 1), ("ship", 1)]
    assert list(run.alive) == ["train[1]"]
    run.end("train[1]")
    run.end("check[1]")
    run.end("ship")
    assert run.outcome == "succeeded"


def test_a_retry_from_a_step_runs_all_of_its_elements() -> None:
    run = Run(a_step("train", array=GroupArray(size=3)), a_step("ship", "train"))
    run.end("train[0]", "train[1]", "train[2]")
    run.end("ship")

    run.retry(steps=("train",))

    assert len(run.alive) == 3
    assert run.phases == {"train": "ready", "ship": "waiting"}


def test_a_retry_of_a_run_without_failures_changes_nothing() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.end("build")
    run.end("test")

    assert run.retry().attempt == 0


def test_a_retry_waits_for_a_step_that_runs() -> None:
    run = Run(a_step("build"), a_step("test", Need(on="build", when="any")))
    run.fail("build")

    with pytest.raises(Refusal, match="test follows build, which would run again, and has begun"):
        run.plan_retry()


def test_a_waiting_step_also_waits_for_the_retry_of_what_it_needs() -> None:
    run = Run(
        a_step("build"), a_step("lint"), a_step("report", Need(on="build", when="any"), Need(on="lint", when="any"))
    )
    run.fail("lint")

    run.retry()
    run.end("build")
    assert run.phases["report"] == "waiting"
    run.end("lint")
    assert list(run.alive) == ["report[0]"]


def test_a_stopped_run_is_retried_with_the_steps_that_had_not_ended() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.end("build")
    run.do(deregister_job(run.replica, "default", "shop", run.moment, settings=SETTINGS))
    run.process_pending()
    run.kill("test")

    run.retry()

    assert not run.job().stop
    assert list(run.alive) == ["test[0]"]
    run.end("test")
    assert (run.outcome, run.job().status) == ("succeeded", JobStatus.DEAD)


def test_a_skipped_step_stays_skipped_if_the_run_is_canceled_while_its_earlier_tasks_stop() -> None:
    steps = (a_step("build"), a_step("alert", Need(on="build", when="failed")), a_step("other"))
    run = Run(*steps)
    run.fail("build")
    former = run.alive["alert[0]"]
    run.submit(*steps, stop=True)
    run.kill("other")
    run.submit(*steps)
    run.end("build")
    assert (run.phases["alert"], run.alive["alert[0]"].id) == ("skipped", former.id)

    run.cancel()

    assert (run.phases["alert"], run.phases["other"]) == ("skipped", "canceled")


def test_a_report_of_an_earlier_attempt_decides_nothing() -> None:
    run = Run(a_step("build", may_fail=True))
    former = run.alive["build[0]"]
    run.cancel()
    run.kill("build")
    run.retry()

    run.report(former, ClientStatus.FAILED)

    assert run.outcomes == {"build": "open"}


# -- versions


def test_a_run_that_has_not_ended_is_frozen() -> None:
    run = Run(a_step("build"), a_step("test", "build"))

    with pytest.raises(Refusal, match=r'job "shop" is a run that has not ended, and meta would change'):
        run.submit(a_step("build"), a_step("test", "build"), meta={"a": "b"})
    with pytest.raises(Refusal, match="and group test would change"):
        run.submit(a_step("build"), a_step("test", "build", may_fail=True))


def test_the_priority_of_a_run_may_change() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.end("build")

    run.submit(a_step("build"), a_step("test", "build"), priority=80)

    assert run.job().priority == 80
    assert list(run.alive) == ["test[0]"]


def test_a_new_version_of_an_ended_run_runs_all_steps() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.end("build")
    run.end("test")

    run.submit(a_step("build"), a_step("test", "build"), meta={"a": "b"})

    assert run.phases == {"build": "ready", "test": "waiting"}
    assert list(run.alive) == ["build[0]"]


def test_a_cluster_with_a_server_that_does_not_know_steps_refuses_them() -> None:
    run = Run(a_step("build"))
    run.put(CLUSTER_FORMAT.build_put(RecordFormat(version=4)))

    with pytest.raises(Refusal, match="cannot run jobs with steps yet"):
        run.register(replace(a_batch_job("other", a_step("build", gate=Gate())), flow=None))


def test_elements_of_a_run_are_not_run_again_without_what_follows() -> None:
    run = Run(a_step("build", array=GroupArray(size=2)), a_step("test", "build"))

    with pytest.raises(Refusal, match="wharf flow retry shop"):
        rerun_elements(run.replica, RerunRequest(namespace="default", job_id="shop", failed=True), run.moment, SETTINGS)


# -- timers


def expire(run: Run) -> str | None:
    decision = expire_run(run.replica, ("default", "shop"), run.moment)
    if decision is None:
        return None
    result = run.do(decision)
    run.process_pending()
    return result


def test_an_expired_gate_fails_its_step() -> None:
    run = Run(a_step("ship", gate=Gate(timeout=10 * SECOND)), a_step("tell", Need(on="ship", when="failed")))

    assert expire(run) is None
    run.pass_time(11)

    with pytest.raises(Refusal, match="is not open any more"):
        run.answer("ship", approve=True)
    assert expire(run) == "gate"
    assert run.outcomes["ship"] == "failed"
    assert run.facts["ship"].state.cause.detail == "nobody answered in time"
    assert list(run.alive) == ["tell[0]"]


def test_a_run_that_takes_too_long_is_canceled() -> None:
    run = Run(a_step("build"), a_step("test", "build"), flow=Flow(deadline=60 * SECOND))

    run.pass_time(59)
    assert expire(run) is None
    run.pass_time(1)
    assert expire(run) == "run"
    run.kill("build")

    assert run.outcome == "canceled"
    assert {each.state.cause.kind for each in run.facts.values()} == {"deadline"}


def test_final_steps_of_a_canceled_run_have_limited_time() -> None:
    run = Run(a_step("build"), a_step("tidy", final=True), flow=Flow(final_timeout=10 * SECOND))
    run.cancel()
    run.kill("build")
    assert list(run.alive) == ["tidy[0]"]

    run.pass_time(11)
    assert expire(run) == "final steps"

    assert run.alive["tidy[0]"].desired_status.value == "stop"
    run.kill("tidy")
    assert (run.outcomes["tidy"], run.job().status) == ("canceled-while-running", JobStatus.DEAD)
    assert expire(run) is None


def test_an_ended_run_has_no_timer() -> None:
    run = Run(a_step("build"), flow=Flow(deadline=60 * SECOND))
    run.end("build")

    run.pass_time(100)

    assert expire(run) is None
    assert run.outcome == "succeeded"


# -- the end of a run


def count_records(run: Run) -> int:
    return run.replica.count_records(ARRAY_ATTEMPTS) + run.replica.count_records(ARRAY_RESULTS)


def a_retried_run() -> Run:
    run = Run(a_step("build", array=GroupArray(size=2)), a_step("test", "build"))
    run.end("build[0]")
    run.fail("build[1]")
    run.retry()
    run.end("build[1]")
    run.end("test")
    return run


def test_a_purge_deletes_all_attempts_of_a_run() -> None:
    run = a_retried_run()
    assert count_records(run) > 2

    run.lead(purge_job(run.replica, "default", "shop", run.moment, max_changes=100))

    assert count_records(run) == 0


@pytest.mark.parametrize("max_changes", [100, 9])
def test_garbage_collection_deletes_all_attempts_of_a_run_with_its_job(max_changes: int) -> None:
    run = a_retried_run()
    run.pass_time(60)

    while run.lead(
        collect_garbage(run.replica, CollectionKind.JOBS, run.moment, retention_ns=0, max_changes=max_changes)
    ).deleted_count:
        job = run.replica.get(JOBS, "default", "shop")
        assert job is None or (job.status, run.outcome) == (JobStatus.DEAD, "succeeded")

    assert run.replica.get(JOBS, "default", "shop") is None
    assert count_records(run) == 0


def test_a_waiting_run_is_not_collected() -> None:
    run = Run(a_step("ship", gate=Gate()))
    run.pass_time(60)

    run.lead(collect_garbage(run.replica, CollectionKind.JOBS, run.moment, retention_ns=0, max_changes=100))

    assert run.phases == {"ship": "gated"}


def test_a_lost_node_does_not_decide_about_a_step() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.with_node("node-1", cpu=100_000, memory_mb=1_000_000)
    former = run.alive["build[0]"]

    run.lose_node(former.node_id, NodeStatus.DOWN)
    run.process_pending()

    assert run.phases == {"build": "ready", "test": "waiting"}
    assert run.alive["build[0]"].id != former.id
    run.report(former, ClientStatus.COMPLETE)
    assert run.phases["test"] == "waiting"


def test_a_child_of_a_parameterized_flow_is_a_run() -> None:
    run = Run(a_step("build"), a_step("test", "build"), parameterized_job=Parameterized())
    assert not run.list_allocations()
    with pytest.raises(Refusal, match="is a flow: name one of its runs"):
        run.cancel()

    request = DispatchRequest(namespace="default", job_id="shop")
    child = run.do(dispatch_job(run.replica, request, run.moment, SETTINGS)).job_id
    run.process_pending()

    facts = read_snapshot_run(run.replica, run.job(child)).get_facts()
    assert {name: each.state.phase.value for name, each in facts.items()} == {"build": "ready", "test": "waiting"}


def test_a_dry_run_places_only_the_steps_that_would_begin() -> None:
    run = Run(a_step("other"))
    job = canonicalize_job(
        replace(a_batch_job("next"), task_groups=(a_step("build"), a_step("test", "build"))), SETTINGS
    )

    found = dry_run_job(run.replica, job, run.moment, SETTINGS, should_include_diff=False, max_launches=1)

    assert found.annotations is not None
    assert found.annotations.desired_tg_updates is not None
    assert {name: each.place for name, each in found.annotations.desired_tg_updates.items()} == {"build": 1, "test": 0}


def test_the_plan_of_a_retry_says_that_a_step_failed_which_may_fail() -> None:
    run = Run(a_step("lint", may_fail=True), a_step("build"))
    run.fail("lint", "build")

    (lint,) = run.plan_retry().other_steps

    assert (lint.name, lint.reason) == ("lint", "it failed, and may fail")
