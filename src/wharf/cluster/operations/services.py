"""Services that are registered: which of their instances a caller is to use, and taking one off the list."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODES, REGISTRATIONS_OF_ALLOCATION, REGISTRATIONS_ON_NODE, SERVICES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.services import ServiceRegistration


class InstanceChoice(msgspec.Struct, frozen=True):
    """So many instances, the same for the same key as long as they are there."""

    count: int
    key: str


def parse_instance_choice(text: str) -> InstanceChoice:
    """From `<n>|<key>`."""
    number, mark, key = text.partition("|")
    is_number = number.isascii() and number.isdigit() and len(number) <= 9
    if not mark or not key or not is_number or not int(number):
        raise invalid_request(f'choose must be "<number>|<key>", such as "2|my-client": got "{text}"')
    return InstanceChoice(int(number), key)


def choose_instances(registrations: Iterable[ServiceRegistration], choice: InstanceChoice) -> list[ServiceRegistration]:
    """The instances that score highest for the key.

    Each scores by itself, so an instance that comes or goes changes the choice of few.
    """
    return sorted(registrations, key=lambda each: (_score(each.id, choice.key), each.id), reverse=True)[: choice.count]


def _score(registration_id: str, key: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{registration_id}".encode(), digest_size=8).digest()


def delete_service(
    snapshot: Replica, namespace: str, service: str, registration_id: str, *, cause: str = ""
) -> Decision[int]:
    """Take one instance off the list; answers the index of that."""
    registration = snapshot.get(SERVICES, namespace, registration_id)
    if registration is None or registration.service_name != service:
        raise not_found("service registration not found")
    write = Write(
        "service-deleted",
        Cause(CauseKind.REQUEST, cause),
        [SERVICES.build_delete(namespace, registration_id)],
        [snapshot.build_record_condition(SERVICES, registration)],
    )
    return Decision(write, lambda index: index)


def delete_node_services(snapshot: Replica, node_id: str, *, max_services: int) -> Write | None:
    """Services that nobody can reach are taken off the list, so many at a time; None where there are none.

    A node that comes back tells of those that run.
    """
    gone = list(islice(snapshot.list_by_index(REGISTRATIONS_ON_NODE, node_id), max_services))
    if not gone:
        return None
    return Write(
        "services-lost",
        Cause(CauseKind.NODE, node_id),
        [SERVICES.build_delete(each.namespace, each.id) for each in gone],
        [
            snapshot.build_key_condition(NODES, node_id),
            *(snapshot.build_record_condition(SERVICES, each) for each in gone),
        ],
    )


def build_service_changes(
    snapshot: Replica, allocation: Allocation, reported: Sequence[ServiceRegistration] | None
) -> tuple[list[PutRecord | DeleteRecord], list[Condition]]:
    """What its node says of an allocation's services becomes the list of them. What is over has none.

    Whose they are is known here, and is not the node's to say.
    """
    stored = {each.id: each for each in snapshot.list_by_index(REGISTRATIONS_OF_ALLOCATION, allocation.id)}
    if allocation.is_client_terminal:
        reported = ()
    if reported is None:
        return [], []
    wanted: dict[str, ServiceRegistration] = {}
    for each in reported:
        known = stored.get(each.id)
        wanted[each.id] = msgspec.structs.replace(
            each,
            namespace=allocation.namespace,
            node_id=allocation.node_id,
            job_id=allocation.job_id,
            alloc_id=allocation.id,
            create_index=known.create_index if known is not None else WRITE_INDEX,
            modify_index=known.modify_index if known is not None else WRITE_INDEX,
        )
    changes: list[PutRecord | DeleteRecord] = []
    conditions: list[Condition] = []
    for id, each in wanted.items():
        known = stored.get(id)
        if known is None or msgspec.structs.replace(each, modify_index=known.modify_index) != known:
            changes.append(SERVICES.build_put(msgspec.structs.replace(each, modify_index=WRITE_INDEX)))
            conditions.append(snapshot.build_key_condition(SERVICES, allocation.namespace, id))
    for id, gone in stored.items():
        if id not in wanted:
            changes.append(SERVICES.build_delete(gone.namespace, id))
            conditions.append(snapshot.build_record_condition(SERVICES, gone))
    return changes, conditions
