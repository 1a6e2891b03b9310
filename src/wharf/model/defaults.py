"""The policies that a group gets when its job says nothing, by type of job (jobs.md 2.1, 2.2, 2.4)."""

from collections.abc import Mapping
from typing import Final

from wharf.model.durations import HOUR, SECOND
from wharf.model.policies import (
    DelayFunction,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)

# Keyed by the word, not the enum: a submitted type may be any text until it is validated.
SERVICE_RESTART: Final = RestartPolicy()
BATCH_RESTART: Final = RestartPolicy(attempts=3, interval=24 * HOUR)

SERVICE_RESCHEDULE: Final = ReschedulePolicy()
BATCH_RESCHEDULE: Final = ReschedulePolicy(
    attempts=1,
    interval=24 * HOUR,
    delay=5 * SECOND,
    delay_function=DelayFunction.CONSTANT,
    max_delay=0,
    unlimited=False,
)

RESTART: Final[Mapping[str, RestartPolicy]] = {
    "service": SERVICE_RESTART,
    "system": SERVICE_RESTART,
    "batch": BATCH_RESTART,
    "sysbatch": BATCH_RESTART,
}
# The types that are missing have no such policy; giving one is a mistake that validation tells.
RESCHEDULE: Final[Mapping[str, ReschedulePolicy]] = {"service": SERVICE_RESCHEDULE, "batch": BATCH_RESCHEDULE}
UPDATE: Final[Mapping[str, UpdatePolicy]] = {"service": UpdatePolicy(), "system": UpdatePolicy()}
MIGRATE: Final[Mapping[str, MigratePolicy]] = {"service": MigratePolicy()}


def restart_policy(job_type: str) -> RestartPolicy:
    """Every group has one; an unknown type gets that of a service, so that validation can speak about the type."""
    return RESTART.get(job_type, SERVICE_RESTART)
