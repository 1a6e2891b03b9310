"""Admission of a submitted job: bring it into canonical form and check it against all validation rules.

What is written for an admitted job is decided in `registration`.
"""

from collections.abc import Sequence, Set
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.jobs.arrays import require_array_format
from wharf.cluster.operations.jobs.job_needs import check_job_needs
from wharf.cluster.scheduling.feasibility.checker import has_healthy_driver, iter_healthy_drivers
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes, has_volume
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NAMESPACES, NODE_POOLS, NODES, SCHEDULER_CONFIGURATION
from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.implied_constraints import add_implied_constraints
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation import (
    Findings,
    check_drivers,
    check_existing_volumes,
    check_known_drivers,
    check_missing_drivers,
    check_namespace_and_node_pool,
    check_network_modes,
    find_scaling_error,
    format_warnings,
    list_submission_warnings,
    merge_findings,
    validate_job,
)
from wharf.contract.model.jobs.validation.context import MOCK_ALIAS
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import invalid_request

MAX_SCANNED_NODES: Final = 2_000
"""Limits the CPU time of a validation: how many nodes are searched for drivers and volumes."""


class JobValidation(msgspec.Struct, frozen=True):
    """The result of the validation of a submitted job."""

    job: Job  # The job in canonical form (with all defaults), whether valid or not.
    findings: Findings  # Errors, and warnings of the validation.
    warnings: tuple[object, ...]  # All warnings for the submitter.


class AdmittedJob(msgspec.Struct, frozen=True):
    """A valid job as it would be stored."""

    job: Job  # The job in canonical form, with all defaults.
    warnings: str  # Warnings for the submitter, as one text.


def admit_job(
    snapshot: Replica, submitted: Job, settings: JobSettings, *, parser_warnings: Sequence[str] = ()
) -> AdmittedJob:
    """Return the submitted job as it would be stored, in canonical form.

    Raises an error that lists all problems (jobs.md 6).

    `parser_warnings` are added to the warnings for the submitter.
    """
    validation = validate_submission(snapshot, submitted, settings, parser_warnings=parser_warnings)
    if not validation.findings.is_valid:
        raise invalid_request(validation.findings.text)
    require_array_format(snapshot, validation.job)
    in_cluster = check_against_nodes(snapshot, validation.job)
    # A registration may come before its nodes, so what they lack is no error.
    warnings = (*validation.warnings, *in_cluster.problems, *in_cluster.warnings)
    return AdmittedJob(validation.job, format_warnings(warnings))


def validate_submission(
    snapshot: Replica, submitted: Job, settings: JobSettings, *, parser_warnings: Sequence[str] = ()
) -> JobValidation:
    """Validate a submitted job and return it in canonical form, with all errors and warnings.

    Raises only if its scaling blocks cannot be interpreted. `parser_warnings` are added to the warnings.
    """
    scaling_error = find_scaling_error(submitted)
    if scaling_error is not None:
        raise invalid_request(scaling_error)
    namespace = snapshot.get(NAMESPACES, submitted.namespace)
    job = add_implied_constraints(canonicalize_job(submitted, _get_namespace_settings(namespace, settings)))
    findings = _validate_in_cluster(snapshot, job, namespace, get_current_settings(snapshot, settings))
    warnings = (*parser_warnings, *list_submission_warnings(submitted), *findings.warnings)
    return JobValidation(job, findings, warnings)


