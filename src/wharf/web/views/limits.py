"""The rate limits of the API: who is limited, by which rule, until when, and what operators have granted or banned."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from wharf.contract.model.times import SECOND
from wharf.contract.wire.limits import (
    DEFAULT_MINUTES,
    MAX_ACTIVITY_PAGE,
    CallerLimits,
    LimitBan,
    LimitCounter,
    LimitedCaller,
    LimiterStatus,
    LimitGrant,
    LimitRefusal,
    LimitRule,
    OrganizationActivity,
    OrganizationActivityRow,
    RequestCharge,
    RequestEstimate,
)
from wharf.web.rendering import build_link, count_noun, format_age, format_clock, format_span, quote_segment

USER_PREFIX: Final = "user:"
SECRET_PREFIX: Final = "token:"
"""Begins the subject of a ban of one secret."""
SHORT_ID_CHARS: Final = 8
UNITS: Final = {"requests": "requests", "connections": "requests at a time", "cpu_ms": "ms of CPU time"}
"""What rules count, in words."""
NUMBER_UNITS: Final = {"cpu_ms": "ms"}
"""The units of counters that do not count requests."""
CLASS_WORDS: Final = {"none": "without a token", "machine": "for nodes and servers"}
"""Classes of callers, in words. All others have a token."""
TOKEN_WORD: Final = "with a token"
RECORDED_TEXT: Final = "recorded only"
DEFAULT_METHOD: Final = "GET"
METHODS: Final = ("GET", "PUT", "POST", "DELETE")
MIN_PERCENT_SHOWN: Final = 1
PERIODS: Final = ((60, "the last hour"), (360, "the last 6 hours"), (1_440, "the last 24 hours"))
"""Minutes, and how pages name them."""
MEMBER_WORDS: Final[Mapping[bool | None, str]] = {True: "member", False: "outsider", None: "member or outsider"}
NOT_A_USER_TEXT: Final = "not a user"
GROUP_NAMES: Final = {
    "address:anonymous": "callers without a credential",
    "address:others": "other callers without a credential",
    "others:others": "all other callers",
}
"""Actors that stand for many callers, in words."""
ACTOR_WORDS: Final = {
    "classic_pat": "token",
    "oauth_app": "app",
    "github_app_user_to_server": "app for a user",
    "installation": "installation or workflow",
    "opaque": "unknown credential",
    "resolved": "credential",
}
"""Types of actors, in words."""


class CallerName(msgspec.Struct, frozen=True):
    """A caller as pages name it."""

    text: str
    id: str
    """The name for commands; empty if the text is that name."""
    url: str


class LimitedRow(msgspec.Struct, frozen=True):
    """A caller that is limited now."""

    caller: CallerName
    reason: str
    remaining: str
    until_ns: int
    refused: int


class RuleRow(msgspec.Struct, frozen=True):
    """A rule in force."""

    name: str
    counts: str
    ceilings: str
    refused: int
    state: str
    source: str


class RefusalRow(msgspec.Struct, frozen=True):
    """Refusals of equal requests that followed each other."""

    id: str
    """Of the last one."""
    count: int
    caller: CallerName
    request: str
    reason: str
    at_ns: int
    age: str


class CallerRow(msgspec.Struct, frozen=True):
    """What a caller has sent."""

    caller: CallerName
    requests: int
    refused: int
    would_refuse: int
    endpoint: str


class GrantRow(msgspec.Struct, frozen=True):
    """A grant."""

    caller: CallerName
    bucket: str
    amount: int
    remaining: str
    until_ns: int
    by: str
    reason: str
    end_url: str


class BanRow(msgspec.Struct, frozen=True):
    """A ban by an operator."""

    caller: CallerName
    remaining: str
    until_ns: int
    by: str
    reason: str
    message: str
    state: str
    end_url: str


class LimitsView(msgspec.Struct, frozen=True):
    """The page of limits."""

    sentence: str
    is_enabled: bool
    notes: tuple[str, ...]
    limited: tuple[LimitedRow, ...]
    rules: tuple[RuleRow, ...]
    refusals: tuple[RefusalRow, ...]
    refusals_caption: str
    """How many refusals are listed, of how many."""
    callers: tuple[CallerRow, ...]
    period: str
    grants: tuple[GrantRow, ...]
    hidden_grants: int
    bans: tuple[BanRow, ...]
    hidden_bans: int
    buckets: tuple[str, ...]
    has_gateway: bool


class CounterRow(msgspec.Struct, frozen=True):
    """A counter of a caller."""

    rule: str
    detail: str
    used: int
    ceiling: int | None
    unit: str
    """The unit of both numbers; empty for requests."""
    resets: str
    state: str

    @property
    def percent(self) -> int:
        """How full it is."""
        if not self.ceiling:
            return 0
        return min(100, max(round(100 * self.used / self.ceiling), MIN_PERCENT_SHOWN if self.used else 0))

    @property
    def level(self) -> str:
        """How full it is, as the style shows it."""
        return "full" if self.percent >= 90 else "high" if self.percent >= 70 else "normal"


class CallerView(msgspec.Struct, frozen=True):
    """The page of one caller."""

    caller: CallerName
    name: str
    """The name for commands and forms."""
    sentence: str
    notes: tuple[str, ...]
    counters: tuple[CounterRow, ...]
    unused: int
    grants: tuple[GrantRow, ...]
    ban_subject: str
    is_banned: bool
    own_text: str
    """How the person who looks at the page is related to the caller; empty if it is another person."""
    buckets: tuple[str, ...]
    cost_url: str


class ChargeRow(msgspec.Struct, frozen=True):
    """What a rule would charge a request."""

    rule: str
    detail: str
    cost: int
    used: int
    ceiling: int | None
    unit: str
    """The unit of the numbers; empty for requests."""
    resets: str
    state: str


class CostView(msgspec.Struct, frozen=True):
    """The page that shows what a request would cost."""

    name: str
    method: str
    methods: tuple[str, ...]
    path: str
    sentence: str = ""
    charges: tuple[ChargeRow, ...] = ()
    caller: CallerName | None = None


def build_limits_view(status: LimiterStatus, now_ns: int) -> LimitsView:
    """Return the page of limits."""
    refused = {each.caller: each.refused for each in status.callers}
    return LimitsView(
        sentence=_build_sentence(status),
        is_enabled=status.is_enabled,
        notes=tuple(_list_notes(status, now_ns)),
        limited=tuple(_build_limited_row(each, refused.get(each.caller, 0), now_ns) for each in status.limited),
        rules=tuple(_build_rule_row(each) for each in status.rules),
        refusals=build_refusal_rows(status.refusals, now_ns),
        refusals_caption=_describe_refusals(status),
        callers=tuple(
            CallerRow(
                caller=name_caller(each.caller, each.token_name),
                requests=each.requests,
                refused=each.refused,
                would_refuse=each.would_refuse,
                endpoint=each.endpoint,
            )
            for each in status.callers
        ),
        period=_describe_period(status.minutes),
        grants=tuple(build_grant_row(each, now_ns) for each in status.grants),
        hidden_grants=status.grant_count - len(status.grants),
        bans=tuple(_build_ban_row(each, now_ns) for each in status.bans),
        hidden_bans=status.ban_count - len(status.bans),
        buckets=list_buckets(status),
        has_gateway=status.has_gateway,
    )


def _describe_refusals(status: LimiterStatus) -> str:
    total = sum(rule.refused for rule in status.rules)
    listed = count_noun(len(status.refusals), "refused request", "refused requests")
    more = f". In the last hour the rules have refused {total:,}" if total > len(status.refusals) else ""
    return f"The last {listed}, the newest first{more}"


def _describe_period(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    if rest or not hours:
        return "minute" if minutes == 1 else f"{minutes:,} minutes"
    return "hour" if hours == 1 else f"{hours} hours"


def list_buckets(status: LimiterStatus) -> tuple[str, ...]:
    """Return the buckets that grants can raise."""
    return tuple(dict.fromkeys(rule.bucket for rule in status.rules if rule.bucket and any(rule.ceilings.values())))


def _build_sentence(status: LimiterStatus) -> str:
    if not status.is_enabled:
        return "Rate limits are off"
    if status.off_until:
        return "An operator has switched all limits off"
    limited = {each.caller for each in status.limited if not each.is_banned}
    banned = sum(each.is_enforced for each in status.bans) + status.ban_count - len(status.bans)
    parts = [f"{count_noun(len(limited), 'caller is', 'callers are')} limited"] if limited else []
    parts += [f"{count_noun(banned, 'caller is', 'callers are')} banned"] if banned else []
    return " and ".join(parts) or "Nobody is limited"


def _list_notes(status: LimiterStatus, now_ns: int) -> list[str]:
    """Return what a person must know to read the page."""
    notes = []
    if status.off_until:
        notes.append(f"Nothing is limited for {_format_rest(status.off_until, now_ns)}.")
    if status.is_store_away:
        notes.append("The shared counters cannot be reached: this process counts alone.")
    if status.is_cut:
        notes.append("There were too many requests to sum up all: the callers below are those of the newest ones.")
    return notes


def name_caller(caller: str, token_name: str) -> CallerName:
    """Return a caller as pages name it: a token by its name, an address as it is."""
    url = build_link("limits", "callers", caller)
    if caller.startswith(SECRET_PREFIX) and token_name:
        return CallerName(token_name, caller, url)
    if not caller.startswith(USER_PREFIX):
        return CallerName(caller.removeprefix("address:"), "" if caller.startswith("address:") else caller, url)
    accessor = caller.removeprefix(USER_PREFIX)
    return CallerName(token_name or f"token {accessor[:SHORT_ID_CHARS]}", accessor, url)


def _build_limited_row(limited: LimitedCaller, refused: int, now_ns: int) -> LimitedRow:
    """Return the row of a caller. `refused` is the number of its refused requests, or 0 if it is not known.

    The refusals of a limited caller count only the last refusals of all callers.
    """
    return LimitedRow(
        caller=name_caller(limited.caller, limited.token_name),
        reason="banned" if limited.is_banned else limited.rule,
        remaining=_format_rest(limited.until, now_ns),
        until_ns=limited.until,
        refused=max(refused, limited.refused),
    )


def _build_rule_row(rule: LimitRule) -> RuleRow:
    window = f" in {format_span(rule.window)}" if rule.window and rule.counts != "connections" else ""
    return RuleRow(
        name=rule.name,
        counts=f"{UNITS.get(rule.counts, rule.counts)}{window}",
        ceilings=describe_ceilings(rule.ceilings),
        refused=rule.refused,
        state="" if rule.is_enforced else RECORDED_TEXT,
        source=rule.source,
    )


def describe_ceilings(ceilings: dict[str, int | None]) -> str:
    """Return the ceilings of a rule by classes of callers, in words; those of all tokens together if they are equal."""
    words: dict[tuple[str, int | None], None] = {}
    for name, ceiling in ceilings.items():
        words[CLASS_WORDS.get(name, TOKEN_WORD), ceiling] = None
    parts = [("no limit" if ceiling is None else f"{ceiling:,}", word) for word, ceiling in words]
    if len({text for text, _ in parts}) == 1 and len(parts) > 1:
        return parts[0][0]
    return ", ".join(f"{text} {word}" for text, word in parts)


def build_refusal_rows(refusals: Sequence[LimitRefusal], now_ns: int) -> tuple[RefusalRow, ...]:
    """Return refusals as the page shows them: those of equal requests that followed each other are one row."""
    groups = groupby(refusals, key=lambda each: (each.caller, each.method, each.path, each.rule, each.verdict))
    return tuple(_build_refusal_row(list(group), now_ns) for _, group in groups)


def _build_refusal_row(equal: Sequence[LimitRefusal], now_ns: int) -> RefusalRow:
    refusal = equal[0]
    if refusal.rule:
        ceiling = f", {refusal.ceiling:,} at most" if refusal.ceiling is not None else ""
        reason = f"{refusal.rule}{ceiling}"
    else:
        reason = refusal.verdict
    return RefusalRow(
        id=refusal.request_id,
        count=len(equal),
        caller=name_caller(refusal.caller, refusal.token_name),
        request=f"{refusal.method} {refusal.path}",
        reason=reason,
        at_ns=refusal.at,
        age=format_age(refusal.at, now_ns),
    )


def build_grant_row(grant: LimitGrant, now_ns: int) -> GrantRow:
    """Return a grant as pages show it."""
    return GrantRow(
        caller=name_caller(grant.caller, grant.token_name),
        bucket=grant.bucket,
        amount=grant.amount,
        remaining=_format_rest(grant.until, now_ns),
        until_ns=grant.until,
        by=grant.by,
        reason=grant.reason,
        end_url=build_link("limits", "callers", grant.caller, "end-grants", bucket=grant.bucket),
    )


def _build_ban_row(ban: LimitBan, now_ns: int) -> BanRow:
    return BanRow(
        caller=name_caller(ban.subject, ban.token_name),
        remaining=_format_rest(ban.until, now_ns),
        until_ns=ban.until,
        by=ban.by,
        reason=ban.reason,
        message=ban.message,
        state="" if ban.is_enforced else RECORDED_TEXT,
        end_url=build_link("limits", "callers", ban.subject, "end-ban"),
    )


def build_caller_view(limits: CallerLimits, status: LimiterStatus, now_ns: int, *, own_text: str = "") -> CallerView:
    """Return the page of a caller, with the counters that are in use."""
    counters = [each for each in limits.counters if each.used or each.bucket]
    notes = []
    if limits.banned_until and not limits.is_ban_enforced:
        rest = _format_rest(limits.banned_until, now_ns)
        notes.append(f"It is banned for {rest}, but the rules only record such bans: its requests are admitted.")
    if not limits.is_ban_known:
        notes.append("Whether it is banned is not known, because the store of counters does not reply.")
    exceeded = [
        each for each in counters if each.is_enforced and each.ceiling is not None and each.used >= each.ceiling
    ]
    if limits.banned_until and limits.is_ban_enforced:
        sentence = f"Banned for {_format_rest(limits.banned_until, now_ns)}, until {format_clock(limits.banned_until)}"
    elif exceeded:
        rest_ns = max(each.resets_in for each in exceeded)
        names = ", ".join(each.rule for each in exceeded)
        sentence = f"Limited by {names} for {format_span(rest_ns)}, until {format_clock(now_ns + rest_ns)}"
    else:
        sentence = "Not limited"
    return CallerView(
        caller=name_caller(limits.caller, limits.token_name),
        name=limits.caller,
        sentence=sentence,
        notes=tuple(notes),
        counters=tuple(_build_counter_row(each) for each in counters),
        unused=len(limits.counters) - len(counters),
        grants=tuple(build_grant_row(each, now_ns) for each in limits.grants),
        ban_subject=limits.ban_subject,
        is_banned=bool(limits.banned_until),
        own_text=own_text,
        buckets=list_buckets(status),
        cost_url=build_link("limits", "cost", caller=limits.caller),
    )


def _build_counter_row(counter: LimitCounter) -> CounterRow:
    return CounterRow(
        rule=counter.rule,
        detail=counter.key.partition(" ")[2],
        used=counter.used,
        ceiling=counter.ceiling,
        unit=NUMBER_UNITS.get(counter.counts, ""),
        resets=format_span(counter.resets_in) if counter.used else "",
        state="" if counter.is_enforced else RECORDED_TEXT,
    )


def build_cost_view(name: str, method: str, path: str, cost: RequestEstimate | None) -> CostView:
    """Return the page that shows what a request would cost; `cost` is `None` before one was named."""
    methods = METHODS if method in METHODS else (method, *METHODS)
    if cost is None:
        return CostView(name=name, method=method, methods=methods, path=path)
    if cost.is_banned:
        sentence = "It would be refused: the caller is banned"
    elif cost.rule:
        sentence = f"It would be refused by {cost.rule}"
    else:
        sentence = "It would be admitted, and costs nothing" if cost.is_free else "It would be admitted"
    return CostView(
        name=name,
        method=method,
        methods=methods,
        path=path,
        sentence=sentence,
        charges=tuple(_build_charge_row(each) for each in cost.charges),
        caller=name_caller(cost.caller, cost.token_name),
    )


def _build_charge_row(charge: RequestCharge) -> ChargeRow:
    states = [
        text
        for text, is_shown in (("would refuse", charge.is_exceeded), (RECORDED_TEXT, not charge.is_enforced))
        if is_shown
    ]
    return ChargeRow(
        rule=charge.rule,
        detail=charge.bucket if charge.bucket != charge.rule else "",
        cost=charge.cost,
        used=charge.used,
        ceiling=charge.ceiling,
        unit=NUMBER_UNITS.get(charge.counts, ""),
        resets=format_span(charge.resets_in) if charge.used else "",
        state=", ".join(states),
    )


def _format_rest(until_ns: int, now_ns: int) -> str:
    """Return how long something still lasts, in whole seconds, such as "40s"."""
    return format_age(now_ns, max(now_ns + SECOND, until_ns))


class ActivityQuery(msgspec.Struct, frozen=True):
    """Which page of the activity of which organization the address names."""

    organization: str
    minutes: int
    page: int

    @property
    def command(self) -> str:
        """The command that shows the same; it connects to the gateway itself."""
        if not self.organization:
            return ""
        words = ["wharf", "limits", "activity", self.organization, "--group-by", "actor-resource"]
        return shlex.join([*words, "--since", f"{self.minutes}m", "--page", str(self.page)])

    @property
    def api_path(self) -> str:
        """The request of the API that shows the same."""
        if not self.organization:
            return ""
        return f"/v1/limits/organizations/{quote_segment(self.organization)}?minutes={self.minutes}&page={self.page}"


class ActorView(msgspec.Struct, frozen=True):
    """What one actor has sent about one resource."""

    name: str
    """The login of a user; for all others, the credential that acted, or that there was none."""
    credential: str
    """The credential with which a user acted."""
    kind: str
    membership: str
    resource: str
    requests: int
    refused: int
    last_ns: int
    age: str


class OrganizationActivityView(msgspec.Struct, frozen=True):
    """The page of the activity of an organization."""

    organization: str
    minutes: int
    sentence: str
    problem: str
    periods: tuple[tuple[int, str], ...]
    rows: tuple[ActorView, ...]
    page: int
    previous_url: str = ""
    next_url: str = ""


def read_activity_query(query: Mapping[str, str]) -> ActivityQuery:
    """Return what an address asks for. Numbers that pages do not offer are the usual ones."""
    minutes, page = query.get("minutes", ""), query.get("page", "")
    is_page = page.isascii() and page.isdigit() and len(page) < 6
    return ActivityQuery(
        organization=query.get("organization", "").strip(),
        minutes=next((number for number, _ in PERIODS if str(number) == minutes), DEFAULT_MINUTES),
        page=min(MAX_ACTIVITY_PAGE, max(1, int(page))) if is_page else 1,
    )


def build_activity_view(
    query: ActivityQuery, found: OrganizationActivity | None, problem: str, now_ns: int
) -> OrganizationActivityView:
    """Return the page of the activity of an organization. `found` is `None` before one was named, and with a problem."""
    period = dict(PERIODS)[query.minutes]
    rows = tuple(_build_activity_row(row, now_ns) for row in found.rows) if found is not None else ()
    if found is None:
        sentence = "Activity of an organization"
    elif rows:
        sentence = f"Requests about {query.organization} in {period}"
    elif query.page > 1:
        sentence = "This page has no rows"
    else:
        sentence = f"No requests about {query.organization} in {period}"
    return OrganizationActivityView(
        organization=query.organization,
        minutes=query.minutes,
        sentence=sentence,
        problem=problem,
        periods=PERIODS,
        rows=rows,
        page=query.page,
        previous_url=_link_activity(query, query.page - 1) if query.page > 1 else "",
        next_url=_link_activity(query, query.page + 1) if found is not None and found.has_more else "",
    )


def _link_activity(query: ActivityQuery, page: int) -> str:
    return build_link(
        "limits", "organization", organization=query.organization, minutes=str(query.minutes), page=str(page)
    )


def _build_activity_row(row: OrganizationActivityRow, now_ns: int) -> ActorView:
    group = "" if row.user else GROUP_NAMES.get(row.actor, "")
    return ActorView(
        name=group or row.user or row.actor,
        credential=row.actor if row.user and row.actor != f"{USER_PREFIX}{row.user}" else "",
        kind="" if group else ACTOR_WORDS.get(row.actor_type, row.actor_type),
        membership=MEMBER_WORDS[row.is_member] if row.user else "" if group else NOT_A_USER_TEXT,
        resource=row.resource,
        requests=row.requests,
        refused=row.refused,
        last_ns=row.last,
        age=format_age(row.last, now_ns),
    )
