"""Rules for the resources that a task requests (jobs.md 2.5a)."""

from typing import Final

from wharf.contract.model.jobs.resources import (
    MAX_RESOURCE_AMOUNT,
    MIN_CPU_MHZ,
    MIN_MEMORY_MB,
    UNLIMITED_MEMORY_MB,
    RequestedDevice,
    Resources,
)
from wharf.contract.model.jobs.validation.constraints import check_affinities, check_constraints
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of

NUMA_AFFINITIES: Final = ("none", "prefer", "require")


def check_resources(
    resources: Resources, path: str, report: ValidationReport, *, memory_oversubscription: bool
) -> None:
    """Add each problem of the resources that a task requests to the report.

    `path` is the path of the resources. `memory_oversubscription` is whether the cluster lets tasks use more memory
    than they reserve.
    """
    for name, amount in (
        ("CPU", resources.cpu),
        ("Cores", resources.cores),
        ("MemoryMB", resources.memory_mb),
        ("MemoryMaxMB", resources.memory_max_mb),
    ):
        check_largest_amount(name, amount, f"{path}.{name}", report)
    _check_processor(resources, path, report)
    _check_memory(resources, path, report, memory_oversubscription)
    if resources.iops:
        report.add_warning(f"{path}.IOPS", "IOPS has been deprecated and has no effect")
    if resources.networks:
        report.add_warning(
            f"{path}.Networks", "task network resources have been deprecated", "use the group's networks"
        )
    for position, device in enumerate(resources.devices or ()):
        section = report.add_section(f"Device {position + 1} validation failed")
        _check_device(device, f"{path}.Devices[{position}]", section)
    _check_numa(resources, f"{path}.NUMA", report)


def check_largest_amount(name: str, amount: int, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a job requests a larger amount of a resource than any node can have."""
    if amount > MAX_RESOURCE_AMOUNT:
        report.add_error(path, f"maximum {name} value is {MAX_RESOURCE_AMOUNT}; got {amount}")


def _check_processor(resources: Resources, path: str, report: ValidationReport) -> None:
    """Add an error to the report unless a task requests either enough MHz or whole cores."""
    if resources.cores < 0:
        report.add_error(f"{path}.Cores", f"minimum Cores value is 0; got {resources.cores}")
    if resources.cores > 0 and resources.cpu > 0:
        report.add_error(f"{path}.CPU", "Task can only ask for 'cpu' or 'cores' resource, not both.")
    elif resources.cpu < MIN_CPU_MHZ and not (resources.cores > 0 and resources.cpu == 0):
        report.add_error(f"{path}.CPU", f"minimum CPU value is {MIN_CPU_MHZ}; got {resources.cpu}")


def _check_memory(resources: Resources, path: str, report: ValidationReport, memory_oversubscription: bool) -> None:
    """Add each problem of the memory that a task requests to the report.

    A limit above the reservation gets a warning if the cluster does not allow it.
    """
    memory, max_memory = resources.memory_mb, resources.memory_max_mb
    if memory < MIN_MEMORY_MB:
        report.add_error(f"{path}.MemoryMB", f"minimum MemoryMB value is {MIN_MEMORY_MB}; got {memory}")
    if max_memory not in (0, UNLIMITED_MEMORY_MB) and max_memory < memory:
        report.add_error(
            f"{path}.MemoryMaxMB", f"MemoryMaxMB value ({max_memory}) should be larger than MemoryMB value ({memory})"
        )
    elif max_memory and not memory_oversubscription:
        report.add_warning(
            f"{path}.MemoryMaxMB", "Memory oversubscription is not enabled; the task's memory_max is ignored"
        )
    if not 0 <= resources.secrets_mb <= max(memory, 0):
        report.add_error(
            f"{path}.SecretsMB", f"SecretsMB must be between 0 and MemoryMB ({memory}); got {resources.secrets_mb}"
        )


def _check_device(device: RequestedDevice, path: str, report: ValidationReport) -> None:
    """Add each problem of a requested device to the report: name, count, constraints and affinities."""
    parts = device.name.split("/")
    if not device.name:
        report.add_error(f"{path}.Name", "device name must be given as one of: type, vendor/type, or vendor/type/name")
    elif len(parts) > 3 or not all(parts):
        report.add_error(
            f"{path}.Name", f'device name "{device.name}" is not one of: type, vendor/type, or vendor/type/name'
        )
    if device.count < 1:
        report.add_error(f"{path}.Count", f"a task must ask for at least one device; got {device.count}")
    check_largest_amount("Count", device.count, f"{path}.Count", report)
    check_constraints(device.constraints, path, report, allow_distinct=False)
    check_affinities(device.affinities, path, report, job_type="")


def _check_numa(resources: Resources, path: str, report: ValidationReport) -> None:
    """Add each problem of a task's NUMA block to the report. Its devices must be among the requested devices."""
    numa = resources.numa
    if numa is None:
        return
    if numa.affinity not in NUMA_AFFINITIES:
        report.add_error(
            f"{path}.Affinity",
            f'numa affinity "{numa.affinity}" is not known',
            suggest_one_of(NUMA_AFFINITIES, numa.affinity),
        )
    requested = {device.name for device in resources.devices or ()}
    for position, name in enumerate(numa.devices or ()):
        if name not in requested:
            report.add_error(f"{path}.Devices[{position}]", f'numa device "{name}" not requested as task resource')
