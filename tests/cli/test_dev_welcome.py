"""The welcome text of `wharf dev`."""

from pathlib import Path

import pytest

from wharf.agent.startup import ReadyReport
from wharf.agent.startup_details import REGISTRATION_DETAIL
from wharf.cli.dev import print_welcome
from wharf.config.settings import AgentSettings


@pytest.mark.parametrize("registration", [{}, {REGISTRATION_DETAIL: "pending"}], ids=["registered", "pending"])
def test_the_drivers_are_shown_whether_or_not_the_node_is_registered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, registration: dict[str, str]
) -> None:
    details = {"node": {"drivers": "mock, raw_exec", **registration}}

    print_welcome(ReadyReport("http://127.0.0.1:4646", AgentSettings(), tmp_path, details, 1.0))

    text = capsys.readouterr().out
    assert "runs tasks on this machine, drivers mock, raw_exec\n" in text
    assert ("the registration of the node" in text) == bool(registration)
