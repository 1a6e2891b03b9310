"""Services that are registered: which of their instances a caller is to use, and taking one off the list."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from wharf.model.allocation import Allocation
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.refusal import invalid, unknown
from wharf.model.registration import ServiceRegistration
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import NODES, REGISTRATIONS_OF_ALLOCATION, REGISTRATIONS_ON_NODE, SERVICES


class Choice(msgspec.Struct, frozen=True):
    """So many instances, the same for the same key as long as they are there."""

    count: int
    key: str


def read_choice(text: str) -> Choice:
    """From `<n>|<key>`."""
    number, mark, key = text.partition("|")
    is_number = number.isascii() and number.isdigit() and len(number) <= 9
    if not mark or not key or not is_number or not int(number):
        raise invalid(f'choose must be "<number>|<key>", such as "2|my-client": got "{text}"')
    return Choice(int(number), key)


def choose(registrations: Iterable[ServiceRegistration], choice: Choice) -> list[ServiceRegistration]:
    """The instances that score highest for the key.

    Each scores by itself, so an instance that comes or goes changes the choice of few.
    """
    return sorted(registrations, key=lambda each: (_score(each.id, choice.key), each.id), reverse=True)[: choice.count]


def _score(registration_id: str, key: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{registration_id}".encode(), digest_size=8).digest()


def delete(snapshot: Replica, namespace: str, service: str, registration_id: str, *, cause: str = "") -> Decision[int]:
    """Take one instance off the list; answers the index of that."""
    registration = snapshot.get(SERVICES, namespace, registration_id)
    if registration is None or registration.service_name != service:
        raise unknown("service registration not found")
    write = Write(
        "service-deleted",
        Cause(CauseKind.REQUEST, cause),
        [SERVICES.drop(namespace, registration_id)],
        [snapshot.unchanged(SERVICES, registration)],
    )
    return Decision(write, lambda index: index)


def forget_node(snapshot: Replica, node_id: str, *, most: int) -> Write | None:
    """Services that nobody can reach are taken off the list, so many at a time; None where there are none.

    A node that comes back tells of those that run.
    """
    gone = list(islice(snapshot.those(REGISTRATIONS_ON_NODE, node_id), most))
    if not gone:
        return None
    return Write(
        "services-lost",
        Cause(CauseKind.NODE, node_id),
        [SERVICES.drop(each.namespace, each.id) for each in gone],
        [snapshot.as_seen(NODES, node_id), *(snapshot.unchanged(SERVICES, each) for each in gone)],
    )


def told_by_node(
    snapshot: Replica, allocation: Allocation, told: Sequence[ServiceRegistration] | None
) -> tuple[list[Put | Drop], list[Condition]]:
    """What its node says of an allocation's services becomes the list of them. What is over has none.

    Whose they are is known here, and is not the node's to say.
    """
    stored = {each.id: each for each in snapshot.those(REGISTRATIONS_OF_ALLOCATION, allocation.id)}
    if allocation.is_client_terminal:
        told = ()
    if told is None:
        return [], []
    wanted: dict[str, ServiceRegistration] = {}
    for each in told:
        known = stored.get(each.id)
        wanted[each.id] = msgspec.structs.replace(
            each,
            namespace=allocation.namespace,
            node_id=allocation.node_id,
            job_id=allocation.job_id,
            alloc_id=allocation.id,
            create_index=known.create_index if known is not None else THIS,
            modify_index=known.modify_index if known is not None else THIS,
        )
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    for id, each in wanted.items():
        known = stored.get(id)
        if known is None or msgspec.structs.replace(each, modify_index=known.modify_index) != known:
            changes.append(SERVICES.put(msgspec.structs.replace(each, modify_index=THIS)))
            conditions.append(snapshot.as_seen(SERVICES, allocation.namespace, id))
    for id, gone in stored.items():
        if id not in wanted:
            changes.append(SERVICES.drop(gone.namespace, id))
            conditions.append(snapshot.unchanged(SERVICES, gone))
    return changes, conditions
