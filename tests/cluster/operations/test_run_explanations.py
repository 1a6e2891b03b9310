"""Explanations of runs: chains of waiting steps, gates, deadlines, and why steps did not run."""

import itertools

import pytest
from msgspec.structs import replace

from tests.attempts import limited_cpu
from tests.builders import a_batch_job, a_group, a_task
from tests.cluster.scheduling.test_job_needs import IMPORT, Cluster, needing
from tests.cluster.scheduling.test_runs import Run, a_step
from tests.kit.state import SETTINGS
from wharf.cluster.operations.explanations.jobs import REASON_NAMES, explain_job
from wharf.cluster.operations.jobs.arrays import make_attempt
from wharf.cluster.operations.jobs.registration import evaluate_job
from wharf.cluster.operations.run_views import build_run_view
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, JOBS
from wharf.contract.model.explanations import JobExplanation, WaitReason
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.steps import Flow, Gate, Need
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import SECOND


def explain(run: Run) -> JobExplanation:
    return explain_job(run.replica, "default", "shop")


def texts(run: Run) -> dict[str, str]:
    return {each.step: each.text for each in explain(run).steps}


def a_large_group(name: str) -> TaskGroup:
    """Return a group that fits on no node."""
    return a_group(name, a_task(resources=Resources(cpu=1_000_000, memory_mb=10)))


def test_a_step_that_waits_for_capacity_is_the_end_of_the_chain() -> None:
    run = Run(
        a_step("build", tasks=(a_task(resources=Resources(cpu=1_000_000, memory_mb=10)),)),
        a_step("test", "build"),
        a_step("ship", "test"),
    )

    explanation = explain(run)

    assert explanation.text.startswith(
        "shop waits: ship waits for test, which waits for build, which waits for resources: build lacks 1 allocation: "
        "the only node cannot run one"
    )
    assert explanation.waits[0].waits_for is WaitReason.STEP
    assert explanation.is_explained
    assert explanation.text.endswith(" (shop also waits for resources)")
    assert set(REASON_NAMES) == set(WaitReason)  # A summary names every reason.


def test_a_step_that_runs_is_the_end_of_the_chain() -> None:
    run = Run(a_step("build"), a_step("test", "build"))

    assert explain(run).text.startswith("shop waits: test waits for build, which starts")


def test_a_run_with_a_gate_waits_for_a_person() -> None:
    run = Run(a_step("ship", gate=Gate(ask="Release to production?", timeout=3_600 * SECOND)), a_step("tell", "ship"))

    explanation = explain(run)

    assert explanation.waits[0].waits_for is WaitReason.GATE
    assert "ship waits for an answer until " in explanation.text
    assert '"Release to production?"; `wharf flow approve shop ship` approves it' in explanation.text
    assert texts(run)["tell"].startswith("waits for ship, which waits for an answer")


def test_a_long_chain_names_its_beginning_and_its_end() -> None:
    names = [f"s{number}" for number in range(10)]
    run = Run(a_step("s0"), *(a_step(name, before) for before, name in itertools.pairwise(names)))

    assert texts(run)["s9"] == "waits for s8, which waits for s7 and 6 more steps up to s0, which starts"


def test_each_skip_and_each_cancellation_names_its_cause() -> None:
    run = Run(
        a_step("build"),
        a_step("lint", gate=Gate()),
        a_step("test", "build"),
        a_step("tidy", final=True),
        a_step("last"),
    )
    run.answer("lint", approve=False, text="too long")
    run.fail("build")
    run.cancel(detail="wrong branch")
    assert explain(run).text.startswith("shop waits: tidy waits for last, which is being stopped")
    assert "; it was canceled by ada: wrong branch; its final steps may run until " in explain(run).text
    run.kill("last")
    run.end("tidy")

    assert texts(run) == {
        "build": "failed",
        "lint": "failed at its gate by ada: too long",
        "test": "was skipped because build failed",
        "tidy": "succeeded",
        "last": "was canceled while it ran by ada: wrong branch",
    }
    assert explain(run).text == (
        "shop has failed: 1 of 5 steps succeeded; build failed; lint failed at its gate by ada: too long; "
        "test was skipped because build failed; last was canceled while it ran by ada: wrong branch; "
        "`wharf flow retry shop` runs again what did not succeed"
    )


