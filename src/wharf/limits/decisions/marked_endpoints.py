"""The endpoints of which the service has marked requests as creating content, with the header `x-wharf-content`.

A mark arrives with the reply, when the content exists. So it counts, and the next requests to the endpoint are checked.
"""

from collections import OrderedDict
from typing import Final

MAX_MARKED_ENDPOINTS: Final = 4_096
"""Endpoints that are stored; limits memory. A content limit admits at most a few hundred new ones an hour for each caller."""


class MarkedEndpoints:
    """The names of the endpoints with marks. Beyond the maximum, the endpoint whose last mark is oldest is dropped."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Store an endpoint, because a request to it was marked."""
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > MAX_MARKED_ENDPOINTS:
            self._names.popitem(last=False)
