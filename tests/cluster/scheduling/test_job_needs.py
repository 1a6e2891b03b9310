"""Needs between jobs: which jobs may be needed, and what follows from their end, their purge and their collection."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS, SETTINGS, AState
from wharf.cluster.engines.memory.log import ETCD_WRITE_LIMITS
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations.jobs.admission import validate_submission
from wharf.cluster.operations.jobs.job_needs import settle_waiting_job
from wharf.cluster.operations.jobs.job_outcomes import judge_job, make_job_result
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.jobs.registration import JobRegistration, deregister_job, register_job
from wharf.cluster.operations.jobs.run_retry import RunRetry, plan_retry, retry_run
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.server.duties.job_needs import WaitingJobs
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, ARRAY_RESULTS, CLUSTER_FORMAT, JOB_RESULTS, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.job_results import JobResult
from wharf.contract.model.jobs.step_states import StepOutcome
from wharf.contract.model.jobs.steps import MAX_NEEDS, Need
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal

DAY_NS = 24 * 3_600 * SECOND_NS
NO_RETRY = ReschedulePolicy(unlimited=False)


def a_step(name: str = "work", **fields: Any) -> TaskGroup:
    return a_group(name, **{"reschedule_policy": NO_RETRY, **fields})


def needing(*needs: str | Need, id: str = "report", groups: tuple[TaskGroup, ...] = (), **fields: Any) -> Job:
    depends = tuple(need if isinstance(need, Need) else Need(on=need) for need in needs)
    return a_batch_job(id, *(groups or (a_step(),)), depends=depends, **fields)


class Cluster(SimulatedCluster):
    """A cluster with room, whose leader ends the wait of jobs for others."""

    def __init__(self, *jobs: Job) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.with_node("node-0", cpu=100_000, memory_mb=1_000_000)
        for job in jobs:
            self.submit(job)

    def submit(self, job: Job) -> None:
        self.register(canonicalize_job(job, SETTINGS))
        self.settle_jobs()

    def settle_jobs(self) -> None:
        """Process evaluations and decide about waiting jobs, until nothing changes."""
        for _ in range(20):
            self.process_pending()
            decisions = (
                settle_waiting_job(self.replica, (job.namespace, job.id), self.moment)
                for job in list(self.replica.iter_all(JOBS))
            )
            decision = next((each for each in decisions if each is not None), None)
            if decision is None:
                return
            self.lead(decision)
        raise AssertionError("jobs change for ever")

    def end(self, job_id: str, status: ClientStatus = ClientStatus.COMPLETE) -> None:
        """Let all allocations of a job end."""
        for allocation in self.list_active(job_id):
            self.report(allocation, status)
        self.settle_jobs()

    def fail(self, job_id: str) -> None:
        self.end(job_id, ClientStatus.FAILED)

    def stop(self, job_id: str) -> None:
        self.do(deregister_job(self.replica, "default", job_id, self.moment, settings=SETTINGS))
        self.settle_jobs()
        self.end(job_id)

    def purge(self, job_id: str) -> None:
        self.lead(purge_job(self.replica, "default", job_id, self.moment, max_changes=100))
        self.settle_jobs()

    def collect(self, kind: CollectionKind = CollectionKind.JOBS, max_changes: int = 100) -> None:
        while self.lead(
            collect_garbage(self.replica, kind, self.moment, retention_ns=0, max_changes=max_changes)
        ).deleted_count:
            pass

    def phase(self, job_id: str = "report", step: str = "work") -> str:
        return read_snapshot_run(self.replica, self.job(job_id)).steps[step].facts.state.phase.value

    def outcome(self, job_id: str) -> str:
        return judge_job(self.replica, self.job(job_id)).value

    def result(self, job_id: str) -> JobResult | None:
        return self.replica.get(JOB_RESULTS, "default", job_id)


IMPORT = a_batch_job("import", a_step())


def test_a_job_begins_when_the_job_that_it_needs_has_succeeded() -> None:
    cluster = Cluster(IMPORT, needing("import"))
    assert (cluster.phase(), cluster.job("report").status) == ("waiting", JobStatus.PENDING)
    assert cluster.list_allocations("report") == []

    cluster.end("import")

    assert (cluster.phase(), len(cluster.list_active("report"))) == ("ready", 1)


def test_a_job_is_skipped_when_the_job_that_it_needs_has_failed() -> None:
    cluster = Cluster(IMPORT, needing("import"))

    cluster.fail("import")

    run = read_snapshot_run(cluster.replica, cluster.job("report"))
    assert (cluster.phase(), cluster.job("report").status) == ("skipped", JobStatus.DEAD)
    assert judge_run(run.iter_facts()).outcome == "skipped"
    cause = run.steps["work"].facts.state.cause
    assert cause is not None
    assert (cause.kind, cause.step, cause.outcome) == ("job", "import", "failed")


def test_a_skipped_job_does_not_count_as_succeeded() -> None:
    cluster = Cluster(IMPORT, needing("import"), needing("report", id="mail"))

    cluster.fail("import")

    assert (cluster.outcome("report"), cluster.phase("mail")) == ("skipped-by-need", "skipped")


@pytest.mark.parametrize(
    ("when", "end", "phase"),
    [
        ("succeeded", "end", "ready"), ("succeeded", "fail", "skipped"), ("succeeded", "stop", "skipped"),
        ("failed", "end", "skipped"), ("failed", "fail", "ready"), ("failed", "stop", "ready"),
        ("ended", "end", "ready"), ("ended", "fail", "ready"), ("ended", "stop", "ready"),
        ("any", "end", "ready"), ("any", "fail", "ready"), ("any", "stop", "ready"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_deleted", [False, True])
def test_each_end_of_a_job_and_each_need(when: str, end: str, phase: str, is_deleted: bool) -> None:
    cluster = Cluster(IMPORT)
    for allocation in cluster.list_active("import"):
        cluster.report(allocation, ClientStatus.RUNNING)
    getattr(cluster, end)("import")
    if is_deleted:
        cluster.purge("import")

    cluster.submit(needing(Need(on="import", when=when)))

    assert cluster.phase() == phase


@pytest.mark.parametrize(("when", "phase"), [("any", "ready"), ("ended", "skipped"), ("failed", "skipped")])
def test_a_job_that_was_stopped_before_it_began_never_ran(when: str, phase: str) -> None:
    cluster = Cluster(IMPORT, needing("import", id="second"), needing(Need(on="second", when=when)))

    cluster.stop("second")

    assert (cluster.outcome("second"), cluster.phase()) == ("canceled-before-begin", phase)


def test_final_steps_do_not_wait_for_other_jobs_but_for_their_own_needs() -> None:
    steps = (a_step(), a_step("tidy", depends=(Need(on="work"),), final=True))
    cluster = Cluster(IMPORT, needing("import", groups=steps))

    cluster.fail("import")

    assert (cluster.phase(step="work"), cluster.phase(step="tidy")) == ("skipped", "ready")


def test_all_needs_must_hold() -> None:
    cluster = Cluster(IMPORT, replace(IMPORT, id="check"), needing("import", Need(on="check", when="ended")))

    cluster.end("import")
    assert cluster.phase() == "waiting"
    cluster.fail("check")

    assert cluster.phase() == "ready"


def test_an_array_that_failed_in_part_has_failed() -> None:
    sweep = a_batch_job("import", a_step(array=GroupArray(size=3)))
    cluster = Cluster(sweep, needing(Need(on="import", when="failed")))

    for allocation, status in zip(
        cluster.list_active("import"), (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.COMPLETE), strict=True
    ):
        cluster.report(allocation, status)
    cluster.settle_jobs()

    assert (cluster.outcome("import"), cluster.phase()) == ("failed", "ready")


def test_the_outcome_of_a_job_with_retries_is_that_of_the_last_attempt() -> None:
    retried = a_batch_job(
        "import", a_step(reschedule_policy=ReschedulePolicy(attempts=1, interval=DAY_NS, unlimited=False))
    )
    cluster = Cluster(retried)

    (allocation,) = cluster.list_active("import")
    cluster.report(allocation, ClientStatus.FAILED)
    cluster.evaluate_job("import", EvaluationTrigger.ALLOC_FAILURE)
    assert cluster.outcome("import") == "open"
    cluster.pass_time(60)
    cluster.settle_jobs()
    cluster.end("import")

    assert cluster.outcome("import") == "succeeded"


def test_a_purge_of_a_needed_job_that_runs_counts_as_its_cancellation() -> None:
    cluster = Cluster(IMPORT, needing("import"), needing(Need(on="import", when="ended"), id="second"))
    for allocation in cluster.list_active("import"):
        cluster.report(allocation, ClientStatus.RUNNING)

    cluster.purge("import")

    assert (cluster.phase(), cluster.phase("second")) == ("skipped", "ready")


# -- results of deleted jobs


@pytest.mark.parametrize("max_changes", [100, 5])
def test_garbage_collection_keeps_how_a_job_ended(max_changes: int) -> None:
    cluster = Cluster(IMPORT)
    cluster.fail("import")
    cluster.pass_time(60)

    cluster.collect(max_changes=max_changes)

    result = cluster.result("import")
    assert cluster.replica.get(JOBS, "default", "import") is None
    assert (result and result.outcome, result and result.delete_time) == (StepOutcome.FAILED, cluster.now_ns)


def test_the_result_of_a_deleted_job_is_deleted_after_30_days() -> None:
    cluster = Cluster(IMPORT)
    cluster.end("import")
    cluster.purge("import")

    cluster.pass_time(29.9 * 86_400)
    cluster.collect(CollectionKind.JOB_RESULTS)
    assert cluster.result("import") is not None
    cluster.pass_time(0.2 * 86_400)
    cluster.collect(CollectionKind.JOB_RESULTS)

    assert cluster.result("import") is None


def test_the_oldest_results_are_deleted_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.cluster.operations.operator.collection.MAX_JOB_RESULTS", 2)
    cluster = Cluster()
    for number in range(4):
        cluster.put(
            JOB_RESULTS.build_put(
                JobResult(
                    namespace="default",
                    job_id=f"j{number}",
                    outcome=StepOutcome.FAILED,
                    delete_time=cluster.now_ns - number,
                )
            )
        )

    cluster.collect(CollectionKind.JOB_RESULTS)

    assert [each.job_id for each in cluster.replica.iter_all(JOB_RESULTS)] == ["j0", "j1"]


def test_a_new_job_with_the_id_of_a_deleted_one_is_the_one_that_is_needed() -> None:
    cluster = Cluster(IMPORT)
    cluster.end("import")
    cluster.purge("import")

    cluster.submit(IMPORT)
    cluster.submit(needing("import"))

    assert cluster.phase() == "waiting"


def test_no_result_of_services_and_of_parents_is_kept() -> None:
    for job in (a_job("import"), a_periodic_job("import"), a_parameterized_job("import")):
        cluster = Cluster(job)
        cluster.purge("import")

        assert cluster.result("import") is None


def test_an_older_server_in_the_cluster_gets_no_results_of_jobs() -> None:
    cluster = Cluster(IMPORT)
    cluster.end("import")
    cluster.put(CLUSTER_FORMAT.build_put(RecordFormat(version=JOB_RESULTS.since_format - 1)))

    cluster.purge("import")

    assert cluster.result("import") is None


def test_a_run_of_many_steps_is_collected_in_writes_of_any_size() -> None:
    run = a_batch_job("import", *(a_step(f"s{number}", may_fail=True) for number in range(60)))
    cluster = Cluster(run)
    cluster.end("import")
    cluster.pass_time(60)
    assert cluster.outcome("import") == "succeeded"

    cluster.collect(max_changes=30)

    assert cluster.replica.get(JOBS, "default", "import") is None
    assert [*cluster.replica.iter_all(ARRAY_ATTEMPTS), *cluster.replica.iter_all(ARRAY_RESULTS)] == []
    result = cluster.result("import")
    assert result is not None
    assert result.outcome is StepOutcome.SUCCEEDED


def test_an_old_attempt_with_many_results_is_deleted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.cluster.operations.jobs.arrays.MAX_KEPT_ATTEMPTS", 1)
    monkeypatch.setattr("wharf.cluster.operations.jobs.arrays.MAX_DROPPED_RECORDS", 3)
    cluster = Cluster()
    left = []
    for number in range(4):
        steps = (a_step(f"s{step}", may_fail=True) for step in range(4))
        cluster.submit(a_batch_job("import", *steps, meta={"version": str(number)}))
        cluster.end("import")
        left.append(sum(each.attempt == 1 for each in cluster.replica.iter_all(ARRAY_RESULTS)))

    assert left == [4, 4, 1, 0]
    assert [each.attempt for each in cluster.replica.iter_all(ARRAY_ATTEMPTS)] == [2, 3, 4]


# -- submission


@pytest.mark.parametrize(
    ("needed", "message", "fix"),
    [
        (a_job("other"), 'The job "import" does not exist in namespace "default"', "submit it first, or set Optional if it may be missing; the result of a deleted job is known for 30 days"),
        (a_job("import"), 'The job "import" is a service job and does not end by itself', "name a batch job"),
        (a_periodic_job("import"), 'The job "import" is periodic and never ends', "name one of its children"),
        (a_parameterized_job("import"), 'The job "import" is parameterized and never ends', "name one of its children"),
    ],
)  # fmt: skip
def test_a_need_of_a_job_that_cannot_end_is_refused_at_submission(needed: Job, message: str, fix: str) -> None:
    cluster = Cluster(needed)

    findings = validate_submission(cluster.replica, needing("import"), SETTINGS).findings

    assert [(each.path, each.message, each.fix) for each in findings.problems] == [("Depends[0].On", message, fix)]
    with pytest.raises(Refusal, match="Depends"):
        cluster.register(needing("import"))


def test_a_job_that_may_be_missing_is_no_reason_to_wait() -> None:
    cluster = Cluster(needing(Need(on="import", optional=True)))

    assert cluster.phase() == "ready"


def test_a_stored_need_of_a_job_that_is_forgotten_does_not_refuse_a_new_version() -> None:
    cluster = Cluster(IMPORT)
    cluster.end("import")
    cluster.submit(needing("import"))
    cluster.purge("import")
    cluster.put(JOB_RESULTS.build_delete("default", "import"))

    cluster.submit(needing("import", priority=70))

    assert cluster.job("report").priority == 70


def test_a_circle_of_jobs_is_refused() -> None:
    cluster = Cluster(replace(IMPORT, id="a"), needing("a", id="b"), needing("b", id="c"))
    cluster.stop("a")
    cluster = Cluster(replace(IMPORT, id="a"), needing("a", id="b"), needing("b", id="c"))

    findings = validate_submission(cluster.replica, needing("c", id="a"), SETTINGS).findings

    assert [each.message for each in findings.problems] == ["Jobs wait for each other in a circle: a -> c -> b -> a"]


def test_a_job_that_has_ended_closes_no_circle() -> None:
    cluster = Cluster(replace(IMPORT, id="a"), needing("a", id="b"))
    cluster.end("a")
    cluster.end("b")

    cluster.submit(needing("b", id="a"))

    assert cluster.phase("a") == "ready"


def test_a_job_may_wait_for_a_limited_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.cluster.operations.jobs.job_needs.MAX_VISITED_JOBS", 3)
    jobs = [needing(f"j{number}", id=f"j{number + 1}") for number in range(3)]
    cluster = Cluster(replace(IMPORT, id="j0"), *jobs)

    (problem,) = validate_submission(cluster.replica, needing("j3"), SETTINGS).findings.problems

    assert problem.message == "The job waits for more than 3 jobs, directly or through others"


# -- the index of waiting jobs


def test_waiting_jobs_are_found_by_the_job_that_they_need() -> None:
    waiting = WaitingJobs()
    first, second = needing("import", "check", id="first"), needing("import", id="second")

    assert [waiting.update(("default", job.id), job) for job in (first, second, IMPORT)] == [True, True, False]
    assert [key for _, key in waiting.iter_waiting(("default", "import"))] == ["first", "second"]
    assert [key for _, key in waiting.iter_waiting(("default", "check"))] == ["first"]
    assert not waiting.update(("default", "first"), replace(first, status=JobStatus.DEAD))
    assert not waiting.update(("default", "second"), None)
    assert [*waiting.iter_waiting(("default", "import")), *waiting.iter_waiting(("default", "check"))] == []


ONLY_FINAL = (a_step("tidy", final=True),)
NEEDED_FINAL = (a_step("prepare", final=True), a_step("build", depends=(Need(on="prepare"),)))


@pytest.mark.parametrize("steps", [ONLY_FINAL, NEEDED_FINAL], ids=["only final steps", "a final step that others need"])
def test_final_steps_that_need_no_other_step_wait_for_the_needs_of_the_job(steps: tuple[TaskGroup, ...]) -> None:
    cluster = Cluster(IMPORT, needing("import", groups=steps))
    name = steps[0].name

    assert cluster.phase(step=name) == "waiting"
    cluster.end("import")
    assert cluster.phase(step=name) == "ready"


def test_a_job_with_only_final_steps_is_skipped_if_its_needs_do_not_hold() -> None:
    cluster = Cluster(IMPORT, needing("import", groups=ONLY_FINAL))

    cluster.fail("import")

    assert (cluster.phase(step="tidy"), cluster.job("report").status.value) == ("skipped", "dead")
    summary = cluster.replica.get(JOB_SUMMARIES, "default", "report")
    assert summary is not None
    assert summary.outcome == "skipped"


# -- needs after the begin of a run ------------------------------------------------------------------------------------

TWO_STEPS = (a_step("first"), a_step("second", depends=(Need(on="first"),)))


def retry(cluster: Cluster, job_id: str) -> None:
    cluster.do(retry_run(cluster.replica, RunRetry(namespace="default", job_id=job_id), cluster.moment, SETTINGS))
    cluster.settle_jobs()


def test_a_run_that_has_begun_does_not_wait_again_for_a_job_that_runs_again() -> None:
    cluster = Cluster(IMPORT, needing("import", groups=TWO_STEPS))
    cluster.end("import")
    cluster.submit(replace(IMPORT, priority=60, task_groups=(a_step(meta={"day": "2"}),)))

    cluster.end("report")

    assert cluster.phase(step="second") == "ready"


def test_a_run_that_has_begun_goes_on_when_the_result_of_the_job_before_it_is_lost() -> None:
    cluster = Cluster(IMPORT, needing("import", groups=TWO_STEPS))
    cluster.end("import")
    cluster.purge("import")
    cluster.put(JOB_RESULTS.build_delete("default", "import"))

    cluster.end("report")

    assert cluster.phase(step="second") == "ready"


def test_a_retry_waits_again_for_a_job_that_runs_again() -> None:
    cluster = Cluster(IMPORT, needing("import", groups=TWO_STEPS))
    cluster.end("import")
    cluster.fail("report")
    cluster.submit(replace(IMPORT, task_groups=(a_step(meta={"day": "2"}),)))

    retry(cluster, "report")
    assert cluster.phase(step="first") == "waiting"
    cluster.end("import")

    assert cluster.phase(step="first") == "ready"


def test_a_retry_that_would_wait_for_a_job_that_waits_for_it_is_refused() -> None:
    cluster = Cluster(IMPORT, a_batch_job("clean", a_step()), needing("import"))
    cluster.end("import")
    cluster.fail("report")
    cluster.submit(needing(Need(on="report", when="any"), "clean", id="import", groups=(a_step(meta={"day": "2"}),)))
    assert cluster.phase("import") == "waiting"

    with pytest.raises(
        Refusal, match="in a circle: report -> import -> report: wait for the end of import, or stop it"
    ):
        retry(cluster, "report")
    with pytest.raises(Refusal, match="in a circle"):
        plan_retry(cluster.replica, RunRetry(namespace="default", job_id="report"))
    cluster.end("clean")
    cluster.end("import")
    retry(cluster, "report")

    assert cluster.phase() == "ready"


def test_a_job_may_need_a_run_that_has_begun_and_needed_it() -> None:
    cluster = Cluster(IMPORT, needing("import"))
    cluster.end("import")

    cluster.submit(needing("report", id="import", groups=(a_step(meta={"day": "2"}),)))
    assert cluster.phase("import") == "waiting"
    cluster.end("report")

    assert cluster.phase("import") == "ready"


def test_the_result_of_a_job_that_ran_again_during_its_collection_is_that_of_its_last_run() -> None:
    cluster = Cluster(needing(Need(on="none", optional=True), id="import"))
    cluster.fail("import")
    result = make_job_result(cluster.replica, cluster.job("import"), cluster.now_ns, is_collected=True)
    assert result is not None
    cluster.put(result)  # The first write of the collection of a large job.
    cluster.now_ns += SECOND_NS
    retry(cluster, "import")
    cluster.end("import")

    cluster.purge("import")

    stored = cluster.result("import")
    assert stored is not None
    assert (stored.outcome, stored.is_collected) == ("succeeded", False)


# -- needed jobs that change meanwhile ---------------------------------------------------------------------------------


def decide_submission(cluster: Cluster, job: Job) -> Write:
    """Return the write that submits a job, as a server decides it that will then lag behind."""
    registration = JobRegistration(job=canonicalize_job(job, SETTINGS))
    write = register_job(cluster.replica, registration, cluster.moment, SETTINGS).write
    assert write is not None
    return write


def test_a_submission_conflicts_with_one_of_a_needed_job_that_its_server_did_not_know() -> None:
    cluster = Cluster()
    write = decide_submission(cluster, needing(Need(on="build", when="failed", optional=True)))

    cluster.submit(a_batch_job("build", a_step()))

    assert isinstance(cluster.try_commit(write), WriteConflict)


def test_a_submission_conflicts_with_the_end_of_a_needed_job_that_its_server_did_not_know() -> None:
    cluster = Cluster()
    write = decide_submission(cluster, needing(Need(on="build", optional=True)))

    cluster.submit(a_batch_job("build", a_step()))
    cluster.do(purge_job(cluster.replica, "default", "build", cluster.moment, max_changes=100))
    assert cluster.replica.get(JOBS, "default", "build") is None

    assert isinstance(cluster.try_commit(write), WriteConflict)


def test_a_submission_conflicts_with_the_purge_of_a_needed_job() -> None:
    cluster = Cluster(a_batch_job("build", a_step()))
    write = decide_submission(cluster, needing("build"))

    cluster.do(purge_job(cluster.replica, "default", "build", cluster.moment, max_changes=100))

    assert isinstance(cluster.try_commit(write), WriteConflict)


def test_a_job_with_the_most_needs_fits_into_a_write_to_etcd() -> None:
    state = AState(limits=ETCD_WRITE_LIMITS)
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    needs = (Need(on=f"job-{number}", optional=True) for number in range(MAX_NEEDS))

    state.register(canonicalize_job(needing(*needs), SETTINGS))

    assert state.job("report").status is JobStatus.PENDING
