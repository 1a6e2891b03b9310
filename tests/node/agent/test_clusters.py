"""Servers of another cluster, which know no allocation of the node, do not end its tasks."""

from pathlib import Path

import pytest

from wharf.node.agent.servers.clusters import ClusterMemory
from wharf.world.stored_json import DamagedFile

IDS = {"a1", "a2"}


def test_allocations_are_kept_if_another_cluster_knows_none_of_them(tmp_path: Path) -> None:
    memory = ClusterMemory(tmp_path / "clusters.json")
    memory.update("one", IDS, ["a1"], IDS)

    assert 1 == memory.update("two", IDS, ["a1"], set())
    assert (True, False) == (memory.is_kept("a1"), memory.is_kept("a2"))
    assert 0 == memory.update("two", IDS, ["a1"], set())
    assert ClusterMemory(tmp_path / "clusters.json").is_kept("a1")


@pytest.mark.parametrize(
    ("cluster_id", "known"), [("one", set[str]()), ("", set[str]()), ("two", {"a2"})], ids=["same", "unknown", "known"]
)
def test_allocations_are_not_kept_in_the_same_cluster_or_if_it_knows_any(cluster_id: str, known: set[str]) -> None:
    memory = ClusterMemory()
    memory.update("one", IDS, ["a1"], IDS)

    assert 0 == memory.update(cluster_id, IDS, ["a1"], known)
    assert not memory.is_kept("a1")


def test_the_first_contact_keeps_nothing() -> None:
    memory = ClusterMemory()

    assert 0 == memory.update("one", IDS, ["a1"], set())


def test_kept_allocations_belong_to_their_cluster_again_when_it_is_back() -> None:
    memory = ClusterMemory()
    memory.update("one", IDS, ["a1"], IDS)
    memory.update("two", IDS, ["a1"], set())

    memory.update("one", IDS, ["a1"], IDS)

    assert not memory.is_kept("a1")


def test_allocations_of_the_new_cluster_do_not_end_those_that_are_kept() -> None:
    memory = ClusterMemory()
    memory.update("one", IDS, ["a1"], IDS)
    memory.update("two", IDS, ["a1"], set())

    memory.update("two", {*IDS, "a3"}, ["a1", "a3"], {"a3"})

    assert (True, False) == (memory.is_kept("a1"), memory.is_kept("a3"))


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "clusters.json").write_text("{")

    with pytest.raises(DamagedFile, match=r"clusters.json is damaged .*: delete it; then the node stops"):
        ClusterMemory(tmp_path / "clusters.json")
