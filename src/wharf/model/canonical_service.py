"""The canonical form of services and their checks (jobs.md 2.7): names worked out, checks inheriting from the service."""

from typing import Final

import msgspec

from wharf.model.identity import DEFAULT_CLUSTER
from wharf.model.job import Job
from wharf.model.service import OnUpdate, Service, ServiceCheck, ServiceProvider

HOLE: Final = "${"


def canonical_services(
    services: tuple[Service, ...] | None, *, job: Job, group: str, task: str | None
) -> tuple[Service, ...] | None:
    """The services of a group (task None) or of a task."""
    if not services:
        return None
    return tuple([_service(service, job, group, task) for service in services])


def _service(service: Service, job: Job, group: str, task: str | None) -> Service:
    provider = service.provider or ServiceProvider.CONSUL
    name = _service_name(service.name, job.name, group, task)
    on_update = service.on_update or OnUpdate.REQUIRE_HEALTHY
    service = msgspec.structs.replace(
        service,
        name=name,
        provider=provider,
        task_name=task if task is not None and not service.task_name else service.task_name,
        address_mode=service.address_mode or "auto",
        on_update=on_update,
        cluster=service.cluster or DEFAULT_CLUSTER,
        tags=service.tags or None,
        canary_tags=service.canary_tags or None,
        meta=service.meta or None,
        canary_meta=service.canary_meta or None,
        tagged_addresses=service.tagged_addresses or None,
        connect=service.connect or None,
    )
    if service.is_native:
        service = msgspec.structs.replace(service, namespace=job.namespace)
    checks = tuple([_check(check, service) for check in service.checks or ()])
    return msgspec.structs.replace(service, checks=checks or None)


def _check(check: ServiceCheck, service: Service) -> ServiceCheck:
    return msgspec.structs.replace(
        check,
        name=check.name or f'service: "{service.name}" check',
        port_label=check.port_label or service.port_label,
        on_update=check.on_update or service.on_update,
        check_restart=check.check_restart or service.check_restart,
        args=check.args or None,
        header=check.header or None,
    )


def _service_name(name: str, job: str, group: str, task: str | None) -> str:
    base = f"{job}-{group}" if task is None else f"{job}-{group}-{task}"
    name = name or base
    if HOLE not in name:
        return name
    values = {"${JOB}": job, "${TASKGROUP}": group, "${TASK}": task or "", "${BASE}": base}
    for hole, value in values.items():
        # A value with a hole of its own is left alone: filling it later would make another name each time.
        if HOLE not in value:
            name = name.replace(hole, value)
    return name
