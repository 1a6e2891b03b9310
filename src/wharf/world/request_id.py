"""Which request the current task works for: an id that follows it through all processes, into every line of the log.

The api takes it up, the channels between processes carry it, logs show it. It decides nothing: no record, index or
answer may depend on it.
"""

from contextvars import ContextVar
from typing import Final

_REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")


def get_request_id() -> str:
    """Empty outside of any request. Tasks that a request starts inherit it."""
    return _REQUEST_ID.get()


class RequestIdScope:  # read as a verb: `with working_for(request_id):`
    """What happens inside is logged with this id."""

    __slots__ = ("_request_id", "_token")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def __enter__(self) -> None:
        self._token = _REQUEST_ID.set(self._request_id)

    def __exit__(self, *_: object) -> None:
        _REQUEST_ID.reset(self._token)
