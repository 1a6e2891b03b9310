"""What services of an allocation say to the cluster, and how they are looked at: read out of the job and what was given."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from wharf.model.job import Job
from wharf.model.registration import ServiceRegistration, registration_id
from wharf.model.service import OnUpdate, Service, ServiceCheck
from wharf.node.agent.environment import Place
from wharf.node.agent.interpolation import Facts, resolve_text
from wharf.node.checks.wanted import SECOND_NS, Wanted
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep
from wharf.wire.shapes import DesiredWork

GROUP: Final = "group-"
INSIDE: Final = "alloc"


class Announced(NamedTuple):
    """A service with where it is: in a task, or (with an empty name) of the whole group."""

    service: Service
    task: str
    address: str
    port: int


class Looked(NamedTuple):
    """A check, and what it is a check of."""

    wanted: Wanted
    service: str
    task: str
    """Empty: of the whole group."""
    runs_in: str
    """The task that a script runs in, and that is restarted."""


def services_of(work: DesiredWork, job: Job, place: Place) -> Iterator[Announced]:
    """Those that the cluster itself lists."""
    group = job.group(work.task_group)
    if group is None:
        return
    owned = [("", service) for service in group.services or ()]
    owned += [(task.name, service) for task in group.tasks or () for service in task.services or ()]
    for task, service in owned:
        if service.is_native:
            yield Announced(service, task, *_address(work, service.port_label, service.address_mode, place))


def is_up(record: AllocationRecord, announced: Announced) -> bool:
    """Taken off the list before anything of it is told to end."""
    if record.is_to_stop:
        return False
    tasks = [record.task(announced.task)] if announced.task else record.tasks
    return any(task.step is TaskStep.RUNNING and not task.is_to_end and not task.begins_anew for task in tasks)


def registration(work: DesiredWork, announced: Announced, place: Place, facts: Facts) -> ServiceRegistration:
    service = announced.service
    owner = announced.task or f"{GROUP}{work.task_group}"
    name = resolve_text(service.name, facts)
    return ServiceRegistration(
        id=registration_id(alloc_id=work.id, owner=owner, service=name, port_label=service.port_label),
        service_name=name,
        namespace=work.namespace,
        node_id=place.node_id,
        datacenter=place.datacenter,
        job_id=work.job_id,
        alloc_id=work.id,
        tags=tuple(resolve_text(tag, facts) for tag in service.tags or ()),
        address=resolve_text(service.address, facts) or announced.address,
        port=announced.port,
    )


def checks_of(work: DesiredWork, job: Job, place: Place, facts_of: Callable[[str], Facts]) -> list[Looked]:
    """`facts_of`: of a task by its name; empty: of the group."""
    found = []
    for announced in services_of(work, job, place):
        if not announced.service.checks:
            continue
        facts = facts_of(announced.task)
        for check in announced.service.checks or ():
            label = check.port_label or announced.service.port_label
            mode = check.address_mode or announced.service.address_mode
            address, port = _address(work, label, mode, place)
            wanted = _wanted(work, announced, check, address, port, facts)
            name = resolve_text(announced.service.name, facts)
            found.append(Looked(wanted, name, announced.task, check.task_name or announced.task))
    return found


def _wanted(
    work: DesiredWork, announced: Announced, check: ServiceCheck, address: str, port: int, facts: Facts
) -> Wanted:
    service = announced.service
    said = resolve_text(check.name, facts) or f'service: "{service.name}" check'
    restart = check.check_restart or service.check_restart
    on_update = check.on_update or service.on_update
    return Wanted(
        id=check_id(work, announced, said, check),
        name=said,
        kind=check.type,
        interval_s=max(1.0, check.interval / SECOND_NS),
        timeout_s=max(1.0, check.timeout / SECOND_NS),
        host=address,
        port=port,
        is_tls=check.protocol == "https" or check.grpc_use_tls,
        path=resolve_text(check.path, facts),
        method=check.method or "GET",
        headers=tuple(
            (name, resolve_text(value, facts)) for name, values in (check.header or {}).items() for value in values
        ),
        body=resolve_text(check.body, facts),
        skips_verify=check.tls_skip_verify,
        server_name=check.tls_server_name,
        service=check.grpc_service,
        command=(check.command, *(resolve_text(argument, facts) for argument in check.args or ())),
        successes_needed=check.success_before_passing,
        failures_needed=check.failures_before_critical,
        is_well_at_first=check.initial_status == "passing",
        is_readiness=on_update == OnUpdate.IGNORE,
        takes_warnings=on_update in (OnUpdate.IGNORE_WARNINGS, OnUpdate.IGNORE),
        restart_limit=restart.limit if restart is not None else 0,
        restart_grace_s=restart.grace / SECOND_NS if restart is not None else 0.0,
        restart_takes_warnings=restart.ignore_warnings if restart is not None else False,
    )


def check_id(work: DesiredWork, announced: Announced, name: str, check: ServiceCheck) -> str:
    parts = (work.id, work.task_group, announced.task, announced.service.name, name, check.type, check.path)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _address(work: DesiredWork, label: str, mode: str, place: Place) -> tuple[str, int]:
    """Of a port by its label, or by its number; with the mode `alloc` as it is within the allocation's own network."""
    is_inside = mode == INSIDE and bool(place.own_address)
    if not label:
        return (place.own_address, 0) if is_inside else ("", 0)
    allocated = work.allocated_resources
    for port in (allocated.shared.ports or ()) if allocated is not None else ():
        if port.label == label:
            if is_inside:
                return place.own_address, port.to if port.to > 0 else port.value
            return port.host_ip or place.address, port.value
    if not label.isdecimal():
        return "", 0
    return (place.own_address if is_inside else place.address), int(label)
