"""The check of text and files that must not be in the repository."""

import pytest

from tools.tidy import check_file, check_text

HOME = "/" + "home/"
SCRATCH = "/" + "tmp/"
INDEX = "https://" + "pypi" + ".org/simple"


@pytest.mark.parametrize("line", [f"see {HOME}anna/notes", f'open("{SCRATCH}x")', "cd /" + "root/project"])
def test_a_path_of_one_machine_is_found(line: str) -> None:
    assert [finding.rule for finding in check_text("docs/page.md", line)] == ["machine-path"]


def test_the_address_of_a_registry_is_found_with_its_line() -> None:
    (finding,) = check_text("requirements/run.txt", f"click==8\n--index-url {INDEX}\n")

    assert (finding.rule, finding.line) == ("registry-address", 2)


@pytest.mark.parametrize(
    "line", ["GET /v1/jobs", "alloc/tmp/out.txt", "a worker/root/leaf", "data_dir = '/var/lib/wharf'"]
)
def test_other_paths_pass(line: str) -> None:
    assert list(check_text("docs/page.md", line)) == []


PROGRAM = b"PK\x03\x04\xff\xfe"


@pytest.mark.parametrize("path", ["library.whl", "src/wharf/data.bin", "docs/archive.zip"])
def test_a_binary_file_is_found(path: str) -> None:
    assert [finding.rule for finding in check_file(path, PROGRAM)] == ["binary-file"]


@pytest.mark.parametrize("path", ["tests/node/agent/state.bin", "docs/pictures/page.png"])
def test_fixtures_and_pictures_may_be_binary(path: str) -> None:
    assert list(check_file(path, PROGRAM)) == []


def test_the_text_of_a_file_is_checked() -> None:
    assert [finding.rule for finding in check_file("docs/page.md", f"see {HOME}anna/notes".encode())] == [
        "machine-path"
    ]
