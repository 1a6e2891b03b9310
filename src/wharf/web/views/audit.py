"""The audit log in words: who did what, with which result."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final
from urllib.parse import unquote

import msgspec

from wharf.contract.model.acl.permissions import PUBLIC_ACCESS
from wharf.contract.wire.agents import AgentMembers
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME
from wharf.contract.wire.operator import AuditEntries, AuditEntry
from wharf.web.rendering import UUID, build_link, format_age, format_clock, format_span
from wharf.web.views.states import State, Tone

NS_PER_MS: Final = 1_000_000
FIRST_ERROR: Final = 400
FIRST_SERVER_ERROR: Final = 500
BEGAN: Final = 101
NOT_ALLOWED: Final = (401, 403)
_PARAMETER: Final = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")
PAGE_BY_PARAMETER: Final[Mapping[str, tuple[str, ...]]] = {
    "job_id": ("jobs",),
    "alloc_id": ("allocations",),
    "node_id": ("nodes",),
    "pool_name": ("pools",),
    "namespace_name": ("namespaces",),
    "quota_name": ("quotas",),
    "service_name": ("services",),
    "volume_id": ("volumes",),
}
"""The pages of objects, by the parameter in the path of an endpoint."""
PAGE_BY_PREFIX: Final[Mapping[str, tuple[str, ...]]] = {
    "variable.": ("variables",),
    "acl.policy.": ("access", "policies"),
}
"""The same for parameters with a general name, by the beginning of the endpoint's name."""


class AuditRow(msgspec.Struct, frozen=True):
    """A line of the audit log."""

    time_ns: int
    age: str
    moment: str
    caller: str
    """The name of the token, or the beginning of its accessor ID."""
    caller_url: str
    """Finds what else this token did; empty for anonymous requests."""
    source: str
    text: str
    object_name: str
    object_url: str
    detail: str
    """The command in a task, with its end; or the request."""
    state: State
    error: str
    index: int
    request_id: str


class ServerChoice(msgspec.Struct, frozen=True):
    """A server whose log can be selected."""

    text: str
    url: str
    is_selected: bool


class AuditView(msgspec.Struct, frozen=True):
    """One page of the audit log of a server."""

    rows: tuple[AuditRow, ...]
    search: str
    is_failed: bool
    server: str
    all_url: str
    failed_url: str
    servers: tuple[ServerChoice, ...]
    """Empty if there is only one."""
    older_url: str
    newest_url: str
    """Empty on the first page."""
    is_incomplete: bool


def build_audit_view(
    log: AuditEntries, members: AgentMembers, query: Mapping[str, str], server: str, now_ns: int
) -> AuditView:
    """Return one page of the audit log. `server` is the server that the address names; empty: the one that replies."""
    search, is_failed = query.get("q", ""), query.get("failed") == "yes"

    def link(**changes: str) -> str:
        parameters = {"q": search, "failed": "yes" if is_failed else "", "server": server} | changes
        return build_link("activity", "audit", **parameters)

    shown = next((each for each in members.members if each.tags.get("id") == log.server_id), None)
    servers = tuple(
        ServerChoice(each.name, link(server=each.tags.get("id", "")), each is shown)
        for each in members.members
        if each.status == "alive" or each is shown
    )
    return AuditView(
        rows=tuple(_build_row(entry, link, now_ns) for entry in log.entries),
        search=search,
        is_failed=is_failed,
        server=server,
        all_url=link(failed=""),
        failed_url=link(failed="yes"),
        servers=servers if len(servers) > 1 else (),
        older_url=link(token=log.next_token) if log.next_token else "",
        newest_url=link() if query.get("token") else "",
        is_incomplete=log.is_incomplete,
    )


