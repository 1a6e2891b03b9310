"""Rules that compare a job with other records: its namespace, its node pool, and the version that it replaces.

The functions take plain values; the caller looks them up in its snapshot. Changes that a new version must not make are reported
as one sentence, as in Nomad (jobs.md 6), not in the list of problems.
"""

from collections.abc import Collection

from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.validation.findings import Findings, ValidationReport
from wharf.contract.model.node_pools import ALL_NODE_POOL

SYSTEM_JOB_SCALING_ERROR = "Task groups with job type system do not support scaling blocks"


def check_namespace_and_node_pool(job: Job, *, namespace_exists: bool, node_pool_exists: bool) -> Findings:
    """Return an error for each of the job's namespace and node pool that does not exist.

    The pool of all nodes always exists.
    """
    report = ValidationReport()
    if not namespace_exists:
        report.add_error("Namespace", f'job "{job.id}" is in nonexistent namespace "{job.namespace}"')
    if not node_pool_exists and job.node_pool != ALL_NODE_POOL:
        report.add_error("NodePool", f'job "{job.id}" is in nonexistent node pool "{job.node_pool}"')
    return report.build_findings()


def check_drivers(job: Job, *, enabled: Collection[str] | None, disabled: Collection[str] | None) -> Findings:
    """Return an error for each task whose driver the namespace of the job does not allow.

    `enabled` and `disabled` are the lists of the namespace. An empty `enabled` allows all drivers; `disabled` takes
    precedence.
    """
    report = ValidationReport()
    for position, group in enumerate(job.groups):
        for number, task in enumerate(group.tasks or ()):
            if task.driver and not _is_allowed(task.driver, enabled, disabled):
                report.add_error(
                    f"TaskGroups[{position}].Tasks[{number}].Driver",
                    f'task driver "{task.driver}" is not allowed in namespace "{job.namespace}"',
                )
    return report.build_findings()


def check_network_modes(job: Job, *, enabled: Collection[str] | None, disabled: Collection[str] | None) -> Findings:
    """Return an error for each network whose mode the namespace of the job does not allow.

    `enabled` and `disabled` are the lists of the namespace. An empty `enabled` allows all modes; `disabled` takes
    precedence.
    """
    report = ValidationReport()
    for position, group in enumerate(job.groups):
        for number, network in enumerate(group.networks or ()):
            mode = network.mode or "host"
            if not _is_allowed(mode, enabled, disabled):
                report.add_error(
                    f"TaskGroups[{position}].Networks[{number}].Mode",
                    f'network mode "{mode}" is not allowed in namespace "{job.namespace}"',
                )
    return report.build_findings()


def _is_allowed(name: str, enabled: Collection[str] | None, disabled: Collection[str] | None) -> bool:
    """Return whether a name is not in `disabled`, and is in `enabled` or `enabled` is empty."""
    if disabled and name in disabled:
        return False
    return not enabled or name in enabled


def merge_findings(*findings: Findings) -> Findings:
    """Return the problems and warnings of several validations as one object."""
    return Findings(
        tuple(entry for part in findings for entry in part.entries),
        tuple(warning for part in findings for warning in part.warnings),
    )


def find_update_error(old: Job, new: Job) -> str | None:
    """Return why `new` cannot be a new version of the job `old`, or `None` if it can.

    The type of a job cannot change.
    """
    if old.type != new.type:
        return f'cannot update job from type "{old.type}" to "{new.type}"'
    if old.is_periodic and not new.is_periodic:
        return "cannot update periodic job to being non-periodic"
    if new.is_periodic and not old.is_periodic:
        return "cannot update non-periodic job to being periodic"
    if old.is_parameterized and not new.is_parameterized:
        return "cannot update parameterized job to being non-parameterized"
    if new.is_parameterized and not old.is_parameterized:
        return "cannot update non-parameterized job to being parameterized"
    return None


def find_scaling_error(job: Job) -> str | None:
    """Return the error for a system job with a scaling block, or `None`.

    System jobs have no count to scale (jobs.md 6).
    """
    if job.type == JobType.SYSTEM and any(group.scaling is not None for group in job.groups):
        return SYSTEM_JOB_SCALING_ERROR
    return None
