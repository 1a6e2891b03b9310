"""How a client behaves: the limits it keeps to by itself, and how it waits."""

import msgspec


class ClientPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults are the limits that large code hosts publish."""

    concurrent_max: int = 100
    rest_points_max: int = 900
    """A minute, for one endpoint."""
    graphql_points_max: int = 2_000
    content_minute_max: int = 80
    content_hour_max: int = 500
    slow_below: float = 0.1
    """Of a limit: once less than this part of it is left, requests are spread over the time until it begins anew."""
    retries_max: int = 5
    longest_wait_s: float | None = None
    """For one request, all of its waits together. None: as long as it takes."""
    unknown_wait_s: float = 60.0
    """After a secondary limit that does not say how long. Never less than a minute."""

    def __post_init__(self) -> None:
        counts = ("concurrent_max", "rest_points_max", "graphql_points_max", "content_minute_max", "content_hour_max")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: nothing could ever be sent; give 1 or more")
        if min(self.rest_points_max, self.graphql_points_max) < 5:
            raise ValueError("a write costs 5 points: allow at least 5 a minute")
        if not 0 <= self.slow_below <= 1:
            raise ValueError(f"slow_below is {self.slow_below}: it is a part of the limit, from 0 to 1")
        if self.retries_max < 0:
            raise ValueError(f"retries_max is {self.retries_max}: give 0 or more")
        if self.unknown_wait_s < 60:
            raise ValueError(f"unknown_wait_s is {self.unknown_wait_s}: wait at least a minute")
