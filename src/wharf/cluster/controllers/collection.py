"""How old what is over must be before it is collected, and in which order one looks (scheduling.md 1.6).

What may go at all is decided by `operations.collection`. Access tokens are not collected here but with the keyring's keys.
"""

from typing import Final

import msgspec

from wharf.cluster.operations.operator.collection import CollectionKind

HOUR_NS: Final = 3_600_000_000_000


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The reference's defaults."""

    interval_s: float = 300.0
    evaluation_retention_ns: int = HOUR_NS
    batch_evaluation_retention_ns: int = 24 * HOUR_NS
    job_retention_ns: int = 4 * HOUR_NS
    deployment_retention_ns: int = HOUR_NS
    node_retention_ns: int = 24 * HOUR_NS


class CollectionPass(msgspec.Struct, frozen=True):
    kind: CollectionKind
    retention_ns: int


def list_collection_passes(settings: CollectionSettings) -> tuple[CollectionPass, ...]:
    """One after the other: what goes first makes room for what rests on it. Nodes go last."""
    return (
        CollectionPass(CollectionKind.EVALUATIONS, settings.evaluation_retention_ns),
        CollectionPass(CollectionKind.BATCH_EVALUATIONS, settings.batch_evaluation_retention_ns),
        CollectionPass(CollectionKind.JOBS, settings.job_retention_ns),
        CollectionPass(CollectionKind.DEPLOYMENTS, settings.deployment_retention_ns),
        CollectionPass(CollectionKind.ONE_TIME_TOKENS, 0),
        CollectionPass(CollectionKind.NODES, settings.node_retention_ns),
    )
