"""The scheduler configuration of the cluster: algorithm, preemption, memory oversubscription and two switches."""

import enum

from wharf.contract.model.record import Record


class SchedulerAlgorithm(enum.StrEnum):
    INHERITED = ""  # Only in a node pool: use the cluster's algorithm.
    BINPACK = "binpack"
    SPREAD = "spread"


class PreemptionConfig(Record):
    """The job types for which the scheduler may preempt allocations of lower priority."""

    system_scheduler_enabled: bool = False
    sys_batch_scheduler_enabled: bool = False
    batch_scheduler_enabled: bool = False
    service_scheduler_enabled: bool = False


class SchedulerConfiguration(Record):
    """The configuration document. A field that a submitted document omits is off, so the defaults are zeros (see `cluster`)."""

    scheduler_algorithm: str = SchedulerAlgorithm.BINPACK  # Not an enum, so that validation can report an unknown one.
    memory_oversubscription_enabled: bool = False
    reject_job_registration: bool = False
    pause_eval_broker: bool = False
    node_limit_for_feasibility_checks: int = 0
    preemption_config: PreemptionConfig = PreemptionConfig()
    create_index: int = 0
    modify_index: int = 0


def list_scheduler_configuration_problems(configuration: SchedulerConfiguration) -> list[str]:
    """Return everything that is wrong with a submitted configuration."""
    found = []
    if configuration.scheduler_algorithm not in (SchedulerAlgorithm.BINPACK, SchedulerAlgorithm.SPREAD):
        found.append(f"invalid scheduler algorithm: {configuration.scheduler_algorithm}")
    if configuration.node_limit_for_feasibility_checks < 0:
        found.append("node limit for feasibility checks cannot be negative")
    return found
