"""Settings and order of garbage collection passes (scheduling.md 1.6).

Which records may be deleted is decided in `operations.operator.collection`. Access tokens are not collected here but
together with keyring keys.
"""

import msgspec

from wharf.cluster.operations.operator.collection import CollectionKind


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The interval of garbage collection, and how long records are retained after they ended."""

    interval_s: float  # Seconds between two passes.
    evaluation_retention_ns: int  # For all other evaluations.
    batch_evaluation_retention_ns: int  # For evaluations of batch and sysbatch jobs.
    job_retention_ns: int
    deployment_retention_ns: int
    node_retention_ns: int  # For nodes that are down.


class CollectionPass(msgspec.Struct, frozen=True):
    """One pass of garbage collection over one kind of record."""

    kind: CollectionKind
    retention_ns: int  # Records that ended longer ago than this may be deleted.


def list_collection_passes(settings: CollectionSettings) -> tuple[CollectionPass, ...]:
    """Return the garbage collection passes in order: records come before those that they refer to, and nodes last."""
    return (
        CollectionPass(CollectionKind.EVALUATIONS, settings.evaluation_retention_ns),
        CollectionPass(CollectionKind.BATCH_EVALUATIONS, settings.batch_evaluation_retention_ns),
        CollectionPass(CollectionKind.JOBS, settings.job_retention_ns),
        CollectionPass(CollectionKind.DEPLOYMENTS, settings.deployment_retention_ns),
        CollectionPass(CollectionKind.ONE_TIME_TOKENS, 0),
        CollectionPass(CollectionKind.NODES, settings.node_retention_ns),
    )
