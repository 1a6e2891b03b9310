"""Metadata of a node that are changed while it runs."""

from pathlib import Path

from wharf.node.agent.fingerprint.metadata import NodeMetadata


def test_changed_metadata_overrides_the_configuration(tmp_path: Path) -> None:
    metadata = NodeMetadata(tmp_path / "metadata", {"rack": "r1", "row": "a"})

    metadata.apply_changes({"rack": "r2", "disk": "fast"})

    assert {"rack": "r2", "row": "a", "disk": "fast"} == metadata.merged
    assert {"rack": "r1", "row": "a"} == metadata.build_response().static


def test_a_deleted_key_of_the_configuration_is_hidden_by_a_stored_null(tmp_path: Path) -> None:
    metadata = NodeMetadata(tmp_path / "metadata", {"rack": "r1"})
    metadata.apply_changes({"disk": "fast"})

    metadata.apply_changes({"rack": None, "disk": None})

    assert ({}, {"rack": None}) == (metadata.merged, metadata.build_response().dynamic)


def test_changed_metadata_survive_a_restart(tmp_path: Path) -> None:
    NodeMetadata(tmp_path / "metadata", {}).apply_changes({"disk": "fast"})

    assert {"disk": "fast"} == NodeMetadata(tmp_path / "metadata", {}).merged
