"""The scheduler configuration of the cluster: algorithm, preemption, memory oversubscription and two switches."""

import enum

from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.record import Record


class SchedulerAlgorithm(enum.StrEnum):
    """How the scheduler prefers nodes."""

    INHERITED = ""  # Only in a node pool: as in the cluster.
    BINPACK = "binpack"  # Fill nodes that are in use first.
    SPREAD = "spread"  # Use the emptiest nodes first.


class PreemptionConfig(Record):
    """The types of jobs for which the scheduler may stop allocations of lower priority."""

    system_scheduler_enabled: bool = False
    sys_batch_scheduler_enabled: bool = False
    batch_scheduler_enabled: bool = False
    service_scheduler_enabled: bool = False


class SchedulerConfiguration(Record):
    """The scheduler settings of the cluster.

    The defaults are zeros, because a field that a submitted document omits is off.
    """

    # A `SchedulerAlgorithm`; text, so that validation can report another value.
    scheduler_algorithm: str = SchedulerAlgorithm.BINPACK
    memory_oversubscription_enabled: bool = False  # Tasks may use more memory than they reserve, up to their limit.
    reject_job_registration: bool = False  # Only management tokens may register jobs.
    pause_eval_broker: bool = False  # Stop scheduling.
    node_limit_for_feasibility_checks: int = 0  # Nodes examined for one placement; 0: no limit.
    preemption_config: PreemptionConfig = PreemptionConfig()
    create_index: int = 0
    modify_index: int = 0


def list_scheduler_configuration_problems(configuration: SchedulerConfiguration) -> list[str]:
    """Return an error text for each invalid field of a submitted scheduler configuration; empty if it is valid."""
    found = []
    if configuration.scheduler_algorithm not in (SchedulerAlgorithm.BINPACK, SchedulerAlgorithm.SPREAD):
        found.append(f"invalid scheduler algorithm: {cut_echo(configuration.scheduler_algorithm)}")
    if configuration.node_limit_for_feasibility_checks < 0:
        found.append("node limit for feasibility checks cannot be negative")
    return found
