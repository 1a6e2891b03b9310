"""Whether a node is in the node pool and the datacenters of a job. These checks precede all others."""

from collections.abc import Sequence
from typing import Final

from wharf.contract.model.jobs.job import Job
from wharf.contract.model.node_pools import ALL_NODE_POOL
from wharf.contract.model.nodes.node import Node

ALL_DATACENTERS: Final = ("*",)


def is_in_pool_and_datacenter(job: Job, node: Node) -> bool:
    """Return whether pool and datacenter of the node match the job. The state of the node does not matter."""
    is_pool = job.node_pool in ("", ALL_NODE_POOL, node.node_pool)
    return is_pool and matches_datacenter(node.datacenter, job.datacenters or ALL_DATACENTERS)


def matches_datacenter(datacenter: str, patterns: Sequence[str]) -> bool:
    """Return whether the datacenter matches one of the patterns, in which `*` stands for any text."""
    return any(_matches_glob(pattern, datacenter) for pattern in patterns)


def _matches_glob(pattern: str, text: str) -> bool:
    """Return whether the text matches the pattern. A star matches any run of characters."""
    prefix, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle_parts, suffix = rest
    if not text.startswith(prefix) or len(text) < len(prefix) + len(suffix) or not text.endswith(suffix):
        return False
    start, end = len(prefix), len(text) - len(suffix)
    for part in middle_parts:
        offset = text.find(part, start, end)
        if offset < 0:
            return False
        start = offset + len(part)
    return True
