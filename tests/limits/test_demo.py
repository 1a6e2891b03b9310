"""The demonstration of limits."""

import logging
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from wharf.cli.root import root


@pytest.fixture(autouse=True)
def _restore_log_level() -> Iterator[None]:
    """Restore the log level, which the command sets for its whole process."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_the_demonstration_shows_admitted_and_refused_callers() -> None:
    result = CliRunner().invoke(root, ["limits", "demo", "--duration", "6"])

    assert result.exit_code == 0, result.output
    assert "crawler was refused: 403" in result.output
    assert "Demonstration ended." in result.output
