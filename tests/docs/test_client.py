"""The examples of docs/client.md run in their order against a real server."""

import re
from pathlib import Path

import pytest

from tests.agent.processes import running

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_every_example_of_the_page_runs_with_its_documented_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with running(tmp_path / "agent", "dev", "--port", "0") as agent:
        agent.wait_ready()
        monkeypatch.setenv("WHARF_ADDR", agent.address)
        namespace: dict[str, object] = {"__name__": "the page"}
        for example in examples:
            exec(compile(example, str(PAGE), "exec"), namespace)

    assert len(examples) >= 8
