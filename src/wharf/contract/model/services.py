"""Service registrations: the address of one instance of a service. A registration exists as long as its allocation."""

from typing import Final

from wharf.contract.model.body_limits import find_long_name_problem, find_name_problem
from wharf.contract.model.jobs.networks import MAX_PORT
from wharf.contract.model.record import Record

MAX_SERVICE_CHARACTERS: Final = 65_536
"""Limit of the texts with references of all services of an allocation, after these were replaced.

Protects the memory of servers, which store each registration.
"""
MAX_REGISTRATION_ID_BYTES: Final = 1_024
"""UTF-8 bytes of the id of a registration. It contains the names of a group or task, of the service and of its port."""
_ID_PREFIX: Final = "_nomad-task-"
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


def find_registration_problem(registration: ServiceRegistration) -> str:
    """Return why a registration cannot be stored, and "" if it can: each one that is stored can be read and deleted.

    Its name, address and tags can contain values of a job that no server has checked, because a node has put them in
    place of references. The id must name the allocation, so that no node can replace a registration of another one.
    """
    if not registration.service_name:
        return "its name is empty"
    if problem := find_name_problem(registration.service_name):
        return f"its name {problem}"
    if problem := find_name_problem(registration.address):
        return f"its address {problem}"
    if not 0 <= registration.port <= MAX_PORT:
        return f"its port is not between 0 and {MAX_PORT}"
    if sum(map(len, registration.tags or ())) > MAX_SERVICE_CHARACTERS:
        return f"its tags have more than {MAX_SERVICE_CHARACTERS} characters together"
    if not registration.id.startswith(f"{_ID_PREFIX}{registration.alloc_id}-"):
        return "its id does not name its allocation"
    if problem := find_long_name_problem(registration.id, max_bytes=MAX_REGISTRATION_ID_BYTES):
        return f"its id {problem}"
    return ""


def make_registration_id(*, alloc_id: str, owner: str, service: str, port_label: str) -> str:
    """Return the ID of the registration of a service instance.

    `owner` is the task's name, or `group-` and the group's name.
    """
    return f"{_ID_PREFIX}{alloc_id}-{owner}-{service}-{port_label}"
