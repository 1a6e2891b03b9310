"""Rules that compare a job with other records: its namespace, its node pool, and the version that it replaces.

The functions take plain values; the caller looks them up in its snapshot. Changes that a new version must not make are reported
as one sentence, as in Nomad (jobs.md 6), not in the list of problems.
"""

from collections.abc import Callable, Collection
from typing import Final

from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.validation.findings import Findings, ValidationReport
from wharf.contract.model.jobs.volumes import VolumeRequest, VolumeType
from wharf.contract.model.node_pools import ALL_NODE_POOL
from wharf.languages.suggestions import find_nearest_name

MOCK_ALIAS: Final = "mock_driver"
"""The name of the driver `mock` in jobs of Nomad."""
FOREIGN_DRIVERS: Final = frozenset({"containerd-driver", "exec2", "java", "lxc", "podman", "qemu", "virt"})
"""Drivers that exist for Nomad. Their names are no misspellings, although `exec2` is similar to `exec`."""
MAX_LISTED_DRIVERS: Final = 20
"""The known drivers that a warning lists; keeps it readable."""
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


def check_known_drivers(job: Job, *, announced: Collection[str]) -> Findings:
    """Return a finding for each task whose driver is neither built in nor announced by a node.

    A name that is similar to that of a driver is an error. Any other name may be that of a plug-in of a node that is not
    registered yet, so it is only a warning (record 0242).
    """
    report = ValidationReport()
    known = sorted({*DRIVER_CONFIGS, *announced})
    for position, group in enumerate(job.groups):
        for number, task in enumerate(group.tasks or ()):
            if not task.driver or task.driver in (*known, MOCK_ALIAS):
                continue
            path = f"TaskGroups[{position}].Tasks[{number}].Driver"
            nearest = find_nearest_name(task.driver, known)
            if nearest is not None and task.driver not in FOREIGN_DRIVERS:
                report.add_error(path, f'no node has the driver "{task.driver}"', f'did you mean "{nearest}"?')
            else:
                report.add_warning(
                    path,
                    f'no node has the driver "{task.driver}"',
                    f"the job waits for a node with this plug-in; the known drivers are {', '.join(known[:MAX_LISTED_DRIVERS])}",
                )
    return report.build_findings()


def check_missing_drivers(job: Job, *, missing: Collection[str]) -> Findings:
    """Return a warning for each task with one of the built-in drivers that no node has ready."""
    report = ValidationReport()
    for position, group in enumerate(job.groups):
        for number, task in enumerate(group.tasks or ()):
            if task.driver in missing:
                report.add_warning(
                    f"TaskGroups[{position}].Tasks[{number}].Driver",
                    f'no node has the driver "{task.driver}" ready',
                    "the job waits for such a node; `wharf node status --verbose NODE` shows why a node lacks it",
                )
    return report.build_findings()


def check_existing_volumes(job: Job, *, exists: Callable[[VolumeRequest], bool]) -> Findings:
    """Return a warning for each request for a host volume that no node has. `exists` finds the volume."""
    report = ValidationReport()
    for position, group in enumerate(job.groups):
        for name, request in (group.volumes or {}).items():
            if request.type == VolumeType.HOST and request.source and not exists(request):
                report.add_warning(
                    f"TaskGroups[{position}].Volumes.{name}.Source",
                    f'no node has the volume "{request.source}" with the access that the job requests',
                    "create it with `wharf volume create`, or request an access that the volume offers; until then the job waits",
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
