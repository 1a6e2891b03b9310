"""Which nodes a job may be put on at all, before anything is asked of them: by pool and datacenter."""

from collections.abc import Sequence
from typing import Final

from wharf.contract.model.jobs.job import ALL_NODE_POOL, Job
from wharf.contract.model.nodes.node import Node

ALL_DATACENTERS: Final = ("*",)


def is_in_pool_and_datacenter(job: Job, node: Node) -> bool:
    """Whether the node's pool and datacenter are among those that the job names, whatever the node does now."""
    is_pool = job.node_pool in ("", ALL_NODE_POOL, node.node_pool)
    return is_pool and matches_datacenter(node.datacenter, job.datacenters or ALL_DATACENTERS)


def matches_datacenter(datacenter: str, patterns: Sequence[str]) -> bool:
    return any(_matches(pattern, datacenter) for pattern in patterns)


def _matches(pattern: str, text: str) -> bool:
    """A star stands for any run of characters; nothing else stands for anything but itself."""
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *between, last = others
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in between:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
