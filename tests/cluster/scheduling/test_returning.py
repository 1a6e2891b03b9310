"""A disconnected node returns: of each original and its replacement exactly one continues (scheduling.md 5.9)."""

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.scheduling.loop import Loop
from tests.kit.state import SECOND_NS
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.nodes.node import NodeStatus

RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")
STRATEGIES = ("best_score", "keep_original", "keep_replacement", "longest_running")


A_GROUP = a_group("web", count=1, disconnect=DisconnectPolicy(lost_after=100_000 * SECOND_NS), reschedule_policy=RETRY)

NEVER_REPLACED = DisconnectPolicy(replace=False)


def with_one_disconnected(group: TaskGroup) -> Loop:
    """Return a loop with one disconnected allocation that was not replaced yet."""
    loop = Loop()
    for node_id in ("n0", "n1", "n2"):
        loop.with_node(node_id)
    loop.register(a_job("shop", group))
    loop.settle()
    loop.lose_node(loop.list_active()[0].node_id, NodeStatus.DISCONNECTED)
    loop.process_pending()
    return loop


def with_a_replacement(reconcile: str) -> Loop:
    """Return a loop with two allocations of a service, one of them disconnected and replaced."""
    loop = Loop()
    for node_id in ("n0", "n1", "n2"):
        loop.with_node(node_id)
    disconnect = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile=reconcile)
    group = a_group("web", count=2, disconnect=disconnect, reschedule_policy=RETRY)
    loop.register(a_job("shop", group))
    loop.settle()
    loop.lose_node(loop.list_active()[0].node_id, NodeStatus.DISCONNECTED)
    loop.settle()
    loop.pass_time(6)
    loop.settle()
    return loop


@pytest.mark.parametrize("reconcile", STRATEGIES)
@pytest.mark.parametrize("is_evaluated_first", [True, False])
def test_after_a_reconnect_the_count_runs_with_one_allocation_per_name(
    reconcile: str, is_evaluated_first: bool
) -> None:
    loop = with_a_replacement(reconcile)
    (lost,) = [each for each in loop.list_active() if each.client_status is ClientStatus.UNKNOWN]
    loop.reconnect_node(lost.node_id)
    if is_evaluated_first:  # The evaluation runs before the node has reported its allocations.
        loop.process_pending()
    if not loop.allocation(lost.id).is_server_terminal:
        loop.report(lost, ClientStatus.RUNNING)
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    assert sorted(each.name for each in loop.list_active()) == ["shop.web[0]", "shop.web[1]"]
    assert loop.allocation(lost.id).is_server_terminal == (reconcile == "keep_replacement")


@pytest.mark.parametrize("reconcile", STRATEGIES)
def test_a_disconnected_allocation_is_not_replaced_twice(reconcile: str) -> None:
    loop = with_a_replacement(reconcile)
    loop.evaluate_job()
    loop.settle()

    assert len(loop.list_active()) == 3


def timeouts(loop: Loop) -> list[str]:
    trigger = EvaluationTrigger.MAX_DISCONNECT_TIMEOUT
    return [each.id for each in loop.open_evaluations() if each.triggered_by is trigger]


def reconnect(loop: Loop, disconnected: Allocation) -> None:
    loop.reconnect_node(disconnected.node_id)
    loop.report(disconnected, ClientStatus.RUNNING)
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)


def test_the_disconnect_timeout_of_a_reconnected_allocation_is_canceled() -> None:
    loop = with_one_disconnected(A_GROUP)
    (disconnected,) = [each for each in loop.list_active() if each.client_status is ClientStatus.UNKNOWN]
    before = timeouts(loop)
    reconnect(loop, disconnected)

    assert (before, timeouts(loop)) == ([loop.allocation(disconnected.id).followup_eval_id], [])


