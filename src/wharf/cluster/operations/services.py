"""Service registrations: store what nodes report, delete them, and choose instances for a caller."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from wharf.cluster.operations import declared_services
from wharf.cluster.operations.decision import Decision, build_delete_decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODES, REGISTRATIONS_OF_ALLOCATION, REGISTRATIONS_ON_NODE, SERVICES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.services import ServiceRegistration


class InstanceChoice(msgspec.Struct, frozen=True):
    """A request for a limited number of instances of a service."""

    count: int  # How many instances to return.
    key: str  # Chosen by the caller. The same key gets the same instances while they exist.


def parse_instance_choice(text: str) -> InstanceChoice:
    """Parse a text of the form `<count>|<key>`, such as `2|my-client`. Raises for any other text."""
    number, separator, key = text.partition("|")
    is_number = number.isascii() and number.isdigit() and len(number) <= 9
    if not separator or not key or not is_number or not int(number):
        raise invalid_request(f'choose must be "<number>|<key>", such as "2|my-client": got "{text}"')
    return InstanceChoice(int(number), key)


def choose_instances(registrations: Iterable[ServiceRegistration], choice: InstanceChoice) -> list[ServiceRegistration]:
    """Return the `choice.count` instances with the highest scores for the caller's key.

    Each instance is scored independently, so adding or removing one changes the choice for few keys.
    """
    return sorted(
        registrations, key=lambda registration: (_score(registration.id, choice.key), registration.id), reverse=True
    )[: choice.count]


def _score(registration_id: str, key: str) -> bytes:
    """Return a pseudo-random score of an instance for the key. All servers compute the same score."""
    return hashlib.blake2b(f"{key}\0{registration_id}".encode(), digest_size=8).digest()


def delete_service(
    snapshot: Replica, namespace: str, service: str, registration_id: str, *, cause: str = ""
) -> Decision[int]:
    """Return the decision that deletes one registration of a service. Raises not-found if it does not exist."""
    registration = snapshot.get(SERVICES, namespace, registration_id)
    if registration is None or registration.service_name != service:
        raise not_found("service registration not found")
    return build_delete_decision(
        snapshot,
        SERVICES,
        namespace,
        registration_id,
        write_kind="service-deleted",
        cause=Cause(CauseKind.REQUEST, cause),
    )


def delete_node_services(snapshot: Replica, node_id: str, *, max_services: int) -> Write | None:
    """Return the write that deletes up to `max_services` service registrations on a lost node, or `None` without any.

    A node that reconnects reports its running services again.
    """
    removed = list(islice(snapshot.list_by_index(REGISTRATIONS_ON_NODE, node_id), max_services))
    if not removed:
        return None
    return Write(
        "services-lost",
        Cause(CauseKind.NODE, node_id),
        [SERVICES.build_delete(registration.namespace, registration.id) for registration in removed],
        [
            snapshot.build_key_condition(NODES, node_id),
            *(snapshot.build_record_condition(SERVICES, registration) for registration in removed),
        ],
    )


class ServiceChanges(msgspec.Struct, frozen=True):
    """The changes that make the stored service registrations of an allocation equal to the reported ones."""

    changes: list[PutRecord | DeleteRecord]
    conditions: list[Condition]
    refused_count: int = 0
    """Reported registrations that are not of the allocation. They change nothing. Those of a purged job do not count."""


def build_service_changes(
    snapshot: Replica, allocation: Allocation, reported: Sequence[ServiceRegistration] | None
) -> ServiceChanges:
    """Return the changes that make the stored service registrations of an allocation equal to the reported ones.

    `None`: the report does not cover services, and nothing changes. A terminal allocation has no services. Namespace,
    node, job and allocation are taken from the stored allocation, not from the report. A registration is refused if
    the job has no such service, or if its id is stored for another allocation.
    """
    stored = {
        registration.id: registration
        for registration in snapshot.list_by_index(REGISTRATIONS_OF_ALLOCATION, allocation.id)
    }
    if allocation.is_client_terminal:
        reported = ()
    if reported is None:
        return ServiceChanges([], [])
    accepted = [
        each
        for each in declared_services.select_declared(snapshot, allocation, reported)
        if each.id in stored or snapshot.get(SERVICES, allocation.namespace, each.id) is None
    ]
    current: dict[str, ServiceRegistration] = {}
    for registration in accepted:
        stored_registration = stored.get(registration.id)
        current[registration.id] = msgspec.structs.replace(
            registration,
            namespace=allocation.namespace,
            node_id=allocation.node_id,
            job_id=allocation.job_id,
            alloc_id=allocation.id,
            create_index=stored_registration.create_index if stored_registration is not None else WRITE_INDEX,
            modify_index=stored_registration.modify_index if stored_registration is not None else WRITE_INDEX,
        )
    changes: list[PutRecord | DeleteRecord] = []
    conditions: list[Condition] = []
    for id, registration in current.items():
        stored_registration = stored.get(id)
        if (
            stored_registration is None
            or msgspec.structs.replace(registration, modify_index=stored_registration.modify_index)
            != stored_registration
        ):
            changes.append(SERVICES.build_put(msgspec.structs.replace(registration, modify_index=WRITE_INDEX)))
            conditions.append(snapshot.build_key_condition(SERVICES, allocation.namespace, id))
    for id, removed in stored.items():
        if id not in current:
            changes.append(SERVICES.build_delete(removed.namespace, id))
            conditions.append(snapshot.build_record_condition(SERVICES, removed))
    is_judged = declared_services.is_job_stored(snapshot, allocation)
    return ServiceChanges(changes, conditions, len(reported) - len(accepted) if is_judged else 0)
