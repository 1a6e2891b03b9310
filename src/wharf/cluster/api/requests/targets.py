"""A cache of parsed request targets: method, path and query. Only valid GET requests of read endpoints are cached.

A target does not depend on the time, the caller or other headers.
"""

from collections.abc import Hashable, Mapping
from typing import Final

import msgspec

from wharf.cluster.api.requests.parameters import ParameterValue, QueryOptions
from wharf.contract.wire.endpoint_table import Endpoint

MAX_CACHED_TARGETS: Final = 8_192
"""Limits the memory of the cache."""
MAX_CACHED_TARGET_BYTES: Final = 512
"""Targets with a longer path and query are not cached."""

TargetKey = tuple[str, bytes, bytes]
"""Method, raw path and raw query."""


class RequestTarget(msgspec.Struct, frozen=True):
    """The part of a read request that depends only on its method, path and query, parsed."""

    endpoint: Endpoint
    path_values: dict[str, str]
    query: Mapping[str, str]
    parameters: Mapping[str, ParameterValue]
    options: QueryOptions
    query_key: Hashable
    """Identifies what is read, without parameters that only select how to reply."""
    is_pretty: bool
    """Whether to indent the JSON of the reply."""
    is_cors_allowed: bool
    """Whether browsers may read the reply from pages of another origin (CORS)."""


class RequestTargetCache:
    """Recently requested targets by method, path and query. The oldest is evicted when the cache is full."""

    def __init__(self) -> None:
        self._targets: dict[TargetKey, RequestTarget] = {}

    def get(self, key: TargetKey) -> RequestTarget | None:
        return self._targets.get(key)

    def put(self, key: TargetKey, target: RequestTarget) -> None:
        """Store a target, unless its path and query are too long."""
        if len(key[1]) + len(key[2]) > MAX_CACHED_TARGET_BYTES:
            return
        if len(self._targets) >= MAX_CACHED_TARGETS:
            del self._targets[next(iter(self._targets))]
        self._targets[key] = target
