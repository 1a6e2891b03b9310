"""Locks of steps: who gets a slot, who waits in which order, and who is canceled for a newer run."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS, Refused
from wharf.cluster.controllers.step_locks import enforce_lock
from wharf.cluster.operations.evaluations import unblock_evaluations
from wharf.cluster.operations.explanations.evaluations import explain_evaluation
from wharf.cluster.operations.explanations.jobs import explain_job, list_unexplained_jobs
from wharf.cluster.operations.explanations.text import format_time
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.operations.usage import report_usage
from wharf.cluster.operations.waiting_queue import PlacedEntry, build_queue_entry
from wharf.cluster.scheduling.blocked.reservation_policy import can_reserve_node
from wharf.cluster.scheduling.blocked.retry_order import build_blocked_entry
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.locks import (
    LockGrants,
    iter_granted,
    list_changed_locks,
    list_lock_holders,
    list_lock_waiters,
)
from wharf.cluster.scheduling.capacity.reservation import find_largest_waiting_group
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALLOCATIONS, CLUSTER_FORMAT, EVALUATIONS, JOB_PURGES, NAMESPACES, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.jobs.steps import Lock, LockPolicy, Need
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.resource_usage import Usage
from wharf.contract.model.times import HOUR, to_datetime
from wharf.contract.model.usage import UsageOrder

NO_RETRY = ReschedulePolicy(unlimited=False)
LOCK = ("default", "production")


def a_lock(slots: int = 1, policy: str = LockPolicy.QUEUE, key: str = "production") -> Lock:
    return Lock(key=key, slots=slots, policy=policy)


def a_step(name: str = "deploy", *needs: str, lock: Lock | None = None, **fields: Any) -> TaskGroup:
    depends = tuple(Need(on=need) for need in needs) or None
    return a_group(name, **{"count": 1, "reschedule_policy": NO_RETRY, "depends": depends, "lock": lock, **fields})


def a_large_step(name: str = "deploy", lock: Lock | None = None) -> TaskGroup:
    """Return a step that fits on no node."""
    task = a_task(resources=some_resources(cpu=200_000))
    return a_group(name, task, count=1, reschedule_policy=NO_RETRY, lock=lock)


class Runs(SimulatedCluster):
    """A cluster with runs that want locks. Every commit is checked against the slots of all locks."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = {"production": 1}
        self.checks.append(self.assert_no_lock_is_exceeded)
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.with_node("node-0", cpu=100_000, memory_mb=1_000_000)

    def assert_no_lock_is_exceeded(self) -> None:
        for key, slots in self.slots.items():
            assert len(list_lock_holders(self.replica, ("default", key))) <= slots

    def submit(self, job_id: str, *steps: TaskGroup, is_processed: bool = True, **fields: Any) -> None:
        self.pass_time(1)
        job = a_batch_job(job_id, *(steps or [a_step(lock=a_lock())]), **fields)
        self.register(canonicalize_job(job, SETTINGS))
        if is_processed:
            self.work()

    def work(self) -> None:
        """Do what the leader does, until nothing is left: evaluations, the queues of locks, and their policies."""
        while True:
            self.process_pending()
            decision = enforce_lock(self.replica, LOCK, self.moment, max_waiting=1_000)
            granted = [
                each.evaluation
                for key in self.slots
                for each in iter_granted(self.replica, ("default", key))
                if each.evaluation.status is EvaluationStatus.BLOCKED
            ]
            if decision is not None:
                self.lead(decision)
            elif granted:
                self.commit(unblock_evaluations(self.replica, granted, self.moment))
            else:
                return

    @property
    def alive(self) -> dict[str, Allocation]:
        """The allocations that have not ended, by job and element."""
        found = (each for job in ("a", "b", "c", "d") for each in self.list_allocations(job))
        return {each.name: each for each in found if not each.is_client_terminal}

    def end(self, *names: str, status: ClientStatus = ClientStatus.COMPLETE) -> None:
        for name in names:
            self.report(self.alive[name], status)
        self.work()

    def stop(self, job_id: str) -> None:
        self.do(deregister_job(self.replica, "default", job_id, self.moment, settings=SETTINGS))
        self.work()

    def list_waiting(self) -> list[str]:
        return [each.evaluation.job_id for each in list_lock_waiters(self.replica, LOCK)]

    def read_step(self, job_id: str, step: str = "deploy") -> Any:
        return read_snapshot_run(self.replica, self.job(job_id)).steps[step].facts.state

    def read_outcome(self, job_id: str) -> str:
        return judge_run(read_snapshot_run(self.replica, self.job(job_id)).iter_facts()).outcome


