"""The client policy: the limits that a client respects, and how it waits."""

import msgspec


class ClientPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits that a client respects, and how it waits. The defaults are the limits that GitHub publishes."""

    concurrent_max: int = 100
    """The maximum number of requests that run at the same time."""
    rest_points_max: int = 900
    """Points per minute for one endpoint."""
    graphql_points_max: int = 2_000
    """Points per minute for GraphQL."""
    content_minute_max: int = 80
    """Requests per minute that create content."""
    content_hour_max: int = 500
    """Requests per hour that create content."""
    slow_below: float = 0.1
    """A fraction of the limit. If less than this remains, requests are spread over the time until the reset."""
    retries_max: int = 5
    """Retries after refusals, before an error is raised."""
    longest_wait_s: float | None = None
    """The longest total wait of one request; `None` for no maximum."""
    unknown_wait_s: float = 60.0
    """The wait after a refusal that does not say how long to wait; at least 60."""

    def __post_init__(self) -> None:
        """Check the values. Raises `ValueError` if they would allow no request at all, or too many."""
        counts = ("concurrent_max", "rest_points_max", "graphql_points_max", "content_minute_max", "content_hour_max")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: no request could be sent. Set 1 or more.")
        if min(self.rest_points_max, self.graphql_points_max) < 5:
            raise ValueError("rest_points_max and graphql_points_max must be 5 or more: a write costs 5 points")
        if not 0 <= self.slow_below <= 1:
            raise ValueError(f"slow_below is {self.slow_below}: set a fraction from 0 to 1")
        if self.retries_max < 0:
            raise ValueError(f"retries_max is {self.retries_max}: set 0 or more")
        if self.unknown_wait_s < 60:
            raise ValueError(f"unknown_wait_s is {self.unknown_wait_s}: set 60 or more")
