"""Endpoints and messages of the rate limiter in front of the API: who is limited, by which rule, until when; grants and bans.

The names of callers, rules and buckets are those of `wharf limits`. Times are Unix times, and durations, in nanoseconds.
"""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import (
    SMALL_BODY_BYTES,
    Endpoint,
    EndpointKind,
    define_local,
    integer,
    text,
)
from wharf.contract.wire.times import DurationText

DEFAULT_MINUTES: Final = 60
MAX_MINUTES: Final = 24 * 60
DEFAULT_ENTRIES: Final = 50
MAX_ENTRIES: Final = 500
"""Limits the length of each list of a reply."""
MAX_REASON_CHARS: Final = 500
MAX_ORGANIZATION_CHARS: Final = 255
ACTIVITY_PAGE_ROWS: Final = 100
"""The rows of a page of the activity of an organization; a limiter returns no more at once."""
MAX_ACTIVITY_PAGE: Final = 10_000
CORE_BUCKET: Final = "core"


class LimitRule(Record):
    """A rule in force, and how many requests it refused."""

    name: str
    bucket: str = ""  # The primary bucket that it fills; empty for another limit.
    counts: str = ""  # What it counts, such as `requests`, `connections` or `cpu_ms`.
    window: int = 0
    ceilings: dict[str, int | None] = {}  # By class of callers; null: unlimited.
    is_enforced: bool = True  # False in shadow mode: it counts, and refuses nothing.
    refused: int = 0  # Requests that it refused in the last hour.
    source: str = ""  # The file and the line of the rule.


class LimitedCaller(Record):
    """A caller whose requests are refused now."""

    caller: str  # The owner of the counters, such as `address:192.0.2.7`, or `user:` and the accessor ID of a token.
    token_name: str = ""  # The name of the token, for callers with a management token.
    rule: str = ""  # The rule that refuses; empty for a ban.
    until: int = 0  # When requests are admitted again.
    is_banned: bool = False
    refused: int = 0  # How many of the last refusals were of this caller and rule.
    last: int = 0  # When the last request was refused.


class LimitRefusal(Record):
    """A refused request."""

    request_id: str  # `wharf limits explain` prints all its limits.
    at: int
    caller: str
    token_name: str = ""
    address: str = ""
    method: str = ""
    path: str = ""  # Without the query.
    verdict: str = ""  # `banned`, `primary`, `secondary`, or another word of `wharf limits explain`.
    rule: str = ""  # The rule that the reply named; empty for a ban.
    ceiling: int | None = None  # The ceiling of that rule for this caller.
    until: int = 0  # When the request would have been admitted; 0: never.


class CallerActivity(Record):
    """What one caller has sent."""

    caller: str
    token_name: str = ""
    requests: int = 0
    refused: int = 0
    would_refuse: int = 0  # Admitted only because a limit or a ban is in shadow mode.
    endpoint: str = ""  # The endpoint with the most of its requests.


class LimitGrant(Record):
    """A temporary increase of the ceiling of a caller's bucket."""

    caller: str
    token_name: str = ""
    bucket: str
    amount: int
    until: int
    by: str = ""  # The operator.
    reason: str = ""


class LimitBan(Record):
    """A ban by an operator."""

    subject: str
    token_name: str = ""
    until: int = 0
    by: str = ""  # The operator.
    reason: str = ""
    message: str = ""  # What the caller reads.
    is_enforced: bool = True  # False: the rules only record bans.


