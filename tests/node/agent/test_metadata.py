"""NodeMetadata of a node that changes while it runs."""

from pathlib import Path

from wharf.node.agent.fingerprint.metadata import NodeMetadata


def test_what_is_set_lies_over_what_the_configuration_says(tmp_path: Path) -> None:
    metadata = NodeMetadata(tmp_path / "metadata", {"rack": "r1", "row": "a"})

    metadata.apply_changes({"rack": "r2", "disk": "fast"})

    assert {"rack": "r2", "row": "a", "disk": "fast"} == metadata.merged
    assert {"rack": "r1", "row": "a"} == metadata.build_response().static


def test_a_key_of_the_configuration_that_is_taken_away_is_kept_as_nothing(tmp_path: Path) -> None:
    metadata = NodeMetadata(tmp_path / "metadata", {"rack": "r1"})
    metadata.apply_changes({"disk": "fast"})

    metadata.apply_changes({"rack": None, "disk": None})

    assert ({}, {"rack": None}) == (metadata.merged, metadata.build_response().dynamic)


def test_what_was_set_is_there_after_a_restart(tmp_path: Path) -> None:
    NodeMetadata(tmp_path / "metadata", {}).apply_changes({"disk": "fast"})

    assert {"disk": "fast"} == NodeMetadata(tmp_path / "metadata", {}).merged
