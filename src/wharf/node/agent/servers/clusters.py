"""Which cluster the node's allocations belong to, so that servers that have lost all data do not end its tasks.

Servers without their log can begin an empty cluster, which has another id and knows none of the node's allocations. Stopping
unknown allocations is right within one cluster; here it would end everything that runs.
"""

import logging
from collections.abc import Collection, Container
from pathlib import Path

import msgspec

from wharf.world.durable_file import replace_file
from wharf.world.stored_json import read_stored_json

log = logging.getLogger(__name__)


class StoredClusters(msgspec.Struct, frozen=True):
    """The content of the file."""

    cluster_id: str = ""
    """The cluster of the servers; empty before the first contact."""
    former: dict[str, str] = {}
    """The allocations of former clusters that are kept, each with the id of its cluster."""


class ClusterMemory:
    """Decides which unknown allocations are kept because they belong to another cluster. Stores this in a file."""

    def __init__(self, file: Path | None = None) -> None:
        """Read the file, if it exists; `None`: nothing is stored. Raises `DamagedFile`."""
        self.file = file
        remedy = "delete it; then the node stops the tasks of all allocations that its servers do not know"
        stored = read_stored_json(file, StoredClusters, remedy=remedy) if file is not None else None
        self._stored = stored or StoredClusters()

    def update(self, cluster_id: str, ids: Collection[str], live_ids: Collection[str], known: Container[str]) -> int:
        """Record the cluster of the servers. Return how many allocations are kept because of it that were not before.

        `ids` are all allocations of the node, `live_ids` those that have not ended, and `known` those that servers know.
        """
        stored = self._stored
        if not cluster_id or cluster_id == stored.cluster_id:
            return 0
        former = {id: of_cluster for id, of_cluster in stored.former.items() if of_cluster != cluster_id and id in ids}
        added_ids: list[str] = []
        if stored.cluster_id and not any(id in known for id in ids):
            added_ids = [id for id in live_ids if id not in stored.former]
        self._stored = StoredClusters(cluster_id, former | dict.fromkeys(added_ids, stored.cluster_id))
        if self.file is not None:
            try:
                replace_file(self.file, msgspec.json.encode(self._stored))
            except OSError as error:
                log.error("failed to store the cluster of the node error=%s", error)
        return len(added_ids)

    def is_kept(self, allocation_id: str) -> bool:
        """Return whether the allocation belongs to another cluster than the servers."""
        return allocation_id in self._stored.former
