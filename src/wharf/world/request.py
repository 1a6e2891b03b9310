"""Which request the current task works for: an id that follows it through all processes, into every line of the log.

The api takes it up, the channels between processes carry it, logs show it. It decides nothing: no record, index or
answer may depend on it.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")


def current_request_id() -> str:
    """Empty outside of any request. Tasks that a request starts inherit it."""
    return _REQUEST_ID.get()


@contextlib.contextmanager
def working_for(request_id: str) -> Iterator[None]:
    """What happens inside is logged with this id."""
    token = _REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)
