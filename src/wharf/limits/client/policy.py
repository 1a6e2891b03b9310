"""The client policy: the limits that a client respects, and how it waits."""

import msgspec


class ClientPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and waits of a client. The defaults are the limits that GitHub publishes."""

    concurrent_max: int = 100
    rest_points_max: int = 900
    """Points per minute for one endpoint."""
    graphql_points_max: int = 2_000
    content_minute_max: int = 80
    content_hour_max: int = 500
    slow_below: float = 0.1
    """A fraction of the limit. If less than this remains, requests are spread over the time until the reset."""
    retries_max: int = 5
    longest_wait_s: float | None = None
    """The longest total wait of one request; `None` for no maximum."""
    unknown_wait_s: float = 60.0
    """The wait after a refusal that does not say how long to wait; at least 60."""

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