def test_a_second_run_waits_until_the_first_one_has_ended() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")

    assert list(runs.alive) == ["a.deploy[0]"]
    assert runs.list_waiting() == ["b"]
    runs.end("a.deploy[0]")
    assert list(runs.alive) == ["b.deploy[0]"]
    assert runs.list_waiting() == []
    runs.end("b.deploy[0]")
    assert (runs.read_outcome("a"), runs.read_outcome("b")) == ("succeeded", "succeeded")


def test_a_stopping_allocation_holds_its_slot_until_its_node_reports_its_end() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    holder = runs.alive["a.deploy[0]"]

    runs.stop("a")
    assert runs.allocation(holder.id).desired_status is DesiredStatus.STOP
    assert list(runs.alive) == ["a.deploy[0]"]

    runs.end("a.deploy[0]")
    assert list(runs.alive) == ["b.deploy[0]"]


def test_each_element_of_an_array_takes_a_slot() -> None:
    runs = Runs()
    runs.slots["production"] = 3
    runs.submit("a", a_step(lock=a_lock(3), array=GroupArray(size=5)))

    assert len(runs.alive) == 3
    runs.end("a.deploy[1]")
    assert sorted(runs.alive) == ["a.deploy[0]", "a.deploy[2]", "a.deploy[3]"]
    for name in ("a.deploy[0]", "a.deploy[2]", "a.deploy[3]", "a.deploy[4]"):
        runs.end(name)
    assert runs.read_outcome("a") == "succeeded"


def test_slots_are_given_in_the_order_in_which_steps_became_ready() -> None:
    runs = Runs()
    runs.submit("c")
    runs.submit("b")
    runs.submit("d", a_step("build"), a_step("deploy", "build", lock=a_lock()))
    runs.submit("a")
    runs.pass_time(1)
    runs.end("d.build[0]")  # Its job is older, but its step became ready last.

    assert runs.list_waiting() == ["b", "a", "d"]
    for job in ("c", "b", "a"):
        runs.end(f"{job}.deploy[0]")
    assert list(runs.alive) == ["d.deploy[0]"]


def test_a_new_step_does_not_pass_waiting_steps_although_a_slot_is_free() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    runs.report(runs.alive["a.deploy[0]"], ClientStatus.COMPLETE)

    runs.submit("c", is_processed=False)
    runs.process_pending()

    assert not runs.alive
    runs.work()
    assert list(runs.alive) == ["b.deploy[0]"]


def test_a_step_that_no_node_can_run_does_not_keep_others_waiting() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b", a_large_step(lock=a_lock()))
    runs.submit("c")
    assert runs.list_waiting() == ["b", "c"]

    runs.end("a.deploy[0]")

    assert list(runs.alive) == ["c.deploy[0]"]
    assert [each.wait.lacks_capacity for each in list_lock_waiters(runs.replica, LOCK)] == [True]


def test_a_waiting_step_holds_no_slot_when_its_job_also_waits_for_capacity() -> None:
    runs = Runs()
    runs.submit("b", a_large_step(lock=a_lock()))

    assert list_lock_holders(runs.replica, LOCK) == []
    runs.submit("a")
    assert list(runs.alive) == ["a.deploy[0]"]


def test_steps_with_different_locks_do_not_wait_for_each_other() -> None:
    runs = Runs()
    runs.slots["staging"] = 1
    runs.submit("a", a_step(lock=a_lock()))
    runs.submit("b", a_step(lock=a_lock()), a_step("rehearse", lock=a_lock(key="staging")))
    runs.submit("c", a_step("rehearse", lock=a_lock(key="staging")), a_step(lock=a_lock()))

    assert sorted(runs.alive) == ["a.deploy[0]", "b.rehearse[0]"]
    assert runs.list_waiting() == ["b", "c"]
    runs.end("b.rehearse[0]")
    assert sorted(runs.alive) == ["a.deploy[0]", "c.rehearse[0]"]
    runs.end("a.deploy[0]")
    assert sorted(runs.alive) == ["b.deploy[0]", "c.rehearse[0]"]


