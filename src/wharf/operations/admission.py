"""From a job as it was submitted to the job that would be stored: made canonical, judged by every rule at once.

It refuses or answers; what is then written is decided in `jobs`.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from wharf.model.canonical import canonicalize
from wharf.model.group import TaskGroup
from wharf.model.implied import with_implied_constraints
from wharf.model.job import Job
from wharf.model.job_settings import JobSettings
from wharf.model.namespace import Namespace
from wharf.model.refusal import invalid
from wharf.model.validation import (
    Findings,
    check_drivers,
    check_network_modes,
    check_places,
    merged,
    refuse_scaling,
    submission_warnings,
    validate,
    warning_text,
)
from wharf.state import Replica
from wharf.state.tables import NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION


class Judged(msgspec.Struct, frozen=True):
    """The job in its canonical form, whatever is wrong with it."""

    job: Job
    findings: Findings
    warnings: str


class Admitted(msgspec.Struct, frozen=True):
    """A job that breaks no rule, and the warnings for whoever submitted it."""

    job: Job
    warnings: str


def admit(
    snapshot: Replica, submitted: Job, settings: JobSettings, *, warnings_of_reading: Sequence[str] = ()
) -> Admitted:
    """The job as it would be stored. Refused with all that is wrong (jobs.md 6)."""
    judged = judge(snapshot, submitted, settings, warnings_of_reading=warnings_of_reading)
    if not judged.findings.is_valid:
        raise invalid(judged.findings.text)
    return Admitted(judged.job, judged.warnings)


def judge(
    snapshot: Replica, submitted: Job, settings: JobSettings, *, warnings_of_reading: Sequence[str] = ()
) -> Judged:
    """What is right and wrong with the job. Refused only where it is not even a question of rules."""
    refused = refuse_scaling(submitted)
    if refused is not None:
        raise invalid(refused)
    namespace = snapshot.get(NAMESPACES, submitted.namespace)
    job = with_implied_constraints(canonicalize(submitted, _settings_in(namespace, settings)))
    findings = _judge(snapshot, job, namespace, settings_now(snapshot, settings))
    warnings = (*warnings_of_reading, *submission_warnings(submitted), *findings.warnings)
    return Judged(job, findings, warning_text(warnings))


def preserving(job: Job, stored: Job | None, *, counts: bool, resources: bool) -> Job:
    """The job with the counts and resources that groups and tasks of the same name have now, where asked for."""
    if stored is None or not (counts or resources):
        return job
    groups = [
        _group_preserving(group, stored.group(group.name), counts=counts, resources=resources) for group in job.groups
    ]
    return replace(job, task_groups=tuple(groups))


def _group_preserving(group: TaskGroup, now: TaskGroup | None, *, counts: bool, resources: bool) -> TaskGroup:
    if now is None:
        return group
    if counts:
        group = replace(group, count=now.count)
    if resources:
        given = {task.name: task.resources for task in now.tasks or ()}
        tasks = [replace(task, resources=given.get(task.name, task.resources)) for task in group.tasks or ()]
        group = replace(group, tasks=tuple(tasks))
    return group


def settings_now(snapshot: Replica, settings: JobSettings) -> JobSettings:
    """What operators have set since the server was started counts too."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None:
        return settings
    return replace(settings, memory_oversubscription=configuration.memory_oversubscription_enabled)


def _settings_in(namespace: Namespace | None, settings: JobSettings) -> JobSettings:
    """A namespace may name the pool of its jobs that name none."""
    pools = namespace.node_pool_configuration if namespace is not None else None
    return replace(settings, node_pool=pools.default) if pools is not None and pools.default else settings


def _judge(snapshot: Replica, job: Job, namespace: Namespace | None, settings: JobSettings) -> Findings:
    findings = [
        validate(job, settings),
        check_places(
            job,
            namespace_exists=namespace is not None,
            node_pool_exists=snapshot.get(NODE_POOLS, job.node_pool) is not None,
        ),
    ]
    allowed = namespace.capabilities if namespace is not None else None
    if allowed is not None:
        findings += [
            check_drivers(job, enabled=allowed.enabled_task_drivers, disabled=allowed.disabled_task_drivers),
            check_network_modes(job, enabled=allowed.enabled_network_modes, disabled=allowed.disabled_network_modes),
        ]
    return merged(*findings)
