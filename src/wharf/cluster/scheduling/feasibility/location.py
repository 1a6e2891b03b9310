"""Whether a node is in the node pool and the datacenters of a job. These checks precede all others."""

from collections.abc import Sequence
from typing import Final

from wharf.contract.model.jobs.job import Job
from wharf.contract.model.node_pools import ALL_NODE_POOL
from wharf.contract.model.nodes.node import Node

ALL_DATACENTERS: Final = ("*",)
"""The datacenter patterns of a job that names none: every datacenter matches."""


def is_in_pool_and_datacenter(job: Job, node: Node) -> bool:
    """Return whether the node is in the node pool and in one of the datacenters of the job.

    Whether the node is ready does not matter.
    """
    is_pool = job.node_pool in ("", ALL_NODE_POOL, node.node_pool)
    return is_pool and matches_datacenter(node.datacenter, job.datacenters or ALL_DATACENTERS)


def matches_datacenter(datacenter: str, patterns: Sequence[str]) -> bool:
    """Return whether the name of the datacenter matches one of the patterns, such as `eu-*`.

    `*` stands for any text.
    """
    return any(_matches_glob(pattern, datacenter) for pattern in patterns)


def _matches_glob(pattern: str, text: str) -> bool:
    """Return whether the whole text matches the pattern. A `*` in the pattern matches any number of characters.

    The parts before the first and after the last `*` must be prefix and suffix. The parts between are searched from
    left to right; the first match of each is always sufficient.
    """
    prefix, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle_parts, suffix = rest
    if not text.startswith(prefix) or len(text) < len(prefix) + len(suffix) or not text.endswith(suffix):
        return False
    start, end = len(prefix), len(text) - len(suffix)
    for part in middle_parts:
        part_start = text.find(part, start, end)
        if part_start < 0:
            return False
        start = part_start + len(part)
    return True
