"""What a method, a path and a query come to: worked out once, for all who ask for the same.

Only reads that are right are kept. What depends on the moment, on who asks or on other headers is no part of it.
"""

from collections.abc import Hashable, Mapping
from typing import Final

import msgspec

from wharf.api.parameters import ReadOptions, Value
from wharf.wire.endpoints import Endpoint

KEPT_MAX: Final = 8_192
KEY_MAX_BYTES: Final = 512

Key = tuple[str, bytes, bytes]
"""Method, raw path, query."""


class Target(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    values: dict[str, str]
    query: Mapping[str, str]
    parameters: Mapping[str, Value]
    options: ReadOptions
    question: Hashable
    """What is asked, without how to answer: the same for all who ask the same."""
    is_pretty: bool
    is_for_pages: bool
    """Whether pages from elsewhere may ask for it too."""


class Targets:
    """Those that were asked for, up to a number; the oldest go."""

    def __init__(self) -> None:
        self._kept: dict[Key, Target] = {}

    def get(self, key: Key) -> Target | None:
        return self._kept.get(key)

    def keep(self, key: Key, target: Target) -> None:
        if len(key[1]) + len(key[2]) > KEY_MAX_BYTES:
            return
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = target
