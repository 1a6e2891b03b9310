"""The id of the request that the current task works for. It follows the request through all processes into the logs.

The api process sets it, channels between processes pass it on, and log lines show it. It is for diagnosis only: no
record, index or reply may depend on it.
"""

from contextvars import ContextVar
from typing import Final

_REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")


def get_request_id() -> str:
    """Return the id of the current request, or "" outside of any request. Tasks inherit it from the task that starts them."""
    return _REQUEST_ID.get()


class RequestIdScope:
    """Sets the current request id within a `with` block."""

    __slots__ = ("_request_id", "_token")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def __enter__(self) -> None:
        self._token = _REQUEST_ID.set(self._request_id)

    def __exit__(self, *_: object) -> None:
        _REQUEST_ID.reset(self._token)