def test_the_disconnect_timeout_of_another_allocation_stays() -> None:
    loop = with_one_disconnected(
        replace(A_GROUP, count=2, disconnect=replace(NEVER_REPLACED, lost_after=SECOND_NS * 600))
    )
    for node_id in {each.node_id for each in loop.list_active() if each.client_status is not ClientStatus.UNKNOWN}:
        loop.lose_node(node_id, NodeStatus.DISCONNECTED)
    loop.process_pending()
    first, second = loop.list_active()
    reconnect(loop, first)

    assert timeouts(loop) == [loop.allocation(second.id).followup_eval_id]


def test_a_reconnected_surplus_allocation_is_stopped() -> None:
    loop = with_a_replacement("keep_original")
    (lost,) = [each for each in loop.list_active() if each.client_status is ClientStatus.UNKNOWN]
    loop.reconnect_node(lost.node_id)
    loop.report(lost, ClientStatus.RUNNING)
    loop.put_led(
        ALLOCATIONS.build_put(replace(loop.allocation(lost.id), next_allocation=""))
    )  # The link to the replacement is missing.
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    assert sorted(each.name for each in loop.list_active()) == ["shop.web[0]", "shop.web[1]"]


def test_an_allocation_that_was_migrated_while_disconnected_is_replaced_once() -> None:
    group = a_group("web", count=1, disconnect=DisconnectPolicy(lost_after=600 * SECOND_NS))
    loop = with_one_disconnected(group)
    (original,) = loop.list_active()
    loop.reconnect_node(original.node_id)
    loop.report(original, ClientStatus.RUNNING)
    moved = replace(loop.allocation(original.id), desired_transition=DesiredTransition(migrate=True))
    loop.put_led(ALLOCATIONS.build_put(moved))

    loop.evaluate_job()
    # Its node has not stopped it yet, and the last state that servers recorded is still unknown.
    loop.register(a_job("shop", replace(group, count=3)))
    loop.evaluate_job()

    assert ["shop.web[0]", "shop.web[1]", "shop.web[2]"] == sorted(each.name for each in loop.list_active())


def test_the_replacement_of_a_disconnected_allocation_shares_its_name_with_no_new_one() -> None:
    loop = with_one_disconnected(A_GROUP)
    loop.pass_time(6)

    loop.register(a_job("shop", replace(A_GROUP, count=3)))
    loop.evaluate_job()

    known = [each for each in loop.list_active() if each.client_status is not ClientStatus.UNKNOWN]
    assert ["shop.web[0]", "shop.web[1]", "shop.web[2]"] == sorted(allocation.name for allocation in known)


def test_a_disconnected_allocation_is_replaced_though_an_earlier_placement_was_refused() -> None:
    loop = with_one_disconnected(A_GROUP)
    (original,) = loop.list_active()
    # The state after a plan whose stops were committed and whose placement was not.
    loop.put_led(ALLOCATIONS.build_put(replace(loop.allocation(original.id), next_allocation="never-came-to-be")))
    loop.pass_time(6)

    loop.settle()

    (replacement,) = [each for each in loop.list_active() if each.id != original.id]
    assert replacement.id == loop.allocation(original.id).next_allocation


def test_a_failed_replacement_of_a_disconnected_allocation_is_retried() -> None:
    loop = with_one_disconnected(A_GROUP)
    (original,) = loop.list_active()
    loop.pass_time(6)
    loop.settle()
    (first,) = [each for each in loop.list_active() if each.id != original.id]
    loop.report(first, ClientStatus.FAILED)
    loop.evaluate_job()  # Its retry waits for a delay. Until then nothing else is stopped or placed.
    assert [] == [allocation for allocation in loop.list_allocations() if allocation.is_server_terminal]
    loop.pass_time(6)
    loop.settle()

    (second,) = [each for each in loop.list_active() if each.id != original.id]
    assert (first.id, original.name) == (second.previous_allocation, second.name)


