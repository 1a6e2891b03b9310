"""Settings and order of garbage collection passes (scheduling.md 1.6).

Which records may be deleted is decided in `operations.operator.collection`. Access tokens are not collected here but
together with keyring keys.
"""

from typing import Final

import msgspec

from wharf.cluster.operations.operator.collection import (
    JOB_RESULT_RETENTION_NS,
    NO_RESULTS,
    CollectionKind,
    ResultRetention,
)
from wharf.contract.model.times import HOUR

MIN_BATCH_EVALUATION_RETENTION_NS: Final = 24 * HOUR
"""Evaluations of batch jobs are retained for this time, however many there are, unless their whole time is shorter."""


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The interval of garbage collection, and how long records are retained after they ended."""

    interval_s: float  # Seconds between two passes.
    evaluation_retention_ns: int  # For all other evaluations.
    batch_evaluation_retention_ns: int  # For evaluations of batch and sysbatch jobs.
    job_retention_ns: int
    batch_job_retention_ns: int  # For batch and sysbatch jobs, as far as `max_batch_results` permits.
    max_batch_results: int
    """Limits the records of batch work that are retained longer than others; see `ResultRetention.max_weight`."""
    deployment_retention_ns: int
    node_retention_ns: int  # For nodes that are down.


class CollectionPass(msgspec.Struct, frozen=True):
    """One pass of garbage collection over one kind of record."""

    kind: CollectionKind
    retention_ns: int  # Records that ended longer ago than this may be deleted.
    results: ResultRetention = NO_RESULTS


def list_collection_passes(settings: CollectionSettings) -> tuple[CollectionPass, ...]:
    """Return the garbage collection passes in order: records come before those that they refer to, and nodes last."""
    batch_evaluation_ns = settings.batch_evaluation_retention_ns
    limit = settings.max_batch_results
    return (
        CollectionPass(CollectionKind.EVALUATIONS, settings.evaluation_retention_ns),
        CollectionPass(
            CollectionKind.BATCH_EVALUATIONS,
            min(batch_evaluation_ns, MIN_BATCH_EVALUATION_RETENTION_NS),
            ResultRetention(batch_evaluation_ns, limit),
        ),
        CollectionPass(
            CollectionKind.JOBS, settings.job_retention_ns, ResultRetention(settings.batch_job_retention_ns, limit)
        ),
        CollectionPass(CollectionKind.JOB_RESULTS, JOB_RESULT_RETENTION_NS),
        CollectionPass(CollectionKind.DEPLOYMENTS, settings.deployment_retention_ns),
        CollectionPass(CollectionKind.ONE_TIME_TOKENS, 0),
        CollectionPass(CollectionKind.PAGE_SESSIONS, 0),
        CollectionPass(CollectionKind.NODES, settings.node_retention_ns),
    )