def test_a_lock_belongs_to_one_namespace() -> None:
    runs = Runs()
    runs.submit("a")
    runs.put(NAMESPACES.build_put(Namespace(name="research")))
    runs.submit("b", namespace="research")

    assert sorted(runs.alive) == ["a.deploy[0]", "b.deploy[0]"]


def test_two_plans_that_are_made_from_one_state_do_not_take_one_slot_twice() -> None:
    runs = Runs()
    for job in ("a", "b"):
        runs.submit(job, is_processed=False)
    cache = SchedulerCache.from_snapshot(runs.replica)
    first, second = (plan_evaluation(cache, runs.replica, each, runs.moment) for each in runs.list_due())
    assert first.placements
    assert second.placements

    write = check_plan(first, runs.replica, max_changes=40).write
    stale = check_plan(second, runs.replica, max_changes=40).write
    assert write is not None
    assert stale is not None
    runs.commit(write)

    assert check_plan(second, runs.replica, max_changes=40).dropped_nodes == ["node-0"]
    with pytest.raises(Refused):
        runs.commit(stale)


def test_a_lost_allocation_holds_its_slot_until_its_node_returns() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    runs.with_node("node-1", cpu=100_000, memory_mb=1_000_000)
    lost = runs.alive["a.deploy[0]"]
    runs.lose_node("node-0")
    runs.work()

    assert runs.allocation(lost.id).client_status is ClientStatus.LOST
    assert not runs.alive
    runs.reconnect_node("node-0")
    runs.work()
    assert not runs.alive  # The node may still run it.
    ended = [AllocationReport(id=lost.id, client_status=ClientStatus.COMPLETE)]
    runs.lead(apply_reports(runs.replica, "node-0", ended, runs.moment, is_complete=True, max_evaluations=40))
    runs.work()
    assert list(runs.alive) == ["a.deploy[0]"]  # It became ready first, and runs again.


def test_a_purged_node_holds_no_locks() -> None:
    runs = Runs()
    runs.submit("a")
    runs.with_node("node-1", cpu=100_000, memory_mb=1_000_000)
    runs.lose_node("node-0", NodeStatus.DOWN)
    runs.work()
    assert not runs.alive

    runs.put(NODES.build_delete("node-0"))
    runs.work()

    assert [each.node_id for each in runs.alive.values()] == ["node-1"]


def test_the_purge_of_a_job_leaves_the_lock_with_its_lost_allocation_until_its_node_returns() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    runs.with_node("node-1", cpu=100_000, memory_mb=1_000_000)
    lost = runs.alive["a.deploy[0]"]
    runs.lose_node("node-0")
    runs.work()

    runs.lead(purge_job(runs.replica, "default", "a", runs.moment, max_changes=100))
    runs.work()

    assert list(runs.replica.iter_all(JOB_PURGES)) == []
    assert not runs.alive  # The node may still run the task of the purged job.
    runs.reconnect_node("node-0")
    ended = [AllocationReport(id=lost.id, client_status=ClientStatus.COMPLETE)]
    runs.lead(apply_reports(runs.replica, "node-0", ended, runs.moment, is_complete=True, max_evaluations=40))
    runs.work()
    assert list(runs.alive) == ["b.deploy[0]"]

    for kind in (CollectionKind.BATCH_EVALUATIONS, CollectionKind.EVALUATIONS):
        while runs.lead(
            collect_garbage(runs.replica, kind, runs.moment, retention_ns=0, max_changes=100)
        ).deleted_count:
            pass
    assert runs.replica.get(ALLOCATIONS, lost.id) is None


