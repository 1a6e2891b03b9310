"""Rules for the volumes of a group and their mounts in tasks (jobs.md 2.11)."""

from collections.abc import Collection
from typing import Final

from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.jobs.volumes import NO_PLUGINS_TEXT, AccessMode, VolumeMount, VolumeRequest, VolumeType

HOST_ACCESS_MODES: Final = (
    "",
    AccessMode.SINGLE_NODE_READER,
    AccessMode.SINGLE_NODE_WRITER,
    AccessMode.SINGLE_NODE_SINGLE_WRITER,
    AccessMode.SINGLE_NODE_MULTI_WRITER,
)
PROPAGATION_MODES: Final = ("private", "host-to-task", "bidirectional")
SELINUX_LABELS: Final = ("", "z", "Z")


def check_volumes(group: TaskGroup, path: str, report: ValidationReport, *, job_type: str) -> None:
    """Add each problem of the volume requests of a group to the report. `path` is the path of the group."""
    for name, request in (group.volumes or {}).items():
        section = report.add_section(f"Task group volume validation for {name} failed")
        field_path = f"{path}.Volumes.{name}"
        if not request.source:
            section.add_error(f"{field_path}.Source", "volume has an empty source")
        if request.per_alloc:
            _check_per_alloc(request, group, field_path, section, job_type)
        if request.type == VolumeType.HOST:
            _check_host(request, field_path, section)
        elif request.type == VolumeType.CSI:
            section.add_error(
                f"{field_path}.Type",
                NO_PLUGINS_TEXT,
                "write the type host, and the name of a host volume as source; `wharf volume status` lists them",
            )


def _check_per_alloc(
    request: VolumeRequest, group: TaskGroup, path: str, report: ValidationReport, job_type: str
) -> None:
    """Add an error to the report for each feature that cannot be combined with one volume per allocation (`PerAlloc`).

    These are system jobs, canaries and sticky volumes.
    """
    if job_type in ("system", "sysbatch"):
        report.add_error(f"{path}.PerAlloc", f"volume cannot be per_alloc for {job_type} jobs")
    if group.update is not None and group.update.canary > 0:
        report.add_error(f"{path}.PerAlloc", "volume cannot be per_alloc when canaries are in use")
    if request.sticky:
        report.add_error(f"{path}.PerAlloc", "volume cannot be per_alloc and sticky at the same time")


def _check_host(request: VolumeRequest, path: str, report: ValidationReport) -> None:
    """Add each problem of a request for a host volume to the report."""
    if request.mount_options is not None:
        report.add_error(f"{path}.MountOptions", "host volumes cannot have mount options")
    if request.access_mode not in HOST_ACCESS_MODES:
        report.add_error(
            f"{path}.AccessMode",
            f'host volumes cannot be mounted with access mode "{request.access_mode}"',
            suggest_one_of(HOST_ACCESS_MODES[1:], request.access_mode),
        )
    elif request.access_mode == AccessMode.SINGLE_NODE_READER and not request.read_only:
        report.add_error(f"{path}.ReadOnly", f"{request.access_mode} volumes must be read-only")


def check_mounts(
    mounts: tuple[VolumeMount, ...] | None, volumes: Collection[str], path: str, report: ValidationReport
) -> None:
    """Add each problem of a task's volume mounts to the report.

    `volumes` are the names of the group's volume requests. `path` is the path of the task.
    """
    for position, mount in enumerate(mounts or ()):
        field_path = f"{path}.VolumeMounts[{position}]"
        if mount.volume not in volumes:
            report.add_error(
                f"{field_path}.Volume",
                f'Volume Mount ({position}) references undefined volume "{mount.volume}"',
                "add a volume of this name to the group, or fix the name",
            )
        if mount.propagation_mode not in PROPAGATION_MODES:
            report.add_error(
                f"{field_path}.PropagationMode",
                f'Volume Mount ({position}) has an invalid propagation mode: "{mount.propagation_mode}"',
                suggest_one_of(PROPAGATION_MODES, mount.propagation_mode),
            )
        if mount.selinux_label not in SELINUX_LABELS:
            report.add_error(
                f"{field_path}.SELinuxLabel",
                f'Volume Mount ({position}) has an invalid SELinux label: "{mount.selinux_label}"',
                suggest_one_of(SELINUX_LABELS[1:]),
            )
