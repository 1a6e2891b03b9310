"""The placement rules of a job: options of its node pool or the cluster that change how nodes are scored."""

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODE_POOLS, SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm


class PlacementRules(msgspec.Struct, frozen=True):
    """The placement options that apply to a job, from its node pool or from the cluster."""

    algorithm: str = SchedulerAlgorithm.BINPACK
    """`binpack` prefers full nodes, `spread` prefers empty nodes."""
    can_oversubscribe: bool = False
    """Whether tasks may use more memory than they reserve, up to their `memory_max`."""


def get_placement_rules(snapshot: Replica, job: Job) -> PlacementRules:
    """Return the placement rules for the job. Each option that its node pool does not set is that of the cluster."""
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
    """Return whether allocations of the same group on a node lower the node's score (ADR 61).

    They do not for batch jobs with bin packing. Batch jobs gain nothing from separate nodes, and a lower score would
    leave all nodes half empty.
    """
    return job.type != JobType.BATCH or rules.algorithm == SchedulerAlgorithm.SPREAD
