"""The brain as leader: evaluations, reports and heartbeats, and failures of writes."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders import SECOND, a_batch_job, a_group, a_job, a_periodic_job, a_system_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.settings import USUAL_HEARTBEATS
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.engines.memory.faults import (
    DelayFault,
    EngineOperation,
    Fault,
    LoseReplyFault,
    LoseRequestFault,
    RefuseFault,
)
from wharf.cluster.engines.memory.log import MemoryLogCopy
from wharf.cluster.engines.port import WriteConflict, WriteLimits
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.server.leader import loop, planner
from wharf.cluster.server.log.writer import LOST_LOG_CODES
from wharf.cluster.server.rpc.socket import REPLY_TIMEOUT_S
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    EVALUATIONS,
    JOB_SUMMARIES,
    JOBS,
    LEADER,
    NAMESPACES,
    NODES,
)
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.group_policies import RestartPolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import ALLOCATION_STATES
from wharf.contract.model.times import DecisionContext

CAUSE = Cause(CauseKind.REQUEST, "test")
TINY = WriteLimits(changes=16, conditions=16)
NOTHING = MemoryLogCopy(0, 0, {}, {})
"""The content of a log that was wiped."""

QUICK = replace(USUAL_HEARTBEATS, min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=40.0)


def make_job_of_count(count: int, name: str = "shop", cpu: int = 10) -> Job:
    resources = some_resources(cpu=cpu, memory_mb=10)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=count))


def count_running(server: OneServer, job_id: str = "shop") -> int:
    summary = server.replica.get(JOB_SUMMARIES, "default", job_id)
    return sum(group.running for group in summary.summary.values()) if summary is not None else 0


def get_job_status(server: OneServer, job_id: str = "shop") -> str:
    job = server.replica.get(JOBS, "default", job_id)
    return job.status if job is not None else ""


def fail_commits(count: int, fault: Fault) -> Callable[[EngineOperation], Fault | None]:
    """Inject the fault into the next `count` commits."""
    left = [fault] * count
    return lambda requested: left.pop() if requested is EngineOperation.COMMIT and left else None


def assert_nothing_over_committed(server: OneServer) -> None:
    for node in server.replica.iter_all(NODES):
        occupying = [a for a in server.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if a.is_occupying]
        assert Usage.sum_usages(get_allocation_usage(a) for a in occupying).fits_in(get_node_capacity(node)), (
            f"{node.name} is over-committed"
        )


# -- statuses follow


@in_virtual_time
async def test_derived_changes_of_writes_by_other_processes_are_added_within_50_ms() -> None:
    async with ACluster() as cluster:
        leader = await cluster.a_server("m1")
        follower = await cluster.a_server("m2", leads=False)
        await follower.client.jobs.register(a_batch_job("shop"))
        job = follower.replica.get(JOBS, "default", "shop")
        await until(lambda: is_blocked(leader), what="the evaluation is processed")
        ends = [
            EVALUATIONS.build_put(replace(e, status=EvaluationStatus.CANCELED))
            for e in leader.replica.iter_all(EVALUATIONS)
            if not e.status.is_terminal
        ]
        assert job is not None
        began_s = now_s()

        await follower.server.writer.commit(Write("others", CAUSE, ends))
        await until(lambda: get_job_status(leader) == "dead", what="the job is dead")

        assert now_s() - began_s <= 0.05


def is_blocked(server: OneServer) -> bool:
    return any(e.status is EvaluationStatus.BLOCKED for e in server.replica.iter_all(EVALUATIONS))


def open_evaluations(server: OneServer, *, pending_only: bool = False) -> list[str]:
    return [
        e.id
        for e in server.replica.iter_all(EVALUATIONS)
        if not e.status.is_terminal and (e.status is EvaluationStatus.PENDING or not pending_only)
    ]


@in_virtual_time
async def test_derived_changes_are_added_after_a_log_outage() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_batch_job("shop"))
        await until(lambda: is_blocked(server), what="processed")
        ends = [
            EVALUATIONS.build_put(replace(e, status=EvaluationStatus.CANCELED))
            for e in server.replica.iter_all(EVALUATIONS)
            if not e.status.is_terminal
        ]
        follower = await cluster.a_server("m2", leads=False)
        server.faults.choose_fault = fail_commits(3, RefuseFault("full"))

        await follower.server.writer.commit(Write("others", CAUSE, ends))

        await until(
            lambda: get_job_status(server) == "dead", what="the status is corrected after the log outage", within_s=5.0
        )


@in_virtual_time
async def test_derived_changes_of_many_jobs_are_added_in_several_writes() -> None:
    async with ACluster(limits=TINY) as cluster:
        follower = await cluster.a_server("m2", leads=False)
        for number in range(12):
            await follower.client.jobs.register(a_batch_job(f"job-{number}"))
        for evaluation in list(follower.replica.iter_all(EVALUATIONS)):
            ended = replace(evaluation, status=EvaluationStatus.COMPLETE)
            await follower.server.writer.commit(Write("others", CAUSE, [EVALUATIONS.build_put(ended)]))

        server = await cluster.a_server("m1")

        await until(
            lambda: all(job.status == "dead" for job in server.replica.iter_all(JOBS)), what="all jobs are dead"
        )


# -- plans


@in_virtual_time
async def test_a_plan_larger_than_a_write_is_placed_in_parts() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)

        await server.client.jobs.register(make_job_of_count(60))

        await until(lambda: count_running(server) == 60, what="sixty run")
        assert get_job_status(server) == "running"
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_an_all_at_once_job_that_fits_no_write_fails_with_the_limit_and_is_not_retried_forever() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)

        await server.client.jobs.register(replace(make_job_of_count(60), all_at_once=True))
        await until(lambda: get_job_status(server) == "dead", what="the job is dead")

        (evaluation,) = server.replica.iter_all(EVALUATIONS)
        assert evaluation.status_description.startswith(
            "AllAtOnce requires 60 allocations in one write: the log accepts"
        )


@in_virtual_time
async def test_a_leader_that_ends_between_two_parts_places_nothing_twice() -> None:
    async with ACluster(limits=TINY) as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await cluster.ready_nodes(second, 3)
        first.faults.choose_fault = lambda requested: (
            DelayFault(request_s=0.1) if requested is EngineOperation.COMMIT else None
        )
        await second.client.jobs.register(make_job_of_count(60))
        await until(lambda: second.replica.count_records(ALLOCATIONS) > 10, what="some are placed")

        await second.lead()

        await until(lambda: count_running(second) == 60, what="sixty run", within_s=60.0)
        names = sorted(a.name for a in second.replica.iter_all(ALLOCATIONS))
        assert len(names) == len(set(names)) == 60


@in_virtual_time
async def test_a_lost_reply_in_the_middle_of_a_plan_places_nothing_twice() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)
        call_count = 0

        def lose_every_fourth_reply(requested: EngineOperation) -> Fault | None:
            nonlocal call_count
            if requested is EngineOperation.COMMIT:
                call_count += 1
                return LoseReplyFault() if call_count % 4 == 0 else None
            return None

        server.faults.choose_fault = lose_every_fourth_reply
        await server.client.jobs.register(make_job_of_count(30))

        await until(lambda: count_running(server) == 30, what="thirty run", within_s=200.0)
        names = sorted(a.name for a in server.replica.iter_all(ALLOCATIONS))
        assert len(names) == len(set(names)) == 30


@in_virtual_time
async def test_a_blocked_job_is_placed_when_a_node_joins() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(make_job_of_count(3))
        await until(lambda: open_evaluations(server), what="the evaluation is blocked")

        await cluster.ready_nodes(server, 1)

        await until(lambda: count_running(server) == 3, what="three run")
        assert open_evaluations(server) == []


@in_virtual_time
async def test_capacity_freed_during_a_log_outage_is_used() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(make_job_of_count(3))
        await until(lambda: is_blocked(server), what="the evaluation is blocked")
        follower = await cluster.a_server("m2", leads=False)
        node = replace(a_node(), status="ready", create_index=-1)
        server.faults.choose_fault = fail_commits(3, RefuseFault("full"))

        await follower.server.writer.commit(Write("others", CAUSE, [NODES.build_put(node)]))

        await until(lambda: server.replica.count_records(ALLOCATIONS) == 3, what="three are placed", within_s=5.0)


@in_virtual_time
async def test_many_blocked_evaluations_are_unblocked_in_several_writes() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server()
        for number in range(20):
            await server.client.jobs.register(make_job_of_count(1, f"job-{number}"))

        await cluster.ready_nodes(server, 1)

        await until(lambda: all(count_running(server, f"job-{n}") == 1 for n in range(20)), what="all jobs run")


def get_evaluation_status(server: OneServer, evaluation_id: str) -> str:
    evaluation = server.replica.get(EVALUATIONS, evaluation_id)
    return evaluation.status if evaluation is not None else ""


@in_virtual_time
async def test_an_evaluation_that_cannot_be_processed_fails_after_three_attempts_and_blocks_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_for_one_job(
        ground: SchedulerCache, snapshot: Replica, evaluation: Evaluation, context: DecisionContext
    ) -> Plan:
        if evaluation.job_id == "poison":
            raise ZeroDivisionError("planted")
        return plan_evaluation(ground, snapshot, evaluation, context)

    monkeypatch.setattr(planner, "plan_evaluation", fail_for_one_job)
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        with caplog.at_level(logging.ERROR):
            await server.client.jobs.register(make_job_of_count(1, "poison"))
            await server.client.jobs.register(make_job_of_count(1, "shop"))
            await until(lambda: count_running(server) == 1, what="the other job runs")

            (poison,) = [e for e in server.replica.iter_all(EVALUATIONS) if e.job_id == "poison"]
            await until(
                lambda: get_evaluation_status(server, poison.id) == "failed", what="the job is dead", within_s=60.0
            )

        failed, follow_up = sorted(
            (e for e in server.replica.iter_all(EVALUATIONS) if e.job_id == "poison"), key=lambda e: e.create_index
        )
        assert failed.status_description.startswith("evaluation reached delivery limit (3): ")
        assert "ZeroDivisionError" in failed.status_description
        assert (follow_up.triggered_by, follow_up.previous_eval, failed.next_eval) == (
            "failed-follow-up",
            failed.id,
            follow_up.id,
        )
        assert 60 <= follow_up.wait / SECOND <= 360
        assert "ZeroDivisionError: planted" in caplog.text


@in_virtual_time
async def test_an_error_in_the_leader_loop_is_logged_and_the_loop_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call_count = 0

    def fail_once(*_arguments: object, **_options: object) -> object:
        nonlocal call_count
        call_count += 1
        if call_count == 1:
            raise ZeroDivisionError("planted")
        return None

    monkeypatch.setattr(loop, "build_derived_write", fail_once)
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        with caplog.at_level(logging.ERROR):
            await server.client.jobs.register(a_periodic_job("nightly"))  # The leader computes its status.
            await server.client.jobs.register(make_job_of_count(1))
            await until(lambda: count_running(server) == 1, what="the job runs")

        assert "ZeroDivisionError: planted" in caplog.text
        assert server.election.campaigns == 1


@in_virtual_time
async def test_an_invalid_transition_in_the_leader_loop_is_refused_with_its_history_and_the_loop_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call_count = 0

    def refuse_once(*_arguments: object, **_options: object) -> None:
        nonlocal call_count
        call_count += 1
        if call_count == 1:
            advance_state(
                ALLOCATION_STATES, ClientStatus.COMPLETE, ClientStatus.RUNNING, record_id="a1", history=["placed"]
            )

    monkeypatch.setattr(loop, "build_derived_write", refuse_once)
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        with caplog.at_level(logging.WARNING):
            await server.client.jobs.register(a_periodic_job("nightly"))  # The leader computes its status.
            await server.client.jobs.register(make_job_of_count(1))
            await until(lambda: count_running(server) == 1, what="the job runs")

        assert [line for line in caplog.messages if "a1" in line] == [
            "state transition rejected reason=allocation a1 cannot go from complete to running; allowed from complete: none; "
            "history: placed"
        ]
        assert "leader loop failed" not in caplog.text
        assert "leader duty failed" not in caplog.text


@in_virtual_time
async def test_an_evaluation_with_an_invalid_transition_fails_with_the_history(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def advance_ended_allocation(*_arguments: object) -> None:
        advance_state(ALLOCATION_STATES, ClientStatus.COMPLETE, ClientStatus.LOST, record_id="a1", history=["placed"])

    monkeypatch.setattr(planner, "plan_evaluation", advance_ended_allocation)
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: not open_evaluations(server), what="the evaluation ended")

        (evaluation,) = server.replica.iter_all(EVALUATIONS)
        reason = "allocation a1 cannot go from complete to lost; allowed from complete: none; history: placed"
        assert (evaluation.status, evaluation.status_description) == ("failed", reason)
        assert [line for line in caplog.messages if "a1" in line] == [f"state transition rejected reason={reason}"]


@in_virtual_time
async def test_an_invalid_report_changes_nothing_and_is_logged_with_the_history_of_the_allocation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.brain.node_monitor.register_node(a_node())
        await server.brain.node_monitor.record_heartbeat("node-1")
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")
        (allocation,) = server.replica.iter_all(ALLOCATIONS)
        for status in (ClientStatus.COMPLETE, ClientStatus.RUNNING):
            await server.brain.node_monitor.record_reports(
                "node-1", [AllocationReport(id=allocation.id, client_status=status)]
            )

        (line,) = [line for line in caplog.messages if "state transition rejected" in line]
        assert get_client_status(server, allocation.id) == "complete"
        assert f"allocation {allocation.id} cannot go from complete to running" in line
        assert f"placed by evaluation {allocation.eval_id}" in line
        assert "its node node-1 is ready" in line


# -- leadership


@in_virtual_time
async def test_only_the_brain_of_the_leader_record_commits() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        first.faults.choose_fault = lambda requested: (
            DelayFault(reply_s=5.0) if requested is EngineOperation.FEED else None
        )
        await second.lead()

        # The first brain has not received it and still believes that it leads.
        assert first.brain.is_leading
        stale = first.brain.term.build_leader_write(Write("stale", CAUSE, [NAMESPACES.build_put(get_namespace(first))]))
        outcome = await first.server.writer.commit(stale)

        assert isinstance(outcome, WriteConflict)
        assert ("leader", "leader") in outcome.keys


def get_namespace(server: OneServer) -> Namespace:
    found = server.replica.get(NAMESPACES, "default")
    assert found is not None
    return replace(found, description="overwritten")


@in_virtual_time
async def test_a_replaced_leader_stops_when_it_sees_the_new_leader_record() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await second.lead()

        await until(lambda: first.election.campaigns == 2, what="the brain campaigns again", within_s=1.0)

        assert not first.brain.is_leading
        with pytest.raises(Refusal, match="No cluster leader"):
            await first.brain.node_monitor.record_heartbeat("anybody")


@in_virtual_time
async def test_a_leader_without_its_record_does_not_retry_writes_forever() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        server.faults.choose_fault = lambda requested: (
            DelayFault(reply_s=2.0) if requested is EngineOperation.FEED else None
        )
        await server.server.writer.commit(Write("gone", CAUSE, [LEADER.build_delete()]))
        commits = 0
        inner = server.faults.choose_fault

        def count_commits(requested: EngineOperation) -> Fault | None:
            nonlocal commits
            commits += requested is EngineOperation.COMMIT
            return inner(requested)

        server.faults.choose_fault = count_commits

        await server.server.writer.execute(lambda _snapshot, _context: make_empty_decision())
        await pass_time(20.0)

        assert commits < 10
        assert server.election.campaigns == 2


def make_empty_decision() -> Decision[int]:
    return Decision(None, lambda index: index)


@in_virtual_time
async def test_a_former_leader_refuses_calls_and_leads_again_when_elected() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        assert server.election.term is not None
        server.election.term.lose()
        await until(lambda: server.election.campaigns == 2, what="the brain campaigns again")
        await server.client.jobs.register(make_job_of_count(1))
        await pass_time(1.0)
        assert open_evaluations(server, pending_only=True)

        server.election.allow_campaign()

        await until(lambda: not open_evaluations(server, pending_only=True), what="processed by the new term")


@in_virtual_time
async def test_a_log_that_returns_empty_is_bootstrapped_again_by_the_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        result = server.replica.get_last_change(NAMESPACES)
        cluster.log.restore_copy(NOTHING)
        await until(lambda: server.replica.get(NAMESPACES, "default") is None, what="the restored log has no namespace")

        server.election.allow_campaign()

        await until(lambda: server.brain.is_leading, what="the server leads again")
        assert server.replica.get_last_change(NAMESPACES) > result
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: count_running(server) == 1, what="the job runs")


@in_virtual_time
async def test_after_a_restore_nodes_report_again_what_the_snapshot_lacks() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: count_running(server) == 1, what="the job runs")
        (before,) = server.replica.iter_all(ALLOCATIONS)
        copy = cluster.log.make_copy()
        await server.client.jobs.deregister("shop")
        await until(lambda: count_running(server) == 0, what="the node has reported the stop")

        cluster.log.restore_copy(copy)
        server.election.allow_campaign()

        await until(lambda: server.replica.count_records(ALLOCATIONS) == 2, what="a replacement is placed")
        await until(lambda: count_running(server) == 1, what="the restored job runs")
        stopped = server.replica.get(ALLOCATIONS, before.id)
        assert stopped is not None
        assert stopped.client_status == "complete"


@in_virtual_time
async def test_after_a_restore_an_unchanged_job_keeps_its_allocations() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_system_job("shop", a_group("web", task)))
        await until(lambda: count_running(server) == 2, what="the job runs on every node")
        before = {each.id for each in server.replica.iter_all(ALLOCATIONS)}
        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None

        cluster.log.restore_copy(cluster.log.make_copy())
        server.election.allow_campaign()
        await until(lambda: server.replica.epoch == 1, what="the replica has the new epoch")
        await until(lambda: server.brain.is_leading, what="the server leads again")
        await server.client.jobs.evaluate("shop")
        await until(lambda: not open_evaluations(server), what="the job is evaluated again")

        restored = server.replica.get(JOBS, "default", "shop")
        assert restored is not None
        assert (restored.create_index, restored.modify_index > job.modify_index) == (job.create_index, True)
        assert before == {each.id for each in server.replica.iter_all(ALLOCATIONS)}
        assert count_running(server) == 2


@in_virtual_time
async def test_no_server_leads_before_the_bootstrap_which_is_retried() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        cluster.log.restore_copy(NOTHING)
        await until(lambda: server.replica.get(NAMESPACES, "default") is None, what="the restored log has no namespace")
        commit_count = 0

        def refuse_after_the_election(requested: EngineOperation) -> Fault | None:
            nonlocal commit_count
            commit_count += requested is EngineOperation.COMMIT
            return RefuseFault("full") if requested is EngineOperation.COMMIT and 1 < commit_count <= 4 else None

        server.faults.choose_fault = refuse_after_the_election
        server.election.allow_campaign()

        await until(lambda: server.brain.is_leading, what="the server leads", within_s=5.0)
        assert server.replica.get(NAMESPACES, "default") is not None
        assert commit_count >= 5


@in_virtual_time
async def test_a_service_whose_tasks_always_end_is_replaced_with_growing_delays() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        task = a_task(driver="mock", config={"run_for": "1s"}, resources=some_resources(cpu=10, memory_mb=10))
        no_restarts = RestartPolicy(attempts=0, mode="fail")
        await server.client.jobs.register(a_job("shop", a_group("web", task, restart_policy=no_restarts)))

        await pass_time(600)

        assert 4 <= server.replica.count_records(ALLOCATIONS) <= 7


# -- nodes


@in_virtual_time
async def test_a_silent_node_is_down_after_its_ttl_and_grace() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        first, second = await cluster.ready_nodes(server, 2)
        await server.client.jobs.register(make_job_of_count(4))
        await until(lambda: count_running(server) == 4, what="four run")
        began_s = now_s()

        await first.die()
        await first.wait_for_status("down")

        assert 5.0 <= now_s() - began_s <= 25.1
        await until(lambda: count_running(server) == 4, what="four run again")
        live = {a.node_id for a in server.replica.iter_all(ALLOCATIONS) if not a.is_terminal}
        assert live == {second.id}
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_silent_nodes_are_logged_once_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        nodes = await cluster.ready_nodes(server, 2)
        for node in nodes:
            await node.die()
        for node in nodes:
            await node.wait_for_status("down")
        await pass_time(120.0)

        lines = [record.getMessage() for record in caplog.records if "nodes missed heartbeats" in record.getMessage()]
        assert sorted(name for line in lines for name in line.partition(" nodes=")[2].split(", ")) == [
            "node-1",
            "node-2",
        ]


@in_virtual_time
async def test_a_node_that_sends_no_heartbeat_after_its_registration_is_down() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        await server.brain.node_monitor.register_node(a_node())

        def is_down() -> bool:
            node = server.replica.get(NODES, "node-1")
            return node is not None and node.status == "down"

        await until(is_down, what="the node is down", within_s=26.0)


@in_virtual_time
async def test_every_silent_node_is_down_after_a_log_outage() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        nodes = await cluster.ready_nodes(server, 5)
        for node in nodes:
            await node.die()
        server.faults.choose_fault = lambda requested: (
            RefuseFault("full") if requested is EngineOperation.COMMIT and now_s() < 60.0 else None
        )

        for node in nodes:
            await node.wait_for_status("down", within_s=90.0)


@in_virtual_time
async def test_a_heartbeat_while_a_node_is_marked_down_makes_it_ready_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        await server.brain.node_monitor.register_node(a_node())
        await server.brain.node_monitor.record_heartbeat("node-1")
        server.faults.choose_fault = lambda requested: (
            DelayFault(request_s=3.0) if requested is EngineOperation.COMMIT else None
        )
        await until(lambda: server.brain.node_monitor.silent_nodes, what="the node is being marked down", within_s=60.0)

        await server.brain.node_monitor.record_heartbeat("node-1")
        server.faults.choose_fault = lambda _operation: None

        def is_ready() -> bool:
            node = server.replica.get(NODES, "node-1")
            return (
                node is not None
                and node.status == "ready"
                and server.brain.node_monitor.heartbeats.is_expected("node-1")
            )

        await pass_time(4.0)
        assert is_ready()


@in_virtual_time
async def test_all_jobs_of_a_down_node_move_even_if_they_do_not_fit_in_one_write() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        (first,) = await cluster.ready_nodes(server, 1)
        for number in range(12):
            await server.client.jobs.register(make_job_of_count(1, f"job-{number}"))
        await until(lambda: all(count_running(server, f"job-{n}") == 1 for n in range(12)), what="all jobs run")
        second = cluster.a_fake_node(server, "node-2")
        await second.wait_ready()

        await first.die()
        await first.wait_for_status("down")

        await until(lambda: all(count_running(server, f"job-{n}") == 1 for n in range(12)), what="all jobs run again")
        live = {a.node_id for a in server.replica.iter_all(ALLOCATIONS) if not a.is_terminal}
        assert live == {second.id}


@in_virtual_time
async def test_a_new_leader_processes_the_evaluations_of_the_previous_one() -> None:
    async with ACluster(limits=TINY) as cluster:
        first = await cluster.a_server("m1", heartbeats=QUICK)
        second = await cluster.a_server("m2", leads=False, heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(second, 1)
        for number in range(12):
            await second.client.jobs.register(make_job_of_count(1, f"job-{number}"))
        await until(lambda: all(count_running(second, f"job-{n}") == 1 for n in range(12)), what="all jobs run")
        await node.die()
        await node.wait_for_status("down")
        assert first.election.term is not None
        first.election.term.lose()

        await second.lead()

        await until(
            lambda: all(a.client_status is ClientStatus.LOST for a in second.replica.iter_all(ALLOCATIONS)),
            what="everything on the node is lost",
        )


@in_virtual_time
async def test_system_jobs_are_placed_on_every_new_node() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server()
        for number in range(6):
            task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
            await server.client.jobs.register(a_system_job(f"agent-{number}", a_group("web", task)))

        await cluster.ready_nodes(server, 3)

        await until(
            lambda: all(count_running(server, f"agent-{n}") == 3 for n in range(6)), what="all jobs run on every node"
        )


@in_virtual_time
async def test_a_report_larger_than_a_write_is_applied_in_parts() -> None:
    async with ACluster(limits=TINY) as cluster:
        server = await cluster.a_server()
        await server.brain.node_monitor.register_node(a_node(cpu=4_000))
        await server.brain.node_monitor.record_heartbeat("node-1")
        await server.client.jobs.register(make_job_of_count(40))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 40, what="forty are placed")
        result = [
            AllocationReport(id=a.id, client_status=ClientStatus.RUNNING) for a in server.replica.iter_all(ALLOCATIONS)
        ]

        await server.brain.node_monitor.record_reports("node-1", result)

        assert count_running(server) == 40


@in_virtual_time
async def test_a_late_repeated_report_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.brain.node_monitor.register_node(a_node())
        await server.brain.node_monitor.record_heartbeat("node-1")
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        (allocation,) = server.replica.iter_all(ALLOCATIONS)

        async def send_report(report_id: str, status: ClientStatus) -> int:
            report = [AllocationReport(id=allocation.id, client_status=status)]
            return (await server.brain.node_monitor.record_reports("node-1", report, report_id=report_id)).index

        first = await send_report("r1", ClientStatus.RUNNING)
        await send_report("r2", ClientStatus.PENDING)  # Its only task waits for a restart.
        repeated = await send_report("r1", ClientStatus.RUNNING)

        stored = server.replica.get(ALLOCATIONS, allocation.id)
        assert stored is not None
        assert (repeated, stored.client_status) == (first, "pending")


@in_virtual_time
async def test_a_report_sent_twice_is_not_applied_again_after_the_next_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.brain.node_monitor.register_node(a_node())
        await server.brain.node_monitor.record_heartbeat("node-1")
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        (allocation,) = server.replica.iter_all(ALLOCATIONS)

        async def send_report(report_id: str, status: ClientStatus) -> None:
            report = [AllocationReport(id=allocation.id, client_status=status)]
            await server.brain.node_monitor.record_reports("node-1", report, report_id=report_id)

        server.faults.choose_fault = lambda requested: (
            DelayFault(reply_s=1.0) if requested is EngineOperation.COMMIT else None
        )
        async with asyncio.TaskGroup() as reports:
            for report_id in ("r1", "r2", "r1"):  # In r2 its only task waits for a restart.
                status = ClientStatus.RUNNING if report_id == "r1" else ClientStatus.PENDING
                reports.create_task(send_report(report_id, status))
                await pass_time(0.01)  # The later reports arrive before the log has replied to the first.

        stored = server.replica.get(ALLOCATIONS, allocation.id)
        assert stored is not None
        assert "pending" == stored.client_status


@in_virtual_time
async def test_an_unknown_rpc_method_is_refused_and_an_internal_error_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def fail(_node_id: str) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(server.brain.node_monitor, "record_heartbeat", fail)

        unknown = await server.rpc_dispatcher.call("sing", b"")
        garbled = await server.rpc_dispatcher.call("heartbeat", b"\xc1")
        with caplog.at_level(logging.ERROR):
            failed = await server.rpc_dispatcher.call("heartbeat", b"\x81\xa7node_id\xa1a")

        assert [unknown.code, garbled.code, failed.code] == [
            RefusalCode.INVALID,
            RefusalCode.INVALID,
            RefusalCode.OUTCOME_UNKNOWN,
        ]
        assert "ZeroDivisionError: planted" in caplog.text


async def add_silent_nodes(server: OneServer, count: int) -> None:
    """Add ready nodes that send nothing by themselves."""
    for number in range(count):
        await server.brain.node_monitor.register_node(a_node(f"node-{number}"))
        await server.brain.node_monitor.record_heartbeat(f"node-{number}")


@in_virtual_time
async def test_concurrent_reports_of_many_nodes_about_one_job_are_all_applied() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await add_silent_nodes(server, 30)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_system_job("shop", a_group("web", task)))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 30, what="thirty are placed")
        server.faults.choose_fault = lambda requested: (
            DelayFault(request_s=0.01) if requested is EngineOperation.COMMIT else None
        )

        result = [
            server.brain.node_monitor.record_reports(
                a.node_id, [AllocationReport(id=a.id, client_status=ClientStatus.RUNNING)]
            )
            for a in server.replica.iter_all(ALLOCATIONS)
        ]
        await asyncio.gather(*result)

        assert count_running(server) == 30


@in_virtual_time
async def test_reports_of_many_nodes_share_writes_and_a_refused_one_affects_no_other() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await add_silent_nodes(server, 30)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_system_job("shop", a_group("web", task)))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 30, what="thirty are placed")
        await until(
            lambda: all(each.status.is_terminal for each in server.replica.iter_all(EVALUATIONS)),
            what="all reports are applied",
        )
        nodes = server.brain.node_monitor
        index = server.replica.index

        result = [
            nodes.record_reports(a.node_id, [AllocationReport(id=a.id, client_status=ClientStatus.RUNNING)])
            for a in server.replica.iter_all(ALLOCATIONS)
        ]
        gathered = asyncio.gather(*result, nodes.record_reports("nobody", []), return_exceptions=True)
        async with server.brain.term.write_lock:
            await pass_time(1)  # All reports have arrived, while another write of the leader is in flight.
        *written, refusal = await gathered

        assert isinstance(refusal, Refusal)
        assert [each for each in written if isinstance(each, BaseException)] == []
        assert count_running(server) == 30
        assert server.replica.index - index <= 3


@in_virtual_time
async def test_two_concurrent_reports_of_one_node_are_applied_in_order_of_arrival() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await add_silent_nodes(server, 1)
        await server.client.jobs.register(make_job_of_count(1))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        (allocation,) = server.replica.iter_all(ALLOCATIONS)

        steps = (ClientStatus.RUNNING, ClientStatus.FAILED)
        result = [AllocationReport(id=allocation.id, client_status=step) for step in steps]
        arrived: list[AllocationReport] = []

        async def report(each: AllocationReport) -> NodeWriteResult:
            arrived.append(each)
            return await server.brain.node_monitor.record_reports(allocation.node_id, [each])

        reporting = []
        for each in result:
            reporting.append(asyncio.ensure_future(report(each)))
            while len(arrived) < len(reporting):
                await pass_time(0)
        first, second = await asyncio.gather(*reporting)

        assert first.index < second.index
        assert get_client_status(server, allocation.id) == "failed"


@in_virtual_time
async def test_a_report_of_a_batch_is_answered_after_a_log_outage() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await add_silent_nodes(server, 3)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_system_job("shop", a_group("web", task)))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 3, what="three are placed")
        server.faults.choose_fault = fail_commits(1, LoseReplyFault())

        result = [
            server.brain.node_monitor.record_reports(
                a.node_id, [AllocationReport(id=a.id, client_status=ClientStatus.RUNNING)]
            )
            for a in server.replica.iter_all(ALLOCATIONS)
        ]
        await asyncio.gather(*result)

        assert count_running(server) == 3


@in_virtual_time
async def test_writes_that_wait_for_the_leader_fail_together_if_the_log_does_not_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        put = NAMESPACES.build_put(Namespace(name="other"))

        def store_namespace(_: Replica, __: DecisionContext) -> Decision[int]:
            return Decision(Write("stored", CAUSE, [put]), lambda index: index)

        server.faults.choose_fault = lambda _: LoseRequestFault()
        began_s = now_s()
        writes = [server.world.start_task(server.brain.term.execute(store_namespace), name="write") for _ in range(20)]

        results = await asyncio.gather(*writes, return_exceptions=True)

        codes = [each.code for each in results if isinstance(each, Refusal)]
        assert len(codes) == 20
        assert set(codes) <= LOST_LOG_CODES
        assert now_s() - began_s < REPLY_TIMEOUT_S


@in_virtual_time
async def test_an_allocation_missing_from_a_full_report_is_not_revived_by_a_late_report() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        await server.brain.node_monitor.register_node(a_node(cpu=100))
        await server.brain.node_monitor.record_heartbeat("node-1")
        await server.client.jobs.register(make_job_of_count(1, cpu=100))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        (first,) = server.replica.iter_all(ALLOCATIONS)
        is_running = [AllocationReport(id=first.id, client_status=ClientStatus.RUNNING)]
        await until(lambda: get_client_status(server, first.id) == "lost", what="the allocation is lost", within_s=60.0)

        # The machine was reinstalled: the node does not know its earlier allocations.
        await server.brain.node_monitor.record_heartbeat("node-1")
        await server.brain.node_monitor.record_reports("node-1", [], is_complete=True)
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 2, what="the replacement is placed")
        await server.brain.node_monitor.record_reports("node-1", is_running)

        assert get_client_status(server, first.id) == "complete"
        assert_nothing_over_committed(server)


def get_client_status(server: OneServer, allocation_id: str) -> str:
    allocation = server.replica.get(ALLOCATIONS, allocation_id)
    return allocation.client_status if allocation is not None else ""
