"""Job settings from the server configuration, and the default policies of a group for each job type (jobs.md 2.1, 2.2, 2.4)."""

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
"""The highest priority that a server can be configured to allow."""


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults and limits for jobs, from the server's settings and the job's namespace."""

    region: str  # The server's own region.
    node_pool: str  # The default node pool of the job's namespace.
    default_priority: int  # The priority of a job that sets none.
    max_priority: int  # The highest priority that a job may set.
    max_count: int  # Allocations that the groups of one job may request together; 0 means no limit.
    memory_oversubscription: bool  # Whether tasks may use more memory than they reserve, up to their limit.
    max_source_bytes: int  # The source text of a job is not stored if it is longer.
    versions_kept: int
    """How many untagged versions of a job are retained, including the newest."""


# The policies are keyed by text, not by enum: a submitted job type may be any text until it is validated.
SERVICE_RESTART_POLICY: Final = RestartPolicy()
BATCH_RESTART_POLICY: Final = RestartPolicy(attempts=3, interval=24 * HOUR)

NO_RESTARTS: Final = RestartPolicy(attempts=0, interval=24 * HOUR)
"""The restart policy of a step with `Retry`, whose failures servers count."""

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
# Job types that are missing here have no such policy; validation rejects a job that sets one.
RESCHEDULE_POLICIES: Final[Mapping[str, ReschedulePolicy]] = {
    "service": SERVICE_RESCHEDULE_POLICY,
    "batch": BATCH_RESCHEDULE_POLICY,
}
UPDATE_POLICIES: Final[Mapping[str, UpdatePolicy]] = {"service": UpdatePolicy(), "system": UpdatePolicy()}
MIGRATE_POLICIES: Final[Mapping[str, MigratePolicy]] = {"service": MigratePolicy()}


def get_restart_policy(job_type: str) -> RestartPolicy:
    """Return the default restart policy of a job type.

    An unknown type gets the policy of service jobs, so that validation can report the type.
    """
    return RESTART_POLICIES.get(job_type, SERVICE_RESTART_POLICY)