def test_a_run_with_a_deadline_says_when_it_is_canceled() -> None:
    run = Run(a_step("build"), flow=Flow(deadline=60 * SECOND))

    assert "; it is canceled at " in explain(run).text
    run.end("build")
    assert explain(run).text == "shop is done: 1 of 1 steps succeeded"


def test_a_run_that_a_job_skipped_is_not_retried_until_that_job_ended_otherwise() -> None:
    cluster = Cluster(IMPORT)
    cluster.submit(needing("import"))
    cluster.fail("import")

    text = explain_job(cluster.replica, "default", "report").text

    assert text == (
        "report was skipped: 0 of 1 steps succeeded; work was skipped because the job import failed; "
        "a retry is skipped again until import ended as Depends requires: run that first, then `wharf flow retry report`"
    )
    view = build_run_view(cluster.replica, cluster.job("report"))
    assert (view.unmet_jobs, view.has_unsuccessful_steps) == (("import",), False)


def test_a_job_that_waits_for_a_job_names_what_that_one_waits_for() -> None:
    cluster = Cluster(a_batch_job("import", a_large_group("load")))
    cluster.submit(needing("import"))

    text = explain_job(cluster.replica, "default", "report").text

    assert text.startswith(
        "report waits: work waits for the end of import, which waits for resources: load lacks 1 allocation: "
        "the only node cannot run one"
    )


def test_a_chain_of_jobs_and_steps_is_followed_to_its_end() -> None:
    cluster = Cluster(a_batch_job("import", a_large_group("load"), a_group("check", depends=(Need(on="load"),))))
    cluster.submit(needing("import"))
    cluster.submit(needing("report", id="mail"))

    text = explain_job(cluster.replica, "default", "mail").text

    assert text.startswith(
        "mail waits: work waits for the end of report, which waits: work waits for the end of import, which waits: check "
        "waits for load, which waits for resources: load lacks 1 allocation"
    )


def test_a_long_chain_of_jobs_is_followed_up_to_a_limit() -> None:
    cluster = Cluster(a_batch_job("import", a_large_group("load")))
    for before, name in itertools.pairwise(["import", "a", "b", "c", "d"]):
        cluster.submit(needing(before, id=name))

    assert explain_job(cluster.replica, "default", "d").text == (
        "d waits: work waits for the end of c, which waits: work waits for the end of b, which waits: work waits for the "
        "end of a"
    )


def test_a_job_that_waits_for_several_names_only_those_that_have_not_ended() -> None:
    cluster = Cluster(IMPORT, a_batch_job("fetch", a_step("get")), a_batch_job("load", a_large_group("load")))
    cluster.submit(needing("fetch", "import", "load"))
    cluster.end("fetch")

    text = explain_job(cluster.replica, "default", "report").text

    assert text.startswith("report waits: work waits for the end of import, load; import has 1 allocation placed")


def test_a_run_whose_failed_steps_run_again_names_the_retry() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.fail("build")

    assert "`wharf flow retry shop` runs again what did not succeed" in explain(run).text
    assert build_run_view(run.replica, run.job()).has_unsuccessful_steps


def test_a_step_that_failed_and_may_fail_is_named() -> None:
    run = Run(a_step("check", may_fail=True), a_step("ship", Need(on="check")))
    run.fail("check")
    run.end("ship")

    assert explain(run).text == "shop is done: 1 of 2 steps succeeded; check failed, and may fail"


@pytest.mark.parametrize("is_chain", [True, False])
def test_a_run_of_500_steps_is_explained_in_50_ms(is_chain: bool) -> None:
    names = [f"s{number}" for number in range(500)]
    steps = [a_step(name, *((names[at - 1] if is_chain else "s0",) if at else ())) for at, name in enumerate(names)]
    run = Run(a_step("build", may_fail=True))
    job = canonicalize_job(replace(a_batch_job("large", *steps), create_index=WRITE_INDEX), SETTINGS)
    attempt = make_attempt(run.replica, job, None)
    assert attempt is not None
    run.put(JOBS.build_put(job), ARRAY_ATTEMPTS.build_put(attempt))
    run.do(evaluate_job(run.replica, "default", "large", run.moment))
    run.process_pending()
    assert len(explain_job(run.replica, "default", "large").steps) == 500

    with limited_cpu(0.05, "the explanation"):
        explain_job(run.replica, "default", "large")
