"""What services of an allocation say to the cluster, and how they are looked at: read out of the job and what was given."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.services import OnUpdate, Service, ServiceCheck
from wharf.contract.model.services import ServiceRegistration, make_registration_id
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep
from wharf.node.services.checks import SECOND_NS, CheckSpec
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.interpolation import ReferenceValues, resolve_text

GROUP_OWNER_PREFIX: Final = "group-"
ALLOCATION_ADDRESS_MODE: Final = "alloc"


class ServiceInstance(NamedTuple):
    """A service with where it is: in a task, or (with an empty name) of the whole group."""

    service: Service
    task: str
    address: str
    port: int


class AllocationCheck(NamedTuple):
    """A check, and what it is a check of."""

    spec: CheckSpec
    service: str
    task: str
    """Empty: of the whole group."""
    script_task: str
    """The task that a script runs in, and that is restarted."""


def list_services(work: AssignedAllocation, job: Job, place: TaskHost) -> Iterator[ServiceInstance]:
    """Those that the cluster itself lists."""
    group = job.find_group(work.task_group)
    if group is None:
        return
    owned = [("", service) for service in group.services or ()]
    owned += [(task.name, service) for task in group.tasks or () for service in task.services or ()]
    for task, service in owned:
        if service.is_native:
            yield ServiceInstance(service, task, *_address(work, service.port_label, service.address_mode, place))


def is_service_up(record: AllocationRecord, announced: ServiceInstance) -> bool:
    """Taken off the list before anything of it is told to end."""
    if record.is_to_stop:
        return False
    tasks = [record.task(announced.task)] if announced.task else record.tasks
    return any(task.step is TaskStep.RUNNING and not task.is_to_end and not task.begins_anew for task in tasks)


def build_registration(
    work: AssignedAllocation, announced: ServiceInstance, place: TaskHost, facts: ReferenceValues
) -> ServiceRegistration:
    service = announced.service
    owner = announced.task or f"{GROUP_OWNER_PREFIX}{work.task_group}"
    name = resolve_text(service.name, facts)
    return ServiceRegistration(
        id=make_registration_id(alloc_id=work.id, owner=owner, service=name, port_label=service.port_label),
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


def list_checks(
    work: AssignedAllocation, job: Job, place: TaskHost, facts_of: Callable[[str], ReferenceValues]
) -> list[AllocationCheck]:
    """`facts_of`: of a task by its name; empty: of the group."""
    found = []
    for announced in list_services(work, job, place):
        if not announced.service.checks:
            continue
        facts = facts_of(announced.task)
        for check in announced.service.checks or ():
            label = check.port_label or announced.service.port_label
            mode = check.address_mode or announced.service.address_mode
            address, port = _address(work, label, mode, place)
            wanted = _wanted(work, announced, check, address, port, facts)
            name = resolve_text(announced.service.name, facts)
            found.append(AllocationCheck(wanted, name, announced.task, check.task_name or announced.task))
    return found


def _wanted(
    work: AssignedAllocation,
    announced: ServiceInstance,
    check: ServiceCheck,
    address: str,
    port: int,
    facts: ReferenceValues,
) -> CheckSpec:
    service = announced.service
    said = resolve_text(check.name, facts) or f'service: "{service.name}" check'
    restart = check.check_restart or service.check_restart
    on_update = check.on_update or service.on_update
    return CheckSpec(
        id=make_check_id(work, announced, said, check),
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
        should_skip_tls_verify=check.tls_skip_verify,
        server_name=check.tls_server_name,
        grpc_service=check.grpc_service,
        command=(check.command, *(resolve_text(argument, facts) for argument in check.args or ())),
        successes_needed=check.success_before_passing,
        failures_needed=check.failures_before_critical,
        is_initially_passing=check.initial_status == "passing",
        is_readiness=on_update == OnUpdate.IGNORE,
        should_ignore_warnings=on_update in (OnUpdate.IGNORE_WARNINGS, OnUpdate.IGNORE),
        restart_limit=restart.limit if restart is not None else 0,
        restart_grace_s=restart.grace / SECOND_NS if restart is not None else 0.0,
        should_ignore_warnings_for_restart=restart.ignore_warnings if restart is not None else False,
    )


def make_check_id(work: AssignedAllocation, announced: ServiceInstance, name: str, check: ServiceCheck) -> str:
    parts = (work.id, work.task_group, announced.task, announced.service.name, name, check.type, check.path)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _address(work: AssignedAllocation, label: str, mode: str, place: TaskHost) -> tuple[str, int]:
    """Of a port by its label, or by its number; with the mode `alloc` as it is within the allocation's own network."""
    is_inside = mode == ALLOCATION_ADDRESS_MODE and bool(place.allocation_address)
    if not label:
        return (place.allocation_address, 0) if is_inside else ("", 0)
    allocated = work.allocated_resources
    for port in (allocated.shared.ports or ()) if allocated is not None else ():
        if port.label == label:
            if is_inside:
                return place.allocation_address, port.to if port.to > 0 else port.value
            return port.host_ip or place.address, port.value
    if not label.isdecimal():
        return "", 0
    return (place.allocation_address if is_inside else place.address), int(label)
