"""Which nodes a job may be put on at all, before anything is asked of them: by pool and datacenter."""

from fnmatch import fnmatchcase

from wharf.model.job import ALL_NODE_POOL, Job
from wharf.model.node import Node


def is_in_reach(job: Job, node: Node) -> bool:
    """Whether the node's pool and datacenter are among those that the job names."""
    if job.node_pool not in (ALL_NODE_POOL, node.node_pool):
        return False
    return any(fnmatchcase(node.datacenter, pattern) for pattern in job.datacenters or ("*",))