def test_a_failed_element_that_is_retried_needs_a_slot_again() -> None:
    runs = Runs()
    retry = ReschedulePolicy(attempts=1, interval=3_600_000_000_000, delay=5_000_000_000, unlimited=False)
    runs.submit("a", a_step(lock=a_lock(), reschedule_policy=retry))
    runs.submit("b")

    runs.end("a.deploy[0]", status=ClientStatus.FAILED)
    assert list(runs.alive) == ["b.deploy[0]"]
    runs.pass_time(10)
    runs.work()
    assert list(runs.alive) == ["b.deploy[0]"]
    assert runs.list_waiting() == ["a"]
    runs.end("b.deploy[0]")
    assert list(runs.alive) == ["a.deploy[0]"]


def test_the_step_that_shares_a_lock_does_not_pass_one_that_needs_it_for_itself() -> None:
    runs = Runs()
    runs.slots["production"] = 2
    runs.submit("a", a_step(lock=a_lock(2)))
    runs.submit("b", a_step(lock=a_lock(1)))
    runs.submit("c", a_step(lock=a_lock(2)))

    assert list(runs.alive) == ["a.deploy[0]"]
    runs.end("a.deploy[0]")
    assert list(runs.alive) == ["b.deploy[0]", "c.deploy[0]"]


def test_a_newer_run_replaces_waiting_steps() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b", a_step(lock=a_lock()), a_step("notify", "deploy"))
    runs.submit("c", a_step(lock=a_lock(policy=LockPolicy.REPLACE_WAITING)))

    cause = runs.read_step("b").cause
    assert (cause.kind, cause.step, cause.detail) == ("lock", "c", "production")
    assert runs.read_step("b", "notify").phase == "skipped"
    assert runs.read_outcome("b") == "canceled"
    assert list(runs.alive) == ["a.deploy[0]"]
    assert runs.list_waiting() == ["c"]
    runs.end("a.deploy[0]")
    assert list(runs.alive) == ["c.deploy[0]"]


def test_an_older_run_does_not_replace_a_newer_one() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b", a_step(lock=a_lock(policy=LockPolicy.REPLACE_RUNNING)), is_processed=False)
    runs.submit("c", is_processed=False)
    runs.work()

    assert runs.read_step("a").phase == "canceled"
    assert runs.list_waiting() == ["b", "c"]


def test_a_step_that_waits_again_is_not_replaced_as_a_waiting_one() -> None:
    runs = Runs()
    runs.slots["production"] = 2
    runs.submit("a", a_step(lock=a_lock(2), array=GroupArray(size=3)))
    assert runs.list_waiting() == ["a"]

    runs.submit("b", a_step(lock=a_lock(2, policy=LockPolicy.REPLACE_WAITING)))

    assert runs.read_step("a").phase == "ready"
    assert runs.list_waiting() == ["a", "b"]


def test_a_newer_run_replaces_the_run_that_holds_the_lock() -> None:
    runs = Runs()
    runs.submit("a", a_step(lock=a_lock()), a_step("tidy", final=True))
    runs.submit("b")
    runs.submit("c", a_step(lock=a_lock(policy=LockPolicy.REPLACE_RUNNING)))

    for job in ("a", "b"):
        cause = runs.read_step(job).cause
        assert (cause.kind, cause.step) == ("lock", "c")
    assert runs.alive["a.deploy[0]"].desired_status is DesiredStatus.STOP
    assert list(runs.alive) == ["a.deploy[0]"]  # The slot is free when the task has stopped.
    runs.end("a.deploy[0]")
    assert sorted(runs.alive) == ["a.tidy[0]", "c.deploy[0]"]


def test_a_run_does_not_replace_its_own_steps() -> None:
    runs = Runs()
    lock = a_lock(policy=LockPolicy.REPLACE_RUNNING)
    runs.submit("a", a_step(lock=lock), a_step("smoke", lock=lock))

    assert list(runs.alive) == ["a.deploy[0]"]
    runs.end("a.deploy[0]")
    assert list(runs.alive) == ["a.smoke[0]"]


