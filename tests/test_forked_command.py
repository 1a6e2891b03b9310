"""Commands in a fork of the test process."""

import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked_command import run_in_fork

NAME = "WHARF_TEST_NAME"


def run(main: Callable[[], object], folder: Path) -> tuple[int, str, str]:
    """Return the exit code, the output and the error output of `main`."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = run_in_fork(main, folder=folder, environment={NAME: "a name"}, output=output, errors=errors)
        output.seek(0)
        errors.seek(0)
        return code, output.read().decode(), errors.read().decode()


def test_a_command_has_its_own_folder_environment_and_streams(tmp_path: Path) -> None:
    def main() -> None:
        print(os.getcwd(), dict(os.environ), repr(sys.stdin.read()), sorted(os.listdir("/dev/fd"))[:3])
        logging.error("to the errors")

    assert run(main, tmp_path) == (
        0,
        f"{tmp_path} {{'{NAME}': 'a name'}} '' ['0', '1', '2']\n",
        "ERROR:root:to the errors\n",
    )
    assert os.environ.get(NAME) is None


@pytest.mark.parametrize(
    ("code", "expected"), [(None, (0, "", "")), (3, (3, "", "")), ("no such job", (1, "", "no such job\n"))]
)
def test_the_exit_code_is_that_of_the_command(
    tmp_path: Path, code: int | str | None, expected: tuple[int, str, str]
) -> None:
    assert expected == run(lambda: sys.exit(code), tmp_path)


def test_an_unexpected_error_is_printed_and_has_exit_code_1(tmp_path: Path) -> None:
    code, _, errors = run(lambda: 1 / 0, tmp_path)

    assert (code, errors.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
