"""Change notes: their format, and the changelog section that is built from them."""

from pathlib import Path

import pytest

from tools.changelog import INSERTION_MARKER, FragmentError, assemble_section, check_fragment, main


def test_fragments_become_one_section_sorted_by_kind() -> None:
    fragments = {"drain.fixed.md": "A drain ends in time.\n", "pools.added.md": "Node pools.\nThey have rules.\n"}

    assert assemble_section("0.2.0", fragments) == (
        "## 0.2.0\n\n### Added\n\n- Node pools.\n  They have rules.\n\n### Fixed\n\n- A drain ends in time.\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pools.md", "Node pools."),
        ("pools.new.md", "Node pools."),
        ("pools.added.md", " \n"),
        ("a.added.md", "# Pools"),
    ],
)
def test_a_fragment_of_another_form_is_refused(name: str, text: str) -> None:
    with pytest.raises(FragmentError, match=f"changelog.d/{name}"):
        check_fragment(name, text)


def create_project(root: Path) -> Path:
    (root / "changelog.d").mkdir()
    (root / "changelog.d" / "README.md").write_text("How to.")
    (root / "changelog.d" / "pools.added.md").write_text("Node pools.")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{INSERTION_MARKER}\n\n## 0.1.0\n\nThe first.\n")
    return root


def test_a_release_moves_the_fragments_into_the_log(tmp_path: Path) -> None:
    root = create_project(tmp_path)

    assert main(["0.2.0"], root) == 0
    assert (root / "CHANGELOG.md").read_text() == (
        f"# Changelog\n\n{INSERTION_MARKER}\n\n## 0.2.0\n\n### Added\n\n- Node pools.\n\n## 0.1.0\n\nThe first.\n"
    )
    assert [file.name for file in (root / "changelog.d").iterdir()] == ["README.md"]


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    root = create_project(tmp_path)

    assert main([], root) == 0
    assert (root / "changelog.d" / "pools.added.md").exists()


def test_a_version_of_another_form_is_refused(tmp_path: Path) -> None:
    assert main(["next"], create_project(tmp_path)) == 2