def test_the_step_that_is_one_too_many_fails_with_the_reason() -> None:
    runs = Runs()
    for job in ("a", "b", "c"):
        runs.submit(job)

    assert enforce_lock(runs.replica, LOCK, runs.moment, max_waiting=2) is None
    decision = enforce_lock(runs.replica, LOCK, runs.moment, max_waiting=1)
    assert decision is not None
    runs.lead(decision)
    runs.work()

    assert runs.read_outcome("c") == "failed"
    assert runs.read_step("c").cause.detail == "1 other steps wait for the lock production, which is the limit"
    assert runs.list_waiting() == ["b"]


def test_a_canceled_step_leaves_the_queue() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    runs.submit("c")

    runs.stop("b")

    assert runs.list_waiting() == ["c"]
    runs.end("a.deploy[0]")
    assert list(runs.alive) == ["c.deploy[0]"]


@pytest.mark.parametrize(
    ("held", "waits", "grants"),
    [
        (0, [(1, 1, False)], [1]),
        (1, [(1, 1, False)], [0]),
        (1, [(4, 2, False), (4, 5, False), (4, 1, False)], [2, 1, 0]),
        (0, [(2, 1, True), (2, 1, False)], [0, 1]),  # The first one lacks capacity.
        (1, [(1, 1, False), (3, 1, False)], [0, 0]),  # The first one needs the lock for itself.
        (3, [(2, 1, False)], [0]),
    ],
)
def test_free_slots_are_granted_in_order(held: int, waits: list[tuple[int, int, bool]], grants: list[int]) -> None:
    given = LockGrants(held)

    assert [
        given.grant(LockWait(key="k", step="s", slots=slots, count=count, lacks_capacity=lacks))
        for slots, count, lacks in waits
    ] == grants


def explain(runs: Runs, job_id: str) -> str:
    return explain_job(runs.replica, "default", job_id).text


def test_a_waiting_step_shows_which_run_holds_the_lock_and_its_place_in_the_queue() -> None:
    runs = Runs()
    for job in ("a", "b", "c"):
        runs.submit(job)
    since = format_time(to_datetime(runs.alive["a.deploy[0]"].create_time))

    assert explain(runs, "c") == (
        f"c waits: deploy waits for the lock production, which the run a holds since {since}; second in the queue"
    )
    explanation = explain_job(runs.replica, "default", "b")
    assert (explanation.waits[0].waits_for, explanation.queue_place, explanation.queue_length) == ("lock", 1, 2)
    assert explanation.groups[0].text == (
        f"deploy waits for the lock production, which the run a holds since {since}; first in the queue"
    )


def test_a_step_that_waits_for_several_holders_shows_how_many_slots_are_taken() -> None:
    runs = Runs()
    runs.slots["production"] = 3
    for job in ("a", "b", "c", "d"):
        runs.submit(job, a_step(lock=a_lock(3)))
    since = format_time(to_datetime(runs.alive["a.deploy[0]"].create_time))

    assert (
        f"the lock production, which the runs a, b and 1 more hold since {since} (3 of 3 slots); first in the queue"
        in explain(runs, "d")
    )


def test_a_step_that_waits_for_a_silent_node_shows_what_frees_the_slot() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    runs.lose_node("node-0", NodeStatus.DOWN)
    runs.work()

    assert "a.deploy[0] may still run on node-0, which is out of contact" in explain(runs, "b")
    assert "purge the node because it is gone" in explain(runs, "b")


def test_the_evaluation_of_a_waiting_step_shows_that_it_needed_the_lock() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    (evaluation,) = (each for each in runs.evaluations("b") if each.status is EvaluationStatus.COMPLETE)

    text = explain_evaluation(runs.replica, evaluation.id, lambda: SchedulerCache.from_snapshot(runs.replica)).text

    assert "could not place all: deploy needed the lock production, which was not free" in text


def test_a_run_that_waits_for_a_lock_and_for_capacity_shows_both() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b", a_step(lock=a_lock()), a_large_step("train"))

    waits = {each.waits_for.value: each.text for each in explain_job(runs.replica, "default", "b").waits}

    assert "deploy waits for the lock production" in waits["lock"]
    assert "train" in waits["room"]
    assert "deploy" not in waits["room"]


def test_every_waiting_run_has_an_explanation() -> None:
    runs = Runs()
    for job in ("a", "b", "c"):
        runs.submit(job)

    assert list_unexplained_jobs(runs.replica) == []


