"""The checks for internal errors of the product during a run."""

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


def list_violations(status: int, code: str = "") -> list[str]:
    """Return the violations for a reply with this status and refusal code."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        headers = [(CODE_HEADER.encode(), code.encode())] if code else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def receive_nothing() -> dict[str, Any]:
        return {}

    async def ignore_reply(_message: object) -> None:
        return

    violations: list[Exception] = []
    asyncio.run(check_responses(app, "server-1/api#1", violations.append)(SCOPE, receive_nothing, ignore_reply))  # type: ignore[arg-type]
    return [str(error) for error in violations]


def test_a_500_reply_without_a_refusal_fails_the_run() -> None:
    assert list_violations(500) == ["server-1/api#1 replied to GET /v1/jobs with 500"]


def test_documented_replies_pass() -> None:
    assert list_violations(200) == list_violations(503) == list_violations(500, RefusalCode.NO_LEADER) == []


@contextmanager
def a_checked_logger() -> Iterator[tuple[logging.Logger, list[str]]]:
    """Yield a logger and the violations that its lines cause."""
    violations: list[str] = []
    handler = ErrorLogHandler(lambda error: violations.append(str(error)))
    logger = logging.getLogger("wharf.test-of-error-checks")
    logger.addHandler(handler)
    try:
        yield logger, violations
    finally:
        logger.removeHandler(handler)


def test_an_error_line_fails_the_run_with_its_error_and_a_warning_does_not() -> None:
    with a_checked_logger() as (logger, violations):
        logger.warning("log unavailable")
        try:
            raise KeyError("n1")
        except KeyError:
            logger.exception("evaluation %s failed", "e1")

    assert violations == ["an unknown process logged an error: evaluation e1 failed: KeyError('n1')"]
