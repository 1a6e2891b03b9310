"""Test files in forked processes: which process runs them, what is reported, and what happens if a process dies."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = f"""
import os
import sys

import pytest

sys.path.insert(0, {str(ROOT)!r})

from tests.file_durations import FileDurations
from tests.forked_workers import ForkedWorkers


def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers(2))
    config.pluginmanager.register(FileDurations(9))


def note(text):
    with open("notes.txt", "a") as notes:
        notes.write(f"{{os.getpid()}} {{text}}\\n")


@pytest.fixture(scope="session")
def of_session():
    note("session begins")
    yield
    note("session ends")


@pytest.fixture(scope="module")
def of_file(of_session, request):
    note(f"{{request.node.name}} begins")
    yield
    note(f"{{request.node.name}} ends")


@pytest.fixture(autouse=True)
def noted(of_file, request):
    note(request.node.nodeid)
"""
TWO_TESTS = "def test_a():\n    pass\n\ndef test_b():\n    pass\n"


def run(pytester: pytest.Pytester, *arguments: str, **files: str) -> pytest.RunResult:
    """Run these test files in two processes."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(**files)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments)


def read_notes(pytester: pytest.Pytester) -> dict[str, list[str]]:
    """Return what the tests noted, by the process that ran them."""
    notes: dict[str, list[str]] = {}
    for line in (pytester.path / "notes.txt").read_text().splitlines():
        pid, _, text = line.partition(" ")
        notes.setdefault(pid, []).append(text)
    return notes


def test_the_tests_of_a_file_run_in_one_process_and_in_order(pytester: pytest.Pytester) -> None:
    result = run(pytester, **{f"test_{number}": TWO_TESTS for number in range(5)})

    assert (result.parseoutcomes(), result.ret) == ({"passed": 10}, pytest.ExitCode.OK)
    notes = read_notes(pytester)
    assert len(notes) == 2
    files = []
    for first, *texts, last in notes.values():
        assert (first, last) == ("session begins", "session ends")
        names = [text.partition(" ")[0] for text in texts[::4]]
        files += names
        assert texts == [
            text for name in names for text in (f"{name} begins", f"{name}::test_a", f"{name}::test_b", f"{name} ends")
        ]
    assert sorted(files) == [f"test_{number}.py" for number in range(5)]


def test_folders_may_have_a_conftest_of_their_own(pytester: pytest.Pytester) -> None:
    (pytester.path / "inner").mkdir()
    (pytester.path / "inner/conftest.py").write_text("def pytest_runtest_setup():\n    pass\n")
    (pytester.path / "inner/test_inner.py").write_text(TWO_TESTS)

    result = run(pytester, test_outer=TWO_TESTS)

    assert (result.parseoutcomes(), result.ret) == ({"passed": 4}, pytest.ExitCode.OK)


def test_failures_are_reported_with_their_output_and_the_time_of_their_files(pytester: pytest.Pytester) -> None:
    failing = "def test_fails():\n    print('printed by the test')\n    assert 1 == 2\n"

    result = run(pytester, test_first=TWO_TESTS, test_second=failing)

    assert (result.parseoutcomes(), result.ret) == ({"passed": 2, "failed": 1}, pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines(
        ["*assert 1 == 2", "printed by the test", "slowest 2 of 2 files*", "*FAILED test_second*"]
    )


def test_a_test_whose_process_dies_fails_and_the_tests_after_it_run(pytester: pytest.Pytester) -> None:
    dying = "import os\n\ndef test_a():\n    pass\n\ndef test_dies():\n    os._exit(7)\n\ndef test_c():\n    pass\n"

    result = run(pytester, test_first=dying, test_second=TWO_TESTS, test_third=TWO_TESTS)

    assert (result.parseoutcomes(), result.ret) == ({"passed": 6, "failed": 1}, pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines(
        ["the process that ran this test ended with exit code 7", "FAILED test_first.py::test_dies*"]
    )


def test_the_next_file_runs_after_a_process_died_in_the_last_test_of_a_file(pytester: pytest.Pytester) -> None:
    dying = "import os\n\ndef test_dies():\n    os._exit(7)\n"

    result = run(pytester, **{f"test_{number}": dying for number in range(3)}, test_other=TWO_TESTS)

    assert result.parseoutcomes() == {"passed": 2, "failed": 3}


def test_a_run_that_stops_at_the_first_failure_releases_all_fixtures(pytester: pytest.Pytester) -> None:
    waiting = (
        "import pathlib\nimport time\n\ndef test_waits():\n"
        "    while not pathlib.Path('failed').exists():\n        time.sleep(0.01)\n\n"
        "def test_later():\n    pass\n"
    )
    failing = "import pathlib\n\ndef test_fails():\n    pathlib.Path('failed').touch()\n    assert False\n"

    result = run(pytester, "-x", test_first=waiting, test_second=failing, test_third=TWO_TESTS)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes()["failed"] == 1
    assert "test_third.py begins" not in str(read_notes(pytester))
    assert [texts[-1] for texts in read_notes(pytester).values()] == ["session ends"] * 2


def test_a_test_that_ends_the_run_ends_it_in_all_processes(pytester: pytest.Pytester) -> None:
    ending = "import pytest\n\ndef test_ends():\n    pytest.exit('no more tests')\n"

    result = run(pytester, test_first=ending, **{f"test_{number}": TWO_TESTS for number in range(20)})

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*no more tests*"])
