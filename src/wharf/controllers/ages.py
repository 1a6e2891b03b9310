"""How old what is over must be before it is collected, and in which order one looks (scheduling.md 1.6).

What may go at all is decided by `operations.collection`. Access tokens are not collected here but with the keyring's keys.
"""

from typing import Final

import msgspec

from wharf.operations.collection import Collected

HOUR_NS: Final = 3_600_000_000_000


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The reference's defaults."""

    interval_s: float = 300.0
    evaluation_ns: int = HOUR_NS
    batch_evaluation_ns: int = 24 * HOUR_NS
    job_ns: int = 4 * HOUR_NS
    deployment_ns: int = HOUR_NS
    node_ns: int = 24 * HOUR_NS


class Age(msgspec.Struct, frozen=True):
    kind: Collected
    older_than_ns: int


def ages(settings: CollectionSettings) -> tuple[Age, ...]:
    """One after the other: what goes first makes room for what rests on it. Nodes go last."""
    return (
        Age(Collected.EVALUATIONS, settings.evaluation_ns),
        Age(Collected.BATCH_EVALUATIONS, settings.batch_evaluation_ns),
        Age(Collected.JOBS, settings.job_ns),
        Age(Collected.DEPLOYMENTS, settings.deployment_ns),
        Age(Collected.ONE_TIME_TOKENS, 0),
        Age(Collected.NODES, settings.node_ns),
    )
