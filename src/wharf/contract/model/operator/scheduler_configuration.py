"""How the whole cluster is scheduled: the algorithm, preemption, oversubscription and two switches."""

import enum

from wharf.contract.model.record import Record

DEFAULT_FEASIBILITY_CHECK_LIMIT = 100
"""What a limit of 0 for feasibility checks acts as."""


class SchedulerAlgorithm(enum.StrEnum):
    INHERITED = ""  # Only in a node pool: as the cluster says.
    BINPACK = "binpack"
    SPREAD = "spread"


class PreemptionConfig(Record):
    """For which types of jobs lower priorities may be pushed aside."""

    system_scheduler_enabled: bool = False
    sys_batch_scheduler_enabled: bool = False
    batch_scheduler_enabled: bool = False
    service_scheduler_enabled: bool = False


class SchedulerConfiguration(Record):
    """A whole document: what a writer leaves out is off, so the fields' defaults are zeros (see `founding`)."""

    scheduler_algorithm: str = SchedulerAlgorithm.BINPACK  # Text, so that a wrong one is told in our words.
    memory_oversubscription_enabled: bool = False
    reject_job_registration: bool = False
    pause_eval_broker: bool = False
    node_limit_for_feasibility_checks: int = 0
    preemption_config: PreemptionConfig = PreemptionConfig()
    create_index: int = 0
    modify_index: int = 0


def list_scheduler_configuration_problems(configuration: SchedulerConfiguration) -> list[str]:
    """Everything that is wrong with a configuration somebody wants to write."""
    found = []
    if configuration.scheduler_algorithm not in (SchedulerAlgorithm.BINPACK, SchedulerAlgorithm.SPREAD):
        found.append(f"invalid scheduler algorithm: {configuration.scheduler_algorithm}")
    if configuration.node_limit_for_feasibility_checks < 0:
        found.append("node limit for feasibility checks cannot be negative")
    return found
