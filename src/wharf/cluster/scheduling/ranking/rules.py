"""The placement rules of a job: options of its node pool or the cluster that change how nodes are scored."""

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODE_POOLS, SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm


class PlacementRules(msgspec.Struct, frozen=True):
    """Placement options of the cluster or of the job's node pool."""

    algorithm: str = SchedulerAlgorithm.BINPACK
    can_oversubscribe: bool = False


def get_placement_rules(snapshot: Replica, job: Job) -> PlacementRules:
    """Return the placement rules of the job's node pool. The rules of the cluster are the default."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    pool = snapshot.get(NODE_POOLS, job.node_pool)
    pool_settings = pool.scheduler_configuration if pool is not None else None
    algorithm = pool_settings.scheduler_algorithm if pool_settings is not None else ""
    if not algorithm and configuration is not None:
        algorithm = configuration.scheduler_algorithm
    oversubscribe = pool_settings.memory_oversubscription_enabled if pool_settings is not None else None
    if oversubscribe is None:
        oversubscribe = configuration is not None and configuration.memory_oversubscription_enabled
    return PlacementRules(algorithm or SchedulerAlgorithm.BINPACK, oversubscribe)


def has_job_anti_affinity(job: Job, rules: PlacementRules) -> bool:
    """Return whether siblings on a node lower its score (ADR 61).

    Finite jobs gain nothing from separate nodes. With bin packing, anti-affinity would leave all nodes half empty.
    """
    return job.type != JobType.BATCH or rules.algorithm == SchedulerAlgorithm.SPREAD
