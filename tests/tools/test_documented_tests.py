"""Names of tests and of their files on the pages of the documentation."""

import pytest

from tools.documented_tests import check_page, find_defined_tests

SOURCES = {
    "tests/node/test_full_disk.py": "def test_running_tasks_continue() -> None: ...\n",
    "tests/node/test_kills.py": "class TestKills:\n    async def test_a_task_runs_once(self) -> None: ...\n",
}


def list_messages(text: str) -> list[str]:
    tests = find_defined_tests(SOURCES)
    return [f"{finding.line}: {finding.message}" for finding in check_page("docs/page.md", text, tests, SOURCES)]


@pytest.mark.parametrize(
    "text",
    [
        "`test_running_tasks_continue`",
        "*`test_a_task_runs_once` (25 jobs)",
        "`node/test_full_disk.py`: `test_running_tasks_continue`",
        "`tests/node/test_kills.py` and `test_kills.py`",
        "the module `test_kills`",
        "`make test` runs a test",
    ],
)
def test_names_that_exist_are_accepted(text: str) -> None:
    assert list_messages(text) == []


def test_a_missing_test_is_found_with_its_line_and_a_similar_name() -> None:
    assert list_messages("one\n`test_a_task_runs_twice`") == [
        "2: no test test_a_task_runs_twice exists: did you mean test_a_task_runs_once?"
    ]


def test_a_missing_file_is_found() -> None:
    assert list_messages("`agent/test_full_disk.py`: `test_running_tasks_continue`") == [
        "1: no file agent/test_full_disk.py exists: did you mean tests/node/test_full_disk.py?"
    ]


def test_a_test_in_another_file_than_the_page_says_is_found() -> None:
    assert list_messages("`node/test_kills.py`: `test_running_tasks_continue`") == [
        "1: test_running_tasks_continue is not in node/test_kills.py, but in tests/node/test_full_disk.py"
    ]
