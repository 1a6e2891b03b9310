"""Service registrations: the address of one instance of a service. A registration exists as long as its allocation."""

from typing import Final

from wharf.contract.model.record import Record

GROUP_OWNER_PREFIX: Final = "group-"
"""Begins the owner name of services that belong to the whole group."""


class ServiceRegistration(Record):
    """The address of one instance of a service. The record exists as long as the allocation of the instance."""

    id: str
    service_name: str
    namespace: str
    node_id: str = ""
    datacenter: str = ""
    job_id: str = ""
    alloc_id: str = ""
    tags: tuple[str, ...] | None = None
    address: str = ""
    port: int = 0
    create_index: int = 0
    modify_index: int = 0


def make_registration_id(*, alloc_id: str, owner: str, service: str, port_label: str) -> str:
    """Return the ID of the registration of a service instance.

    `owner` is the task's name, or `group-` and the group's name.
    """
    return f"_nomad-task-{alloc_id}-{owner}-{service}-{port_label}"
