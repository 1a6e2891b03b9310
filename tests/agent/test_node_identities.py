"""Stored identities of nodes: a restarted node process has the same nodes as before."""

from pathlib import Path

from wharf.agent.node_identities import load_or_create_fake_node_identities
from wharf.world import SimulatedWorld

WORLD = SimulatedWorld(7)


def test_nodes_keep_their_ids_and_secrets_over_a_restart(tmp_path: Path) -> None:
    before = load_or_create_fake_node_identities(WORLD, tmp_path / "nodes.json", 3)

    assert load_or_create_fake_node_identities(WORLD, tmp_path / "nodes.json", 3) == before


def test_more_fake_nodes_are_added_to_the_stored_ones(tmp_path: Path) -> None:
    before = load_or_create_fake_node_identities(WORLD, tmp_path / "nodes.json", 2)

    assert load_or_create_fake_node_identities(WORLD, tmp_path / "nodes.json", 5)[:2] == before


def test_only_the_owner_can_read_the_secrets_of_nodes(tmp_path: Path) -> None:
    load_or_create_fake_node_identities(WORLD, tmp_path / "nodes.json", 1)

    assert (tmp_path / "nodes.json").stat().st_mode & 0o777 == 0o600