def check_against_nodes(snapshot: Replica, job: Job) -> Findings:
    """Return what the nodes of the cluster lack for a job: drivers that none announces, and host volumes that none has.

    Nothing is returned for volumes and built-in drivers if more than `MAX_SCANNED_NODES` nodes would have to be searched. For a
    job with built-in drivers and without volumes, the search ends at the first nodes that have the drivers.
    """
    drivers = {task.driver for group in job.groups for task in group.tasks or ()} - {MOCK_ALIAS, ""}
    has_volumes = any(group.volumes for group in job.groups)
    missing = _find_missing_drivers(snapshot, drivers & DRIVER_CONFIGS.keys())
    if drivers <= DRIVER_CONFIGS.keys() and not has_volumes:
        return check_missing_drivers(job, missing=missing)
    nodes = list(islice(snapshot.iter_all(NODES), MAX_SCANNED_NODES + 1))
    announced = {name for node in nodes for name in (*(node.drivers or ()), *iter_healthy_drivers(node))}
    findings = merge_findings(
        check_known_drivers(job, announced=announced), check_missing_drivers(job, missing=missing)
    )
    if len(nodes) > MAX_SCANNED_NODES:
        return findings
    find_volume = NamespaceVolumes(snapshot, job.namespace)
    volumes = check_existing_volumes(
        job, exists=lambda request: any(has_volume(node, request, find_volume) for node in nodes)
    )
    return merge_findings(findings, volumes)


def _find_missing_drivers(snapshot: Replica, drivers: Set[str]) -> Set[str]:
    """Return which of these drivers no node has healthy; none if there is no node, or too many to search."""
    missing = set(drivers)
    has_nodes = False
    for position, node in enumerate(snapshot.iter_all(NODES)):
        if not missing or position == MAX_SCANNED_NODES:
            return set()
        has_nodes = True
        missing -= {name for name in missing if has_healthy_driver(node, name)}
    return missing if has_nodes else set()


def preserve_stored_values(
    job: Job, stored: Job | None, *, should_preserve_counts: bool, should_preserve_resources: bool
) -> Job:
    """Return the job with the counts or the resources of the stored job, as requested.

    Groups and tasks are matched by name; new ones keep their own values.
    """
    if stored is None or not (should_preserve_counts or should_preserve_resources):
        return job
    groups = [
        _preserve_group_values(
            group,
            stored.find_group(group.name),
            should_preserve_counts=should_preserve_counts,
            should_preserve_resources=should_preserve_resources,
        )
        for group in job.groups
    ]
    return replace(job, task_groups=tuple(groups))


def _preserve_group_values(
    group: TaskGroup, stored: TaskGroup | None, *, should_preserve_counts: bool, should_preserve_resources: bool
) -> TaskGroup:
    """Return the group with the count or the task resources of the stored group, as requested."""
    if stored is None:
        return group
    if should_preserve_counts:
        group = replace(group, count=stored.count)
    if should_preserve_resources:
        stored_resources = {task.name: task.resources for task in stored.tasks or ()}
        tasks = [replace(task, resources=stored_resources.get(task.name, task.resources)) for task in group.tasks or ()]
        group = replace(group, tasks=tuple(tasks))
    return group


def get_current_settings(snapshot: Replica, settings: JobSettings) -> JobSettings:
    """Return the settings with the value for memory oversubscription that operators have configured."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None:
        return settings
    return replace(settings, memory_oversubscription=configuration.memory_oversubscription_enabled)


def _get_namespace_settings(namespace: Namespace | None, settings: JobSettings) -> JobSettings:
    """Return the settings with the default node pool of the namespace, if the namespace configures one."""
    pools = namespace.node_pool_configuration if namespace is not None else None
    return replace(settings, node_pool=pools.default) if pools is not None and pools.default else settings


def _validate_in_cluster(snapshot: Replica, job: Job, namespace: Namespace | None, settings: JobSettings) -> Findings:
    """Return the errors and warnings of the job, by general rules and by those of its namespace and node pool."""
    findings = [
        validate_job(job, settings),
        check_namespace_and_node_pool(
            job,
            namespace_exists=namespace is not None,
            node_pool_exists=snapshot.get(NODE_POOLS, job.node_pool) is not None,
        ),
        check_job_needs(snapshot, job),
    ]
    allowed = namespace.capabilities if namespace is not None else None
    if allowed is not None:
        findings += [
            check_drivers(job, enabled=allowed.enabled_task_drivers, disabled=allowed.disabled_task_drivers),
            check_network_modes(job, enabled=allowed.enabled_network_modes, disabled=allowed.disabled_network_modes),
        ]
    return merge_findings(*findings)
