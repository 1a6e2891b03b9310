"""Fails the run if the product reports an internal error, whatever faults happen.

These are replies with status 500 that are not refusals, and log lines of level error. The exceptions are listed here.
"""

import logging
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from simulation.network import AsgiApp, Receive, Send
from simulation.process import current_process
from simulation.timeline import InvariantViolation
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.errors import CODE_HEADER

EXPECTED_CODES: Final = frozenset({RefusalCode.NO_LEADER})
"""Refusals for which the API defines the status 500."""

EXPECTED_LOG_MESSAGES: Final[frozenset[str]] = frozenset(
    {
        "failed to write the journal; starting no tasks until it can be written reason=%s",
    }
)
"""Error lines that faults may cause, as the templates in the code."""

INTERNAL_ERROR_STATUS: Final = 500


def check_responses(app: AsgiApp, name: str, fail: Callable[[Exception], None]) -> AsgiApp:
    """Return an app that also checks the status of each reply."""

    async def checked_app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async def check_and_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == INTERNAL_ERROR_STATUS:
                code = dict(message["headers"]).get(CODE_HEADER.encode(), b"").decode()
                if code not in EXPECTED_CODES:
                    fail(InvariantViolation(f"{name} replied to {scope['method']} {scope['path']} with 500", name))
            await send(message)

        await app(scope, receive, check_and_send)

    return checked_app


class ErrorLogHandler(logging.Handler):
    """Fails the run on a log line of level error."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        super().__init__(logging.ERROR)
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg in EXPECTED_LOG_MESSAGES:
            return
        process = current_process()
        name = process.name if process is not None else "an unknown process"
        cause = f": {record.exc_info[1]!r}" if record.exc_info is not None else ""
        self._fail(InvariantViolation(f"{name} logged an error: {record.getMessage()}{cause}", name))
