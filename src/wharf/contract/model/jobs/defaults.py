"""What a server's configuration says about jobs: the settings that defaults and bounds of a job are taken from.

The policies that a group gets when its job says nothing, by type of job (jobs.md 2.1, 2.2, 2.4).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.jobs.group_policies import (
    DelayFunction,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.times import HOUR, SECOND

MAX_JOB_PRIORITY: Final = 32_766


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults and bounds of jobs. `node_pool` is the default pool of the job's namespace."""

    region: str = "global"
    node_pool: str = "default"
    default_priority: int = 50
    max_priority: int = 100
    # 0 turns the bound off.
    max_count: int = 50_000
    memory_oversubscription: bool = False
    max_source_bytes: int = 1_000_000
    """A source text above this is not kept with its version."""
    versions_kept: int = 6
    """How many versions of a job that have no tag are kept, the newest counted in."""


# Keyed by the word, not the enum: a submitted type may be any text until it is validated.
SERVICE_RESTART_POLICY: Final = RestartPolicy()
BATCH_RESTART_POLICY: Final = RestartPolicy(attempts=3, interval=24 * HOUR)

SERVICE_RESCHEDULE_POLICY: Final = ReschedulePolicy()
BATCH_RESCHEDULE_POLICY: Final = ReschedulePolicy(
    attempts=1,
    interval=24 * HOUR,
    delay=5 * SECOND,
    delay_function=DelayFunction.CONSTANT,
    max_delay=0,
    unlimited=False,
)

RESTART_POLICIES: Final[Mapping[str, RestartPolicy]] = {
    "service": SERVICE_RESTART_POLICY,
    "system": SERVICE_RESTART_POLICY,
    "batch": BATCH_RESTART_POLICY,
    "sysbatch": BATCH_RESTART_POLICY,
}
# The types that are missing have no such policy; giving one is a mistake that validation tells.
RESCHEDULE_POLICIES: Final[Mapping[str, ReschedulePolicy]] = {
    "service": SERVICE_RESCHEDULE_POLICY,
    "batch": BATCH_RESCHEDULE_POLICY,
}
UPDATE_POLICIES: Final[Mapping[str, UpdatePolicy]] = {"service": UpdatePolicy(), "system": UpdatePolicy()}
MIGRATE_POLICIES: Final[Mapping[str, MigratePolicy]] = {"service": MigratePolicy()}


def get_restart_policy(job_type: str) -> RestartPolicy:
    """Every group has one; an unknown type gets that of a service, so that validation can speak about the type."""
    return RESTART_POLICIES.get(job_type, SERVICE_RESTART_POLICY)
