"""The ports to rate limiters: the one in front of the API of this process, and that of a gateway. The wiring sets them."""

from typing import Protocol

from wharf.contract.wire import limits


class LimiterInterface(Protocol):
    """What a server can ask its rate limiter. Each method raises `Refusal` if it is not possible.

    `by` is the name of the operator, for the audit log of the limiter.
    """

    async def read_status(self, *, minutes: int, limit: int) -> limits.LimiterStatus:
        """Return rules, limited callers, refusals, grants and bans. `limit` applies to each list.

        With a limit of 0, only rules and limited callers are included.
        """
        ...

    async def read_caller(self, name: str) -> limits.CallerLimits:
        """Return the counters, grants and ban of a caller."""
        ...

    async def estimate_cost(self, name: str, method: str, path: str) -> limits.RequestEstimate:
        """Return what a request of a caller would cost now. Nothing is charged."""
        ...

    async def add_grant(
        self, name: str, *, bucket: str, amount: int, duration_ns: int, by: str, reason: str
    ) -> limits.LimitGrant:
        """Raise the ceiling of a caller's bucket for some time."""
        ...

    async def end_grants(self, name: str, *, bucket: str, by: str, reason: str) -> tuple[limits.LimitGrant, ...]:
        """End the grants of a caller for a bucket, or for all if it is empty, and return them."""
        ...

    async def set_ban(self, subject: str, *, duration_ns: int, by: str, reason: str, message: str) -> limits.LimitBan:
        """Ban a caller for some time; 0 ends its ban."""
        ...


class GatewayInterface(Protocol):
    """What a server can ask the gateway that its configuration names. Each method raises `Refusal` if it is not possible."""

    async def read_activity(self, organization: str, *, minutes: int, page: int) -> limits.OrganizationActivity:
        """Return one page of who has sent requests about the resources of an organization."""
        ...
