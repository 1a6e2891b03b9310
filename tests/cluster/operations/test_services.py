"""Service registrations: choosing instances, and deleting one (nodes-allocations.md 5.1)."""

import pytest

from tests.kit.state import AState
from wharf.cluster.operations import services
from wharf.cluster.operations.services import InstanceChoice, choose_instances, parse_instance_choice
from wharf.cluster.state.tables import SERVICES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.services import ServiceRegistration


def an_instance(id: str = "i1", service: str = "web", namespace: str = "default") -> ServiceRegistration:
    return ServiceRegistration(id=id, service_name=service, namespace=namespace, create_index=WRITE_INDEX)


INSTANCES = [an_instance(f"i{number}") for number in range(10)]


def choose_ids(count: int, key: str, instances: list[ServiceRegistration] = INSTANCES) -> list[str]:
    return [each.id for each in choose_instances(instances, InstanceChoice(count, key))]


def test_the_same_key_chooses_the_same_instances_whatever_their_order() -> None:
    assert choose_ids(3, "me") == choose_ids(3, "me", INSTANCES[::-1])
    assert len(set(choose_ids(3, "me"))) == 3


def test_other_keys_choose_other_instances() -> None:
    assert len({tuple(choose_ids(1, f"client-{number}")) for number in range(100)}) == len(INSTANCES)


def test_all_instances_are_chosen_if_fewer_exist_than_requested() -> None:
    assert sorted(choose_ids(50, "me")) == [each.id for each in INSTANCES]


def test_a_removed_instance_changes_only_choices_that_contained_it() -> None:
    deleted = choose_ids(1, "me")[0]
    remaining = [each for each in INSTANCES if each.id != deleted]

    assert choose_ids(2, "me", remaining) == choose_ids(3, "me")[1:]


@pytest.mark.parametrize("text", ["2", "|me", "x|me", "-1|me", "0|me", "2|", "1.5|me", "", "9999999999|me"])
def test_an_invalid_choice_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse_instance_choice(text)

    assert (refusal.value.code, refusal.value.text) == (
        RefusalCode.INVALID,
        f'choose must be "<number>|<key>", such as "2|my-client": got "{text}"',
    )


def test_a_key_may_contain_the_separator() -> None:
    assert parse_instance_choice("2|a|b") == InstanceChoice(2, "a|b")


def test_an_instance_is_deleted() -> None:
    state = AState()
    state.put(SERVICES.build_put(an_instance("i1")), SERVICES.build_put(an_instance("i2")))

    index = state.do(services.delete_service(state.replica, "default", "web", "i1"))

    assert index == state.replica.index
    assert [each.id for each in state.replica.iter_all(SERVICES)] == ["i2"]


@pytest.mark.parametrize(
    ("namespace", "service", "id"), [("default", "web", "i9"), ("default", "db", "i1"), ("other", "web", "i1")]
)
def test_an_unknown_instance_is_not_found(namespace: str, service: str, id: str) -> None:
    state = AState()
    state.put(SERVICES.build_put(an_instance("i1")))

    with pytest.raises(Refusal) as refusal:
        services.delete_service(state.replica, namespace, service, id)

    assert (refusal.value.code, refusal.value.text) == (RefusalCode.NOT_FOUND, "service registration not found")


def test_the_instances_with_the_highest_scores_are_chosen_and_the_order_of_the_scores_is_stable() -> None:
    # Servers of all versions must choose alike: a client that asks two of them gets the same instances.
    assert choose_ids(3, "me") == ["i0", "i1", "i5"]
