"""A node that was out of contact comes back: of each original and its replacement exactly one goes on (scheduling.md 5.9)."""

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


def with_one_out_of_contact(group: TaskGroup) -> Loop:
    """Of a group that was placed; nobody has been replaced yet."""
    loop = Loop()
    for node_id in ("n0", "n1", "n2"):
        loop.with_node(node_id)
    loop.register(a_job("shop", group))
    loop.settle()
    loop.lose(loop.live()[0].node_id, NodeStatus.DISCONNECTED)
    loop.think()
    return loop


def with_a_replacement(reconcile: str) -> Loop:
    """Two of a service, one of them out of contact and replaced."""
    loop = Loop()
    for node_id in ("n0", "n1", "n2"):
        loop.with_node(node_id)
    disconnect = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile=reconcile)
    group = a_group("web", count=2, disconnect=disconnect, reschedule_policy=RETRY)
    loop.register(a_job("shop", group))
    loop.settle()
    loop.lose(loop.live()[0].node_id, NodeStatus.DISCONNECTED)
    loop.settle()
    loop.pass_time(6)
    loop.settle()
    return loop


@pytest.mark.parametrize("reconcile", STRATEGIES)
@pytest.mark.parametrize("is_looked_at_first", [True, False])
def test_after_its_return_as_many_run_as_are_wanted_and_one_under_each_name(
    reconcile: str, is_looked_at_first: bool
) -> None:
    loop = with_a_replacement(reconcile)
    (lost,) = [each for each in loop.live() if each.client_status is ClientStatus.UNKNOWN]
    loop.come_back(lost.node_id)
    if is_looked_at_first:  # Before the node has said what runs on it.
        loop.think()
    if not loop.allocation(lost.id).is_server_terminal:
        loop.tell(lost, ClientStatus.RUNNING)
    loop.look_at(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    assert sorted(each.name for each in loop.live()) == ["shop.web[0]", "shop.web[1]"]
    assert loop.allocation(lost.id).is_server_terminal == (reconcile == "keep_replacement")


@pytest.mark.parametrize("reconcile", STRATEGIES)
def test_while_it_is_away_nobody_is_placed_twice_for_it(reconcile: str) -> None:
    loop = with_a_replacement(reconcile)
    loop.look_at()
    loop.settle()

    assert len(loop.live()) == 3


def timeouts(loop: Loop) -> list[str]:
    trigger = EvaluationTrigger.MAX_DISCONNECT_TIMEOUT
    return [each.id for each in loop.open_evaluations() if each.triggered_by is trigger]


def is_back(loop: Loop, away: Allocation) -> None:
    loop.come_back(away.node_id)
    loop.tell(away, ClientStatus.RUNNING)
    loop.look_at(trigger=EvaluationTrigger.RECONNECT)


def test_what_is_in_contact_again_is_not_to_be_given_up_any_more() -> None:
    loop = with_one_out_of_contact(A_GROUP)
    (away,) = [each for each in loop.live() if each.client_status is ClientStatus.UNKNOWN]
    before = timeouts(loop)
    is_back(loop, away)

    assert (before, timeouts(loop)) == ([loop.allocation(away.id).followup_eval_id], [])


def test_while_another_is_out_of_contact_it_is_still_to_be_given_up_in_its_time() -> None:
    loop = with_one_out_of_contact(
        replace(A_GROUP, count=2, disconnect=replace(NEVER_REPLACED, lost_after=SECOND_NS * 600))
    )
    for node_id in {each.node_id for each in loop.live() if each.client_status is not ClientStatus.UNKNOWN}:
        loop.lose(node_id, NodeStatus.DISCONNECTED)
    loop.think()
    first, second = loop.live()
    is_back(loop, first)

    assert timeouts(loop) == [loop.allocation(second.id).followup_eval_id]


def test_who_is_back_and_one_too_many_beside_another_that_took_its_place_is_told_to_stop() -> None:
    loop = with_a_replacement("keep_original")
    (lost,) = [each for each in loop.live() if each.client_status is ClientStatus.UNKNOWN]
    loop.come_back(lost.node_id)
    loop.tell(lost, ClientStatus.RUNNING)
    loop.put_led(
        ALLOCATIONS.build_put(replace(loop.allocation(lost.id), next_allocation=""))
    )  # Nobody knows of the other.
    loop.look_at(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    assert sorted(each.name for each in loop.live()) == ["shop.web[0]", "shop.web[1]"]


def test_who_was_moved_away_while_it_was_out_of_contact_is_replaced_once() -> None:
    group = a_group("web", count=1, disconnect=DisconnectPolicy(lost_after=600 * SECOND_NS))
    loop = with_one_out_of_contact(group)
    (original,) = loop.live()
    loop.come_back(original.node_id)
    loop.tell(original, ClientStatus.RUNNING)
    moved = replace(loop.allocation(original.id), desired_transition=DesiredTransition(migrate=True))
    loop.put_led(ALLOCATIONS.build_put(moved))

    loop.look_at()
    # Its node has not stopped it yet, and that they do not know of it is still the last that servers said.
    loop.register(a_job("shop", replace(group, count=3)))
    loop.look_at()

    assert ["shop.web[0]", "shop.web[1]", "shop.web[2]"] == sorted(each.name for each in loop.live())


def test_who_takes_the_place_of_one_out_of_contact_shares_its_name_with_nobody_new() -> None:
    loop = with_one_out_of_contact(A_GROUP)
    loop.pass_time(6)

    loop.register(a_job("shop", replace(A_GROUP, count=3)))
    loop.look_at()

    known = [each for each in loop.live() if each.client_status is not ClientStatus.UNKNOWN]
    assert ["shop.web[0]", "shop.web[1]", "shop.web[2]"] == sorted(each.name for each in known)


def test_who_is_out_of_contact_is_replaced_though_a_placement_for_it_was_refused_before() -> None:
    loop = with_one_out_of_contact(A_GROUP)
    (original,) = loop.live()
    # What a plan leaves whose stops were committed and whose placement was not.
    loop.put_led(ALLOCATIONS.build_put(replace(loop.allocation(original.id), next_allocation="never-came-to-be")))
    loop.pass_time(6)

    loop.settle()

    (replacement,) = [each for each in loop.live() if each.id != original.id]
    assert replacement.id == loop.allocation(original.id).next_allocation


def test_who_replaced_one_out_of_contact_and_failed_is_tried_again_in_its_place() -> None:
    loop = with_one_out_of_contact(A_GROUP)
    (original,) = loop.live()
    loop.pass_time(6)
    loop.settle()
    (first,) = [each for each in loop.live() if each.id != original.id]
    loop.tell(first, ClientStatus.FAILED)
    loop.look_at()  # Its turn comes after a delay: until then nobody else goes or comes.
    assert [] == [each for each in loop.of() if each.is_server_terminal]
    loop.pass_time(6)
    loop.settle()

    (second,) = [each for each in loop.live() if each.id != original.id]
    assert (first.id, original.name) == (second.previous_allocation, second.name)


def test_who_is_out_of_contact_is_not_replaced_again_when_the_first_who_replaced_it_was_collected() -> None:
    loop = with_one_out_of_contact(A_GROUP)
    (original,) = loop.live()
    loop.pass_time(6)
    loop.settle()
    (first,) = [each for each in loop.live() if each.id != original.id]
    loop.tell(first, ClientStatus.FAILED)
    loop.pass_time(6)
    loop.look_at()
    loop.settle()
    (second,) = [each for each in loop.live() if each.id != original.id]
    loop.put_led(ALLOCATIONS.build_delete(first.id))

    loop.look_at()
    loop.settle()

    assert {original.id, second.id} == {each.id for each in loop.live()}


def test_who_is_out_of_contact_and_replaced_is_not_exchanged_besides_when_the_job_moves_on() -> None:
    loop = with_one_out_of_contact(A_GROUP)
    loop.pass_time(6)
    loop.settle()

    loop.register(a_job("shop", replace(A_GROUP, tasks=(a_task(env={"V": "1"}),))))
    loop.look_at()

    assert [("shop.web[0]", 1)] == [(each.name, each.job_version) for each in loop.live()]


def test_an_unknown_allocation_with_a_replacement_is_stopped_when_the_job_changes_though_another_is_missing() -> None:
    loop = with_a_replacement("best_score")
    (other,) = [each for each in loop.live() if each.name == "shop.web[1]"]
    loop.tell(other, ClientStatus.COMPLETE)

    (group,) = loop.job().groups
    loop.register(a_job("shop", replace(group, tasks=(a_task(env={"V": "1"}),), update=UpdatePolicy(max_parallel=0))))
    loop.look_at()

    assert [("shop.web[0]", 1), ("shop.web[1]", 1)] == sorted((each.name, each.job_version) for each in loop.live())


def test_an_unknown_allocation_that_was_replaced_is_not_migrated_besides_when_its_node_reconnects() -> None:
    loop = with_a_replacement("best_score")
    (away,) = [each for each in loop.live() if each.client_status is ClientStatus.UNKNOWN]
    (other,) = [each for each in loop.live() if each.name == "shop.web[1]"]
    loop.put_led(ALLOCATIONS.build_put(replace(away, desired_transition=DesiredTransition(migrate=True))))
    loop.lose(other.node_id, NodeStatus.DISCONNECTED)
    loop.think()
    before = {each.id for each in loop.live()}

    loop.come_back(away.node_id)
    loop.think()

    assert before - {away.id} == {each.id for each in loop.live()}


def test_an_unknown_allocation_that_was_stopped_is_not_migrated_when_its_node_reconnects() -> None:
    loop = with_one_out_of_contact(replace(A_GROUP, count=3))
    (away,) = [each for each in loop.live() if each.client_status is ClientStatus.UNKNOWN]
    loop.register(a_job("shop", replace(A_GROUP, count=2, tasks=(a_task(env={"V": "1"}),))))
    loop.settle()
    stopped = loop.allocation(away.id)
    assert stopped.is_server_terminal
    loop.put_led(ALLOCATIONS.build_put(replace(stopped, desired_transition=DesiredTransition(migrate=True))))
    other = loop.live()[-1]
    loop.lose(other.node_id, NodeStatus.DISCONNECTED)
    loop.think()
    before = {each.id for each in loop.of()}

    loop.come_back(away.node_id)
    loop.think()

    assert before == {each.id for each in loop.of()}
