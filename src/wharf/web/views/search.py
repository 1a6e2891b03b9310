"""What a search found: groups of objects with links."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from wharf.contract.wire.acl import TokenStub
from wharf.contract.wire.search import FuzzySearchResponse, SearchResponse
from wharf.web.rendering import MIN_SHORT_ID, build_link


class Hit(msgspec.Struct, frozen=True):
    """An object that was found."""

    url: str
    name: str
    id: str = ""
    """The ID of the object, if its name is another text."""
    detail: str = ""
    """Where it belongs, such as its namespace."""

    @property
    def short_id(self) -> str:
        return self.id[:8]


class HitGroup(msgspec.Struct, frozen=True):
    """The found objects of one kind."""

    key: str
    title: str
    hits: tuple[Hit, ...]
    is_truncated: bool
    """Whether there are more than these."""
    is_whole: bool
    """Whether these are objects with an own page, and no parts of jobs."""


class SearchView(msgspec.Struct, frozen=True):
    """The page of a search."""

    text: str
    groups: tuple[HitGroup, ...]
    is_name_search_missing: bool
    """Whether only IDs were searched: the text is too short, or the search by name is switched off."""


class HitKind(msgspec.Struct, frozen=True):
    """A kind of objects that a search finds: what it is called, and which page shows one."""

    title: str
    build_prefix_url: Callable[[str], str] | None
    """Returns the page of an object of which only the ID is known; `None` if no page can be named by the ID alone."""
    build_hit: Callable[[str, tuple[str, ...]], Hit]
    """Returns the object with this name and scope."""
    is_whole: bool = True


def _in_namespace(namespace: str) -> str:
    return f"in {namespace}" if namespace != "default" else ""


def _link_job(namespace: str, job_id: str) -> str:
    return build_link("jobs", job_id, namespace=namespace if namespace != "default" else "")


def _build_job_hit(name: str, scope: tuple[str, ...]) -> Hit:
    namespace, job_id = scope[0], scope[-1]
    return Hit(_link_job(namespace, job_id), name, "" if job_id == name else job_id, _in_namespace(namespace))


def _build_part_hit(name: str, scope: tuple[str, ...]) -> Hit:
    """Return a part of a job, which the page of the job shows."""
    namespace, job_id = scope[0], scope[1]
    return Hit(_link_job(namespace, job_id), name, "", f"of job {job_id} {_in_namespace(namespace)}".rstrip())


def _build_variable_hit(path: str, scope: tuple[str, ...]) -> Hit:
    return Hit(build_link("variables", path, namespace=scope[0]), path, "", _in_namespace(scope[0]))


def _build_uuid_kind(title: str, segment: str) -> HitKind:
    """Return a kind of objects with UUIDs, whose pages are below one segment of the address."""

    def build_hit(name: str, scope: tuple[str, ...]) -> Hit:
        identifier = scope[-1] if scope else name
        namespace = scope[0] if len(scope) > 1 else "default"
        return Hit(
            build_link(segment, identifier), name, identifier if identifier != name else "", _in_namespace(namespace)
        )

    return HitKind(title, lambda identifier: build_link(segment, identifier), build_hit)


def _build_name_kind(title: str, segment: str) -> HitKind:
    """Return a kind of objects that are known by their name, in the whole cluster."""
    return HitKind(
        title, lambda name: build_link(segment, name), lambda name, _scope: Hit(build_link(segment, name), name)
    )


def _build_part_kind(title: str) -> HitKind:
    return HitKind(title, None, _build_part_hit, is_whole=False)


KINDS: Final = {
    "jobs": HitKind("Jobs", lambda prefix: build_link("jobs", prefix=prefix), _build_job_hit),
    "allocs": _build_uuid_kind("Allocations", "allocations"),
    "nodes": _build_uuid_kind("Nodes", "nodes"),
    "evals": _build_uuid_kind("Evaluations", "evaluations"),
    "deployment": _build_uuid_kind("Rollouts", "deployments"),
    "host_volumes": _build_uuid_kind("Volumes", "volumes"),
    "vars": HitKind("Variables", lambda prefix: build_link("variables", prefix=prefix), _build_variable_hit),
    "namespaces": _build_name_kind("Namespaces", "namespaces"),
    "node_pools": _build_name_kind("Node pools", "pools"),
    "quotas": _build_name_kind("Quotas", "quotas"),
    "services": _build_part_kind("Services"),
    "groups": _build_part_kind("Groups"),
    "tasks": _build_part_kind("Tasks"),
    "images": _build_part_kind("Images"),
    "commands": _build_part_kind("Commands"),
    "classes": _build_part_kind("Classes"),
}
"""By context of the API, in the order in which the page shows them."""


def build_search_view(
    text: str,
    by_prefix: SearchResponse | None,
    by_name: FuzzySearchResponse | None,
    tokens: Sequence[TokenStub] = (),
) -> SearchView:
    """Return the page of a search, from what has this prefix as ID and what has the text in its name."""
    groups = []
    for context, kind in KINDS.items():
        named = by_name.matches.get(context, ()) if by_name else ()
        hits = [kind.build_hit(match.id, match.scope or ()) for match in named]
        if kind.build_prefix_url is not None:
            ids = (by_prefix.matches.get(context) or ()) if by_prefix else ()
            hits += _list_further_hits(kind.build_prefix_url, ids, hits)
        is_truncated = any(reply.truncations.get(context, False) for reply in (by_prefix, by_name) if reply is not None)
        if hits:
            groups.append(HitGroup(context, kind.title, tuple(hits), is_truncated, kind.is_whole))
    if tokens:
        token_hits = tuple(_build_token_hit(token) for token in tokens)
        groups.append(HitGroup("tokens", "Tokens", token_hits, is_truncated=False, is_whole=True))
    return SearchView(text, tuple(groups), is_name_search_missing=bool(text) and by_name is None)


def _build_token_hit(token: TokenStub) -> Hit:
    return Hit(build_link("access", "tokens", prefix=token.accessor_id[:8]), token.name, token.accessor_id, token.type)


def _list_further_hits(build_url: Callable[[str], str], ids: Iterable[str], hits: list[Hit]) -> list[Hit]:
    """Return the objects that were found by their ID and not by their name."""
    known = {hit.id or hit.name for hit in hits}
    return [Hit(build_url(each), each) for each in ids if each not in known]


def find_exact_hit(view: SearchView) -> Hit | None:
    """Return the object whose ID or name is exactly the text, if it is the only one.

    The beginning of an ID is enough if it has eight characters, as commands print it, and nothing else was found.
    """
    groups = [group.hits for group in view.groups if group.is_whole]
    found = [hit for hits in groups for hit in hits]
    exact = [(hit, hits) for hits in groups for hit in hits if view.text in (hit.name, hit.id)]
    if len(exact) == 1:
        hit, of_its_kind = exact[0]
        # If others of its kind contain the text as well, such as vm-1 beside vm, the person chooses.
        return hit if len(of_its_kind) == 1 or view.text == hit.id else None
    if len(found) == 1 and not exact and MIN_SHORT_ID.fullmatch(view.text.lower()):
        identifier = found[0].id or found[0].name
        return found[0] if identifier.startswith(view.text.lower()) else None
    return None
