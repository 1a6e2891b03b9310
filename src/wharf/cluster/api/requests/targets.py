"""What a method, a path and a query come to: worked out once, for all who ask for the same.

Only reads that are right are kept. What depends on the moment, on who asks or on other headers is no part of it.
"""

from collections.abc import Hashable, Mapping
from typing import Final

import msgspec

from wharf.cluster.api.requests.parameters import ParameterValue, QueryOptions
from wharf.contract.wire.endpoint_table import Endpoint

MAX_CACHED_TARGETS: Final = 8_192
MAX_KEY_BYTES: Final = 512

TargetKey = tuple[str, bytes, bytes]
"""Method, raw path, query."""


class RequestTarget(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    path_values: dict[str, str]
    query: Mapping[str, str]
    parameters: Mapping[str, ParameterValue]
    options: QueryOptions
    query_key: Hashable
    """What is asked, without how to answer: the same for all who ask the same."""
    is_pretty: bool
    is_cors_allowed: bool
    """Whether pages from elsewhere may ask for it too."""


class RequestTargetCache:
    """Those that were asked for, up to a number; the oldest go."""

    def __init__(self) -> None:
        self._kept: dict[TargetKey, RequestTarget] = {}

    def get(self, key: TargetKey) -> RequestTarget | None:
        return self._kept.get(key)

    def put(self, key: TargetKey, target: RequestTarget) -> None:
        if len(key[1]) + len(key[2]) > MAX_KEY_BYTES:
            return
        if len(self._kept) >= MAX_CACHED_TARGETS:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = target
