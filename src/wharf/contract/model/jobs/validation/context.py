"""Rules that set a job against other records: its namespace, its node pool, the version that it replaces.

They take plain values, so that whoever holds a snapshot decides what to look up. What a version of a job may not change
is told as one sentence, as the reference does (jobs.md 6), not among the problems of a specification.
"""

from collections.abc import Collection

from wharf.contract.model.jobs.job import ALL_NODE_POOL, Job, JobType
from wharf.contract.model.jobs.validation.findings import Findings, ValidationReport

SYSTEM_JOB_SCALING_ERROR = "Task groups with job type system do not support scaling blocks"


def check_namespace_and_node_pool(job: Job, *, namespace_exists: bool, node_pool_exists: bool) -> Findings:
    """Where the job is to live."""
    report = ValidationReport()
    if not namespace_exists:
        report.add_error("Namespace", f'job "{job.id}" is in nonexistent namespace "{job.namespace}"')
    if not node_pool_exists and job.node_pool != ALL_NODE_POOL:
        report.add_error("NodePool", f'job "{job.id}" is in nonexistent node pool "{job.node_pool}"')
    return report.build_findings()


def check_drivers(job: Job, *, enabled: Collection[str] | None, disabled: Collection[str] | None) -> Findings:
    """The drivers that the namespace allows: none named means all, and what is disabled wins."""
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
    """The network modes that the namespace allows."""
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


def _is_allowed(word: str, enabled: Collection[str] | None, disabled: Collection[str] | None) -> bool:
    if disabled and word in disabled:
        return False
    return not enabled or word in enabled


def merge_findings(*findings: Findings) -> Findings:
    """Several findings as one."""
    return Findings(
        tuple(entry for part in findings for entry in part.entries),
        tuple(warning for part in findings for warning in part.warnings),
    )


def find_update_error(old: Job, new: Job) -> str | None:
    """Why the new job can not be a version of the old one; None if it can."""
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
    """Why a submitted job is refused before it is validated: a system job has no count to scale (jobs.md 6)."""
    if job.type == JobType.SYSTEM and any(group.scaling is not None for group in job.groups):
        return SYSTEM_JOB_SCALING_ERROR
    return None