class LimiterStatus(Record):
    """The rate limiter of the api process that replied. Counters, grants and bans are those of all processes that share them."""

    is_enabled: bool  # Whether `limits.enabled` is set. Otherwise everything else is empty.
    process: str = ""  # The replying process. What it has seen are the requests that it received.
    off_until: int = 0  # Until when an operator has switched all limits off; 0: they are on.
    is_store_away: bool = False  # Whether the shared counters cannot be reached, so that this process counts alone.
    minutes: int = 0  # How far back `callers` reaches.
    is_cut: bool = False  # Whether `callers` leaves out older requests, because there are too many.
    rules: tuple[LimitRule, ...] = ()
    limited: tuple[LimitedCaller, ...] = ()  # Who waits longest first.
    refusals: tuple[LimitRefusal, ...] = ()  # The newest first.
    callers: tuple[CallerActivity, ...] = ()  # Those with the most requests first.
    grants: tuple[LimitGrant, ...] = ()
    grant_count: int = 0
    bans: tuple[LimitBan, ...] = ()
    ban_count: int = 0
    has_gateway: bool = False  # Whether this server can ask a gateway for the activity of organizations.


class LimitCounter(Record):
    """A counter of a caller."""

    rule: str
    bucket: str = ""
    key: str = ""  # The counter; rules with several for one caller have one for each key.
    counts: str = ""  # What it counts, as in `LimitRule`.
    used: int = 0
    ceiling: int | None = None  # With grants; null: unlimited.
    resets_in: int = 0
    window: int = 0
    is_enforced: bool = True


class CallerLimits(Record):
    """The counters, grants and ban of one caller."""

    caller: str
    token_name: str = ""
    credential: str = ""  # The kind of its credential.
    caller_class: str = ""  # Selects its ceilings.
    ban_subject: str = ""  # What a ban of this caller names; empty if that is not known yet.
    banned_until: int = 0
    is_ban_known: bool = True  # False while the store of counters does not reply.
    is_ban_enforced: bool = True
    grants: tuple[LimitGrant, ...] = ()
    counters: tuple[LimitCounter, ...] = ()


class RequestCharge(Record):
    """What one rule would charge a request."""

    rule: str
    bucket: str = ""
    counts: str = ""  # What the rule counts, as in `LimitRule`.
    cost: int = 0
    used: int = 0  # Before the request.
    ceiling: int | None = None
    is_exceeded: bool = False
    is_enforced: bool = True
    resets_in: int = 0


class RequestEstimate(Record):
    """What a request would cost now. Nothing is charged."""

    caller: str
    token_name: str = ""
    endpoint: str  # The endpoint of the rules, such as `GET /*`.
    is_free: bool = False  # Whether it charges no bucket.
    is_admitted: bool = True
    is_banned: bool = False
    rule: str = ""  # The first rule that would refuse it.
    charges: tuple[RequestCharge, ...] = ()


class OrganizationActivityRow(Record):
    """What one actor has sent about one resource of an organization."""

    actor: str  # The credential that acted, such as `installation:71`, or its owner, such as `user:ada`.
    actor_type: str = ""  # A word of the limiter, such as `classic_pat`.
    user: str = ""  # The login of the user for whom it acted.
    is_member: bool | None = None  # Whether that user is a member of the organization; null: not a user, or not known.
    resource: str = ""  # A repository such as `acme/site`, or the organization itself.
    requests: int = 0
    refused: int = 0
    last: int = 0  # When it sent the last request.
    last_refused: int = 0  # When its last request was refused; 0: not in this time.


class OrganizationActivity(Record):
    """One page of the requests about the resources of an organization, as a gateway has counted them."""

    organization: str
    since: int = 0
    page: int = 1
    has_more: bool = False  # Whether the page is full, so that another one may follow.
    rows: tuple[OrganizationActivityRow, ...] = ()  # Those with the most requests first.


class LimitGrantRequest(Record):
    """A request to raise the ceiling of a caller's bucket for some time."""

    caller: str = ""
    bucket: str = CORE_BUCKET
    amount: int = 0  # How much is added to the ceiling.
    duration: DurationText = ""
    reason: str = ""


