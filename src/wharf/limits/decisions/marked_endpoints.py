"""The endpoints of which the service has marked requests as creating content, with the header `x-wharf-content`.

A mark arrives with the reply, when the content exists. So it counts, and the next requests to the endpoint are checked.
"""

import functools
from collections import OrderedDict
from typing import Final

MAX_MARKED_ENDPOINTS: Final = 4_096
"""Endpoints that are stored; limits memory. A content limit admits at most a few hundred new ones an hour for each caller."""
MAX_CACHED_PATTERNS: Final = 16_384
"""Names of endpoints whose patterns are in the cache; limits memory."""


@functools.lru_cache(MAX_CACHED_PATTERNS)
def derive_pattern(name: str) -> str:
    """Return what the same action on other objects has in common with an endpoint, such as `POST /*/*/issues/*`.

    Only the last segment that is not an id stays, so `POST /acme/site/issues/7` and `POST /ada/notes/issues/8` have one pattern.
    The name of an endpoint that the rules describe, with `{...}`, stands for all objects already, and is its own pattern.
    """
    method, _, path = name.partition(" ")
    segments = path[1:].split("/")
    if "{" in path:
        return name
    last = max((index for index, segment in enumerate(segments) if segment != "*"), default=-1)
    return f"{method} /{'/'.join(segment if index == last else '*' for index, segment in enumerate(segments))}"


class MarkedEndpoints:
    """The patterns of the endpoints with marks. Beyond the maximum, the pattern whose last mark is oldest is dropped."""

    def __init__(self) -> None:
        self.patterns: Final[OrderedDict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.patterns)

    def __contains__(self, name: str) -> bool:
        """Return whether an endpoint with the same pattern as this one has a mark."""
        return derive_pattern(name) in self.patterns

    def add(self, name: str) -> None:
        """Store the pattern of an endpoint, because a request to it was marked."""
        pattern = derive_pattern(name)
        self.patterns[pattern] = None
        self.patterns.move_to_end(pattern)
        if len(self.patterns) > MAX_MARKED_ENDPOINTS:
            self.patterns.popitem(last=False)
