"""The records that a cluster has from its first moment on."""

import msgspec

from wharf.model import namespace, node_pool
from wharf.model.cluster import Format
from wharf.model.content import content_hash
from wharf.model.namespace import Namespace
from wharf.model.node_pool import NodePool
from wharf.model.scheduler_configuration import PreemptionConfig, SchedulerConfiguration

FIRST_FORMAT = 1
"""The format of the first clusters. A new one begins with the newest that its founder knows."""


def founding_records(
    configuration: SchedulerConfiguration | None = None, *, cluster_format: int = FIRST_FORMAT
) -> list[msgspec.Struct]:
    """What the creation batch holds. `configuration`: the scheduler's, where the server's settings give one."""
    named = [
        Namespace(name=namespace.DEFAULT, description="Default shared namespace"),
        NodePool(name=node_pool.ALL, description="Node pool with all nodes in the cluster."),
        NodePool(name=node_pool.DEFAULT, description="Default node pool."),
    ]
    return [
        *(msgspec.structs.replace(record, hash=content_hash(record)) for record in named),
        configuration if configuration is not None else default_scheduler_configuration(),
        Format(version=cluster_format),
    ]


def default_scheduler_configuration() -> SchedulerConfiguration:
    """Preemption is on for system jobs; everything else is as in an empty document."""
    return SchedulerConfiguration(preemption_config=PreemptionConfig(system_scheduler_enabled=True))
