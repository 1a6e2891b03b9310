"""Fixtures of the tests of commands."""

from collections.abc import Iterator

import pytest

from tests.cli.terminal import Terminal, open_terminal

CLIENT_VARIABLES = ("WHARF_ADDR", "WHARF_NAMESPACE", "WHARF_TOKEN", "WHARF_LOGIN_TOKEN", "NOMAD_ADDR", "NOMAD_TOKEN")


@pytest.fixture(autouse=True)
def no_client_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of the user who runs the tests from the commands."""
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    """A terminal at a cluster without nodes."""
    with open_terminal(capsys) as opened:
        yield opened