def _build_row(entry: AuditEntry, link: Callable[..., str], now_ns: int) -> AuditRow:
    name, url = find_object(entry)
    return AuditRow(
        time_ns=entry.time,
        age=format_age(entry.time, now_ns),
        moment=format_clock(entry.time),
        caller=name_caller(entry),
        caller_url=link(q=entry.accessor_id) if entry.accessor_id else "",
        source=entry.source,
        text=describe_endpoint(entry.endpoint),
        object_name=name,
        object_url=url,
        detail=_describe_detail(entry),
        state=describe_result(entry.status),
        error=entry.error,
        index=entry.index,
        request_id=entry.request_id,
    )


def name_caller(entry: AuditEntry) -> str:
    """Return the name of the token, or what else is known of the caller. Nodes authenticate with a secret of their own."""
    if entry.token_name or entry.accessor_id:
        return entry.token_name or f"token {entry.accessor_id[:8]}"
    endpoint = ENDPOINT_BY_NAME.get(entry.endpoint)
    is_of_nodes = endpoint is not None and endpoint.need is PUBLIC_ACCESS and "{node_id}" in endpoint.path
    return "the node" if is_of_nodes and entry.status < FIRST_ERROR else "anonymous"


def describe_endpoint(name: str) -> str:
    """Return what an endpoint does, such as "Register a job"; its name if this version does not know it."""
    endpoint = ENDPOINT_BY_NAME.get(name)
    if endpoint is None:
        return name or "Unknown request"
    return endpoint.summary.partition(". ")[0].partition(": ")[0].removesuffix(".")


def describe_result(status: int) -> State:
    """Return the result of a request in words."""
    if status == BEGAN:
        return State("began", Tone.BUSY)
    if status < FIRST_ERROR:
        return State("done", Tone.GOOD)
    if status in NOT_ALLOWED:
        return State("not allowed", Tone.BAD)
    return State("failed" if status >= FIRST_SERVER_ERROR else "refused", Tone.BAD)


def _describe_detail(entry: AuditEntry) -> str:
    """Return the command in a task with its end, or the request."""
    if not entry.command:
        return f"{entry.method} {entry.path}".strip()
    parts = [shlex.join(entry.command), f"in {entry.task}" if entry.task else ""]
    if entry.exit_code is not None:
        parts.append(f"exit code {entry.exit_code}")
    if entry.duration_ms:
        parts.append(f"after {format_span(round(entry.duration_ms * NS_PER_MS))}")
    return ", ".join(part for part in parts if part)


def find_object(entry: AuditEntry) -> tuple[str, str]:
    """Return the name and the page of the object of a request; both empty if its path names none."""
    endpoint = ENDPOINT_BY_NAME.get(entry.endpoint)
    found = _compile_path(endpoint.path).fullmatch(entry.path) if endpoint is not None else None
    values = {name: unquote(value) for name, value in found.groupdict().items()} if found is not None else {}
    if entry.allocation_id:
        values = {"alloc_id": entry.allocation_id}
    general = next((page for prefix, page in PAGE_BY_PREFIX.items() if entry.endpoint.startswith(prefix)), None)
    for parameter, value in values.items():
        page = PAGE_BY_PARAMETER.get(parameter, general)
        if page is not None:
            return _shorten(value), build_link(*page, value, namespace=_get_namespace(entry, page))
    return "", ""


def _get_namespace(entry: AuditEntry, page: Sequence[str]) -> str:
    """Return the namespace for the address of an object; empty if it has none, or the default one."""
    return (
        entry.namespace
        if page[0] in ("jobs", "services", "volumes", "variables") and entry.namespace != "default"
        else ""
    )


def _shorten(value: str) -> str:
    return value[:8] if UUID.fullmatch(value) else value


@cache
def _compile_path(path: str) -> re.Pattern[str]:
    """Return the pattern of the paths of an endpoint, with a group for each parameter."""
    parts: list[str] = []
    start = 0
    for found in _PARAMETER.finditer(path):
        parts += [re.escape(path[start : found.start()]), f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})"]
        start = found.end()
    return re.compile("".join((*parts, re.escape(path[start:]))))
