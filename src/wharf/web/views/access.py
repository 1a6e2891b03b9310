"""Who a person is for the cluster, and what the person may do."""

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.wire.acl import PolicyStub, PolicyView, SessionView, TokenStub, TokenView
from wharf.contract.wire.limits import CallerLimits, LimiterStatus
from wharf.web.rendering import build_link, format_age
from wharf.web.views.limits import CallerView, build_caller_view
from wharf.web.views.listing import CutList, cut_list

MANAGEMENT: Final = "management"


BROWSERS: Final = (
    ("Firefox/", "Firefox"),
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
"""What browsers say that they are. Later ones are also named by earlier ones: Chrome says that it is Safari."""
SYSTEMS: Final = (
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iOS"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("Linux", "Linux"),
)


class SessionRow(msgspec.Struct, frozen=True):
    """A browser that is signed in."""

    id: str
    browser: str
    address: str
    age: str
    since_ns: int
    remaining: str
    is_own: bool


NAMESPACE_RIGHTS: Final = {
    "job.list": "see jobs",
    "client.fs_logs": "read logs",
    "client.exec": "open terminals",
    "job.register": "submit and change jobs",
    "job.deregister": "stop jobs",
    "job.scale": "scale jobs",
    "job.dispatch": "dispatch jobs",
    "allocation.stop": "stop allocations",
}
"""What a person may do in a namespace, in words, by the endpoint that does it."""
CLUSTER_RIGHTS: Final = {
    "node.list": "see nodes",
    "node.drain": "drain nodes",
    "limits.read": "see rate limits",
    "limits.ban": "change rate limits",
    "namespace.store": "change namespaces",
    "acl.token.create": "create tokens",
}


class RightsRow(msgspec.Struct, frozen=True):
    """What a person may do somewhere, and what not."""

    place: str
    allowed: str
    """Such as "see jobs, read logs"; empty if nothing is allowed."""
    denied: str


def build_rights_row(place: str, rights: Mapping[str, str], allowed: Collection[str]) -> RightsRow:
    """Return the rights at one place in words. `allowed` has the endpoints that the person may use."""
    return RightsRow(
        place=place,
        allowed=", ".join(text for endpoint, text in rights.items() if endpoint in allowed),
        denied=", ".join(text for endpoint, text in rights.items() if endpoint not in allowed),
    )


class AccessView(msgspec.Struct, frozen=True):
    """The page of access."""

    sentence: str
    is_open: bool
    """Whether access control is off."""
    is_management: bool = False
    name: str = ""
    accessor_id: str = ""
    expires: str = ""
    roles: tuple[str, ...] = ()
    policies: tuple[PolicyView, ...] = ()
    missing_policies: tuple[str, ...] = ()
    """Policies that the token names and that do not exist."""
    sessions: tuple[SessionRow, ...] = ()
    rights: tuple[RightsRow, ...] = ()
    limits: CallerView | None = None
    """The rate limits of the person's token; `None` while limits are off."""


class TokenRow(msgspec.Struct, frozen=True):
    """A token in the list."""

    accessor_id: str
    name: str
    type: str
    policies: tuple[tuple[str, str], ...]
    """Names and addresses."""
    roles: tuple[str, ...]
    age: str
    since_ns: int
    expires: str


class PolicyRow(msgspec.Struct, frozen=True):
    """A policy in the list."""

    name: str
    url: str
    description: str
    job: str


def build_open_access_view() -> AccessView:
    """Return the page of access while access control is off."""
    return AccessView("Access control is off", is_open=True)


def build_access_view(
    token: TokenView,
    policies: Sequence[PolicyView],
    sessions: Sequence[SessionView],
    own_session: str,
    now_ns: int,
    *,
    rights: tuple[RightsRow, ...] = (),
    limits: CallerLimits | None = None,
) -> AccessView:
    """Return the page of access of a person who is signed in with this token."""
    is_management = token.type == MANAGEMENT
    found = {policy.name for policy in policies}
    name = token.name or token.accessor_id[:8]
    return AccessView(
        sentence=f"You are {name} and may do everything" if is_management else f"You are {name}",
        is_open=False,
        is_management=is_management,
        name=token.name,
        accessor_id=token.accessor_id,
        expires=_format_rest(token.expiration_time, now_ns),
        roles=tuple(role.name for role in token.roles or ()),
        policies=tuple(policies),
        missing_policies=() if is_management else tuple(name for name in token.policies or () if name not in found),
        sessions=tuple(_build_session(session, own_session, now_ns) for session in sessions),
        rights=rights,
        limits=None
        if limits is None
        else build_caller_view(limits, LimiterStatus(is_enabled=True), now_ns, own_text="This is you."),
    )


def _build_session(session: SessionView, own_session: str, now_ns: int) -> SessionRow:
    since_ns = _get_ns(session.created_at)
    return SessionRow(
        id=session.id,
        browser=describe_browser(session.browser),
        address=session.address,
        age=format_age(since_ns, now_ns),
        since_ns=since_ns,
        remaining=_format_rest(session.expires_at, now_ns),
        is_own=session.id == own_session,
    )


def describe_browser(text: str) -> str:
    """Return the name of a browser and of its system, from what the browser says that it is."""
    browser = next((name for mark, name in BROWSERS if mark in text), "")
    system = next((name for mark, name in SYSTEMS if mark in text), "")
    if not browser:
        return text or "a browser that does not say its name"
    return f"{browser} on {system}" if system else browser


def build_token_row(token: TokenStub, now_ns: int) -> TokenRow:
    """Return a token as the list shows it."""
    since_ns = _get_ns(token.create_time)
    return TokenRow(
        accessor_id=token.accessor_id,
        name=token.name,
        type=token.type,
        policies=tuple((name, build_link("access", "policies", name)) for name in token.policies or ()),
        roles=tuple(role.name for role in token.roles or ()),
        age=format_age(since_ns, now_ns),
        since_ns=since_ns,
        expires=_format_rest(token.expiration_time, now_ns),
    )


def build_policy_list(policies: Sequence[PolicyStub], prefix: str) -> CutList[PolicyRow]:
    """Return the list of policies."""
    return cut_list(policies, _build_policy_row, prefix)


def _build_policy_row(policy: PolicyStub) -> PolicyRow:
    acl = policy.job_acl
    parts = (acl.namespace, acl.job_id, acl.group, acl.task) if acl is not None else ()
    return PolicyRow(
        name=policy.name,
        url=build_link("access", "policies", policy.name),
        description=policy.description,
        job=" / ".join(part for part in parts if part),
    )


def _get_ns(moment: datetime.datetime | None) -> int:
    return 0 if moment is None else int(moment.timestamp()) * 1_000_000_000


def _format_rest(moment: datetime.datetime | None, now_ns: int) -> str:
    """Return how much time is left until a moment; empty if it never comes."""
    if moment is None:
        return ""
    return format_age(now_ns, max(now_ns, _get_ns(moment)))
