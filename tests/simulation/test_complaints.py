"""What the product must not say in a run: an error of its own."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulation.error_checks import ErrorLogHandler, check_responses
from simulation.network import Receive, Send
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.errors import CODE_HEADER

SCOPE = {"type": "http", "method": "GET", "path": "/v1/jobs"}


def complaints_about(status: int, code: str = "") -> list[str]:
    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        headers = [(CODE_HEADER.encode(), code.encode())] if code else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def nothing() -> dict[str, Any]:
        return {}

    async def no_reply(_message: object) -> None:
        return

    told: list[Exception] = []
    asyncio.run(check_responses(app, "server-1/api#1", told.append)(SCOPE, nothing, no_reply))  # type: ignore[arg-type]
    return [str(each) for each in told]


def test_a_500_reply_without_a_refusal_fails_the_run() -> None:
    assert complaints_about(500) == ["server-1/api#1 answered GET /v1/jobs with 500"]


def test_documented_replies_pass() -> None:
    assert complaints_about(200) == complaints_about(503) == complaints_about(500, RefusalCode.NO_LEADER) == []


@contextmanager
def a_logger() -> Iterator[tuple[logging.Logger, list[str]]]:
    told: list[str] = []
    handler = ErrorLogHandler(lambda error: told.append(str(error)))
    logger = logging.getLogger("wharf.test-of-complaints")
    logger.addHandler(handler)
    try:
        yield logger, told
    finally:
        logger.removeHandler(handler)


def test_an_error_line_fails_the_run_with_its_error_and_a_warning_does_not() -> None:
    with a_logger() as (logger, told):
        logger.warning("log unavailable")
        try:
            raise KeyError("n1")
        except KeyError:
            logger.exception("evaluation %s failed", "e1")

    assert told == ["nobody logged an error: evaluation e1 failed: KeyError('n1')"]