def test_a_disconnected_allocation_is_not_replaced_again_when_its_first_replacement_was_collected() -> None:
    loop = with_one_disconnected(A_GROUP)
    (original,) = loop.list_active()
    loop.pass_time(6)
    loop.settle()
    (first,) = [each for each in loop.list_active() if each.id != original.id]
    loop.report(first, ClientStatus.FAILED)
    loop.pass_time(6)
    loop.evaluate_job()
    loop.settle()
    (second,) = [each for each in loop.list_active() if each.id != original.id]
    loop.put_led(ALLOCATIONS.build_delete(first.id))

    loop.evaluate_job()
    loop.settle()

    assert {original.id, second.id} == {each.id for each in loop.list_active()}


def test_a_replaced_disconnected_allocation_is_not_replaced_again_by_a_new_version() -> None:
    loop = with_one_disconnected(A_GROUP)
    loop.pass_time(6)
    loop.settle()

    loop.register(a_job("shop", replace(A_GROUP, tasks=(a_task(env={"V": "1"}),))))
    loop.evaluate_job()

    assert [("shop.web[0]", 1)] == [(each.name, each.job_version) for each in loop.list_active()]


def test_an_unknown_allocation_with_a_replacement_is_stopped_when_the_job_changes_though_another_is_missing() -> None:
    loop = with_a_replacement("best_score")
    (other,) = [each for each in loop.list_active() if each.name == "shop.web[1]"]
    loop.report(other, ClientStatus.COMPLETE)

    (group,) = loop.job().groups
    loop.register(a_job("shop", replace(group, tasks=(a_task(env={"V": "1"}),), update=UpdatePolicy(max_parallel=0))))
    loop.evaluate_job()

    assert [("shop.web[0]", 1), ("shop.web[1]", 1)] == sorted(
        (each.name, each.job_version) for each in loop.list_active()
    )


def test_an_unknown_allocation_that_an_update_leaves_no_place_for_is_stopped_though_its_replacement_is_due() -> None:
    loop = with_one_disconnected(replace(A_GROUP, count=3))
    loop.pass_time(6)
    update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop.register(a_job("shop", replace(A_GROUP, count=2, tasks=(a_task(env={"V": "1"}),), update=update)))

    loop.settle()

    assert [1, 1] == [each.job_version for each in loop.list_active()]


def test_an_unknown_allocation_that_was_replaced_is_not_migrated_besides_when_its_node_reconnects() -> None:
    loop = with_a_replacement("best_score")
    (disconnected,) = [each for each in loop.list_active() if each.client_status is ClientStatus.UNKNOWN]
    (other,) = [each for each in loop.list_active() if each.name == "shop.web[1]"]
    loop.put_led(ALLOCATIONS.build_put(replace(disconnected, desired_transition=DesiredTransition(migrate=True))))
    loop.lose_node(other.node_id, NodeStatus.DISCONNECTED)
    loop.process_pending()
    before = {each.id for each in loop.list_active()}

    loop.reconnect_node(disconnected.node_id)
    loop.process_pending()

    assert before - {disconnected.id} == {each.id for each in loop.list_active()}


def test_an_unknown_allocation_that_was_stopped_is_not_migrated_when_its_node_reconnects() -> None:
    loop = with_one_disconnected(replace(A_GROUP, count=3))
    (disconnected,) = [each for each in loop.list_active() if each.client_status is ClientStatus.UNKNOWN]
    loop.register(a_job("shop", replace(A_GROUP, count=2, tasks=(a_task(env={"V": "1"}),))))
    loop.settle()
    stopped = loop.allocation(disconnected.id)
    assert stopped.is_server_terminal
    loop.put_led(ALLOCATIONS.build_put(replace(stopped, desired_transition=DesiredTransition(migrate=True))))
    other = loop.list_active()[-1]
    loop.lose_node(other.node_id, NodeStatus.DISCONNECTED)
    loop.process_pending()
    before = {allocation.id for allocation in loop.list_allocations()}

    loop.reconnect_node(disconnected.node_id)
    loop.process_pending()

    assert before == {allocation.id for allocation in loop.list_allocations()}
