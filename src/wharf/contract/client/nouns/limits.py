"""Client methods for the rate limits of the API."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec
from wharf.contract.client.methods import M, MethodGroup, call_method
from wharf.contract.wire import limits


class LimitMethods(MethodGroup[M]):
    """The methods of `client.limits`. Each describes a call, which the client then sends."""

    @call_method("limits.read")
    def read(
        self, *, minutes: int | None = None, limit: int | None = None, **options: Unpack[CallOptions]
    ) -> CallSpec[limits.LimiterStatus]:
        """Read the rules, who is limited until when, the last refusals, grants and bans.

        `minutes`: how far back callers are summed up. `limit` applies to each list; 0: only rules and limited callers.
        """
        return CallSpec(options, minutes=minutes, limit=limit)

    @call_method("limits.caller")
    def read_caller(self, caller: str, **options: Unpack[CallOptions]) -> CallSpec[limits.CallerLimits]:
        """Read the counters, grants and ban of a caller, such as `address:192.0.2.7`."""
        return CallSpec(options, caller)

    @call_method("limits.own")
    def read_own(self, **options: Unpack[CallOptions]) -> CallSpec[limits.CallerLimits]:
        """Read the counters and grants of the own token."""
        return CallSpec(options)

    @call_method("limits.cost")
    def estimate(
        self, caller: str, path: str, *, method: str = "GET", **options: Unpack[CallOptions]
    ) -> CallSpec[limits.RequestEstimate]:
        """Read what a request of a caller would cost now. Nothing is charged."""
        return CallSpec(options, caller=caller, method=method, path=path)

    @call_method("limits.activity")
    def read_activity(
        self, organization: str, *, minutes: int | None = None, page: int | None = None, **options: Unpack[CallOptions]
    ) -> CallSpec[limits.OrganizationActivity]:
        """Read who has sent requests about the resources of an organization, from the gateway that the server names."""
        return CallSpec(options, organization, minutes=minutes, page=page)

    @call_method("limits.grant")
    def grant(self, grant: limits.LimitGrantRequest, **options: Unpack[CallOptions]) -> CallSpec[limits.LimitGrant]:
        """Raise the ceiling of a caller's bucket for some time."""
        return CallSpec(options, body=grant)

    @call_method("limits.end_grants")
    def end_grants(
        self, caller: str, *, bucket: str = "", reason: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[list[limits.LimitGrant]]:
        """End the grants of a caller for a bucket, or for all."""
        return CallSpec(options, caller, bucket=bucket, reason=reason)

    @call_method("limits.ban")
    def ban(self, ban: limits.LimitBanRequest, **options: Unpack[CallOptions]) -> CallSpec[limits.LimitBan]:
        """Refuse all requests of a caller for some time."""
        return CallSpec(options, body=ban)

    @call_method("limits.end_ban")
    def end_ban(self, subject: str, *, reason: str = "", **options: Unpack[CallOptions]) -> CallSpec[limits.LimitBan]:
        """End the ban of a caller."""
        return CallSpec(options, subject, reason=reason)