def test_the_chain_of_a_later_step_ends_at_the_lock() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b", a_step(lock=a_lock()), a_step("notify", "deploy"))

    assert explain(runs, "b").startswith(
        "b waits: notify waits for deploy, which waits for the lock production, which the run a holds since "
    )


def test_the_queue_and_the_usage_of_a_namespace_name_the_lock() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    (evaluation,) = runs.list_blocked()

    entry = build_queue_entry(
        runs.replica, PlacedEntry(1, build_blocked_entry(runs.replica, evaluation, Usage())), shows_nodes=True
    )

    assert entry is not None
    assert [text.partition(" since")[0] for text in entry.locks or ()] == [
        "deploy waits for the lock production, which the run a holds"
    ]
    fleet = SchedulerCache.from_snapshot(runs.replica).fleet
    usage = report_usage(runs.replica, fleet, order=UsageOrder.CPU, limit=5, namespaces=None)
    assert [each.reason for each in usage.waiting] == ["the lock production"]


@pytest.mark.parametrize(
    ("status", "changed"),
    [
        (ClientStatus.RUNNING, set()),
        (ClientStatus.COMPLETE, {LOCK}),
        (ClientStatus.FAILED, {LOCK}),
        (ClientStatus.LOST, {LOCK}),  # Its node may have been deleted before.
        (None, {LOCK}),
    ],
)
def test_a_lock_is_checked_after_each_change_that_may_free_a_slot(
    status: ClientStatus | None, changed: set[Any]
) -> None:
    runs = Runs()
    runs.submit("a")
    holder = replace(runs.alive["a.deploy[0]"], client_status=ClientStatus.RUNNING)

    after = None if status is None else replace(holder, client_status=status)

    assert list_changed_locks(ALLOCATIONS.name, holder, after) == changed
    assert list_changed_locks(ALLOCATIONS.name, None, holder) == set()


def test_a_lock_is_checked_after_each_change_of_its_queue() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    (evaluation,) = runs.list_blocked()
    moved_on = replace(evaluation, lock_waits=None)

    assert list_changed_locks(EVALUATIONS.name, None, evaluation) == {LOCK}
    assert list_changed_locks(EVALUATIONS.name, evaluation, moved_on) == {LOCK}
    assert list_changed_locks(EVALUATIONS.name, moved_on, None) == set()


def test_garbage_collection_keeps_what_may_hold_a_lock() -> None:
    runs = Runs()
    runs.submit("a")
    lost = runs.alive["a.deploy[0]"]
    runs.lose_node("node-0", NodeStatus.DOWN)
    runs.work()
    runs.stop("a")
    runs.pass_time(1_000_000)

    def collect() -> None:
        for kind in (CollectionKind.BATCH_EVALUATIONS, CollectionKind.JOBS, CollectionKind.NODES):
            while collect_garbage(runs.replica, kind, runs.moment, retention_ns=HOUR, max_changes=40).write is not None:
                runs.do(collect_garbage(runs.replica, kind, runs.moment, retention_ns=HOUR, max_changes=40))

    collect()
    assert runs.replica.get(NODES, "node-0") is not None
    assert runs.allocation(lost.id).client_status is ClientStatus.LOST

    runs.put(NODES.build_delete("node-0"))
    collect()
    assert runs.replica.get(ALLOCATIONS, lost.id) is None


def test_a_step_that_waits_for_a_lock_keeps_no_node_free() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b")
    (waiting,) = runs.list_blocked()
    assert not can_reserve_node(runs.replica, waiting)
    runs.put(EVALUATIONS.build_put(replace(waiting, reserved_node_id="node-0")))

    runs.retry_blocked()
    runs.work()

    assert [each.reserved_node_id for each in runs.list_blocked()] == [""]


def test_a_node_is_reserved_for_the_step_that_lacks_capacity_and_not_for_one_that_waits_for_a_lock() -> None:
    runs = Runs()
    runs.submit("a")
    runs.submit("b", a_large_step(lock=a_lock()), a_large_step("train"))
    (waiting,) = runs.list_blocked()

    group = find_largest_waiting_group(runs.job("b"), waiting)

    assert group is not None
    assert group.name == "train"
