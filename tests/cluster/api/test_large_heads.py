"""Requests with large heads begin one after the other."""

import asyncio
from typing import Any

import pytest

from wharf.cluster.api.admission import MAX_SMALL_HEAD_BYTES, LargeHeadPacer

LARGE = b"a" * MAX_SMALL_HEAD_BYTES


def make_scope(path: str = "/v1/jobs", query: bytes = b"", *header_values: bytes) -> dict[str, Any]:
    return {"type": "http", "path": path, "query_string": query, "headers": [(b"x", value) for value in header_values]}


class CountingApp:
    """An application that records in which iteration of the loop each request begins."""

    def __init__(self) -> None:
        self.iteration = 0
        self.begun_in: list[int] = []

    async def __call__(self, *_: Any) -> None:
        self.begun_in.append(self.iteration)

    async def serve_together(self, count: int, scope: dict[str, Any]) -> None:
        """Let this number of requests arrive in one iteration, and wait until all have begun."""
        pacer = LargeHeadPacer(self)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(pacer(scope, pytest.fail, pytest.fail))  # type: ignore[arg-type]  # Never called.
            while len(self.begun_in) < count:
                await asyncio.sleep(0)
                self.iteration += 1


@pytest.mark.parametrize(
    "scope",
    [
        make_scope(query=LARGE),
        make_scope("/v1/jobs", b"", LARGE[:1_100], LARGE[:1_100]),
        make_scope("/v1/" + "a" * 3_000),
    ],
)
def test_of_requests_with_large_heads_one_begins_in_each_iteration(scope: dict[str, Any]) -> None:
    app = CountingApp()

    asyncio.run(app.serve_together(50, scope))

    assert len(set(app.begun_in)) == 50


def test_requests_with_small_heads_begin_at_once() -> None:
    app = CountingApp()

    asyncio.run(app.serve_together(50, make_scope("/v1/jobs", b"a" * 1_000, b"a" * 900)))

    assert set(app.begun_in) == {0}
