"""The files that list dependencies agree."""

from tools.requirements import find_disagreements, find_missing_hashes, read_direct_requirements, read_pins


def disagreements(*, declared: set[str], run: set[str], locked: dict[str, str], dev: dict[str, str]) -> list[str]:
    found = find_disagreements(
        declared=frozenset(declared),
        direct={"run": frozenset(run), "dev": frozenset()},
        pins={"run": locked, "dev": dev},
    )
    return [f"{finding.path}: {finding.message}" for finding in found]


def test_names_are_read_without_comments_includes_and_spelling() -> None:
    assert read_direct_requirements("# what we need\n-r run.in\nTyping_Extensions  # types\nclick>=8\n") == {
        "typing-extensions",
        "click",
    }


def test_pins_are_read_with_their_versions() -> None:
    text = "click==8.1.7 \\\n    --hash=sha256:00\nuvloop==0.2 ; sys_platform != 'win32' \\\n    --hash=sha256:00\n"

    assert read_pins(text) == {"click": "8.1.7", "uvloop": "0.2"}


def test_matching_files_pass() -> None:
    assert disagreements(declared={"click"}, run={"click"}, locked={"click": "8"}, dev={"click": "8"}) == []


def test_a_dependency_declared_and_not_required_is_found_and_so_is_the_reverse() -> None:
    pins = {"click": "8", "rich": "14"}

    assert disagreements(declared={"click"}, run={"rich"}, locked=pins, dev=pins) == [
        "requirements/run.in: click is in pyproject.toml and not here: both list what wharf needs to run",
        "pyproject.toml: rich is in requirements/run.in and not here: both list what wharf needs to run",
    ]


def test_a_requirement_that_is_not_locked_is_found() -> None:
    assert disagreements(declared={"click"}, run={"click"}, locked={}, dev={}) == [
        "requirements/run.txt: click is not locked: run `make lock`"
    ]


def test_locks_that_differ_are_found() -> None:
    assert disagreements(declared={"click"}, run={"click"}, locked={"click": "8"}, dev={"click": "9"}) == [
        "requirements/run.txt: click is 8 here and 9 in dev.txt: run `make lock`"
    ]


def test_a_version_without_its_hash_is_found() -> None:
    text = "click==8.1.7 \\\n    --hash=sha256:00\nrich==14.0\n"

    assert [finding.line for finding in find_missing_hashes("requirements/run.txt", text)] == [3]
