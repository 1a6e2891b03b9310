"""What the product must never say, whatever befalls it: that it made an error of its own.

A reply of status 500 that does not tell a refusal, and a log line of level error, fail the run. Those that may be said stand
here by name.
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
"""Refusals whose status is 500 by the API's own rules."""

EXPECTED_LOG_MESSAGES: Final[frozenset[str]] = frozenset(
    {
        "failed to write the journal; starting no tasks until it can be written reason=%s",
    }
)
"""Error lines that are no fault of the product, by the text as it stands in the code, before values are put in."""

INTERNAL_ERROR_STATUS: Final = 500


def check_responses(app: AsgiApp, name: str, fail: Callable[[Exception], None]) -> AsgiApp:
    """The app, with somebody who reads the status of every reply."""

    async def listened(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async def read(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == INTERNAL_ERROR_STATUS:
                code = dict(message["headers"]).get(CODE_HEADER.encode(), b"").decode()
                if code not in EXPECTED_CODES:
                    fail(InvariantViolation(f"{name} answered {scope['method']} {scope['path']} with 500", name))
            await send(message)

        await app(scope, receive, read)

    return listened


class ErrorLogHandler(logging.Handler):
    """Hears what the product logs."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        super().__init__(logging.ERROR)
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg in EXPECTED_LOG_MESSAGES:
            return
        process = current_process()
        name = process.name if process is not None else "nobody"
        why = f": {record.exc_info[1]!r}" if record.exc_info is not None else ""
        self._fail(InvariantViolation(f"{name} logged an error: {record.getMessage()}{why}", name))