class LimitBanRequest(Record):
    """A request to refuse the requests of a caller for some time."""

    subject: str = ""  # As `ban_subject` of a caller: an address, a token, or a user with all its tokens.
    duration: DurationText = ""
    reason: str = ""
    message: str = ""  # What the caller reads; one line of up to 200 characters.


ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "limits.read", "/v1/limits", need=permissions.READ_OPERATOR, reply_type=LimiterStatus,
        summary="Show the rate limits of the API: the rules, who is limited until when, the last refusals, grants and bans.",
        parameters=(
            integer("minutes", f"How far back callers are summed up; {DEFAULT_MINUTES} by default, at most {MAX_MINUTES}."),
            integer("limit", f"How many entries each list has; {DEFAULT_ENTRIES} by default, at most {MAX_ENTRIES}. 0: only rules and limited callers."),
        ),
    ),
    define_local(
        "limits.caller", "/v1/limits/caller/{caller...}", need=permissions.READ_OPERATOR, reply_type=CallerLimits,
        summary="Show the counters, grants and ban of a caller.", refusal_statuses=(404, 409, 503),
    ),
    define_local(
        "limits.own", "/v1/limits/own", need=permissions.ANY_TOKEN, reply_type=CallerLimits,
        summary="Show the counters and grants of the caller's own token.", refusal_statuses=(404, 409, 503),
    ),
    define_local(
        "limits.cost", "/v1/limits/cost", need=permissions.READ_OPERATOR, reply_type=RequestEstimate,
        summary="Show what a request of a caller would cost now, without charging it.", refusal_statuses=(404, 409, 503),
        parameters=(
            text("caller", "The caller, such as `address:192.0.2.7`."),
            text("method", "The method of the request; `GET` by default."),
            text("path", "The path of the request, such as `/v1/jobs`."),
        ),
    ),
    define_local(
        "limits.activity", "/v1/limits/organizations/{organization}", need=permissions.WRITE_OPERATOR,
        reply_type=OrganizationActivity, refusal_statuses=(404, 503),
        summary="Show who has sent requests about the resources of an organization, as the gateway in `limits.gateway_admin` counted them.",
        parameters=(
            integer("minutes", f"How far back requests are counted; {DEFAULT_MINUTES} by default, at most {MAX_MINUTES}."),
            integer("page", f"The page of {ACTIVITY_PAGE_ROWS} rows; 1 by default."),
        ),
    ),
    Endpoint(
        name="limits.grant", method="PUT", path="/v1/limits/grants", kind=EndpointKind.LOCAL, need=permissions.WRITE_OPERATOR,
        summary="Raise the ceiling of a caller's bucket for some time.", is_audited=True, max_body_bytes=SMALL_BODY_BYTES,
        body_type=LimitGrantRequest, reply_type=LimitGrant, refusal_statuses=(404, 409, 503),
    ),
    Endpoint(
        name="limits.end_grants", method="DELETE", path="/v1/limits/grants/{caller...}", kind=EndpointKind.LOCAL,
        need=permissions.WRITE_OPERATOR, summary="End the grants of a caller, or those of one bucket.", is_audited=True,
        reply_type=list[LimitGrant], refusal_statuses=(404, 409, 503),
        parameters=(text("bucket", "The bucket; all by default."), text("reason", "Why, for the audit log.")),
    ),
    Endpoint(
        name="limits.ban", method="PUT", path="/v1/limits/bans", kind=EndpointKind.LOCAL, need=permissions.WRITE_OPERATOR,
        summary="Refuse all requests of a caller for some time.", is_audited=True, max_body_bytes=SMALL_BODY_BYTES,
        body_type=LimitBanRequest, reply_type=LimitBan, refusal_statuses=(404, 409, 503),
    ),
    Endpoint(
        name="limits.end_ban", method="DELETE", path="/v1/limits/bans/{subject...}", kind=EndpointKind.LOCAL,
        need=permissions.WRITE_OPERATOR, summary="End the ban of a caller.", is_audited=True, reply_type=LimitBan,
        refusal_statuses=(404, 409, 503), parameters=(text("reason", "Why, for the audit log."),),
    ),
)  # fmt: skip
