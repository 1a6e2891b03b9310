"""The examples of docs/limits-client.md run against a host in memory."""

import re
from pathlib import Path

import httpx2
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "limits-client.md"


def test_every_example_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    requested_paths: list[str] = []

    def answer(_: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
        requested_paths.append(request.url.path)
        return httpx2.Response(200, json=[])

    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", answer)
    namespace: dict[str, object] = {"__name__": "the page"}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), namespace)

    assert ["/repos/team/shop/issues"] == requested_paths
    assert 3 == len(examples)
