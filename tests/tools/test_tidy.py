"""The check of text that must not be in the repository."""

import pytest

from tools.tidy import check_text

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
