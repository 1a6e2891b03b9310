"""Search by the beginning of an id."""

from collections.abc import Generator, Iterable
from typing import Any, Final

import msgspec

from wharf.access import Rights
from wharf.operations.search.contexts import SEARCHED, Context, seen_by
from wharf.operations.search.limits import SearchLimits
from wharf.operations.search.steps import beginnings, in_steps
from wharf.state import Replica

RESULTS_MAX: Final = 20
HEX: Final = frozenset("0123456789abcdef-")


class PrefixFound(msgspec.Struct, frozen=True):
    """By context. None: nothing begins so. Absent: nothing can, since it is no beginning of a UUID."""

    matches: dict[str, tuple[str, ...] | None]
    truncations: dict[str, bool]


def find_by_prefix(
    replica: Replica,
    contexts: Iterable[Context],
    prefix: str,
    rights: Rights,
    *,
    namespace: str,
    limits: SearchLimits,
) -> Generator[None, None, PrefixFound]:
    """The first ids of each context, in order. Give it time to others whenever it yields."""
    matches: dict[str, tuple[str, ...] | None] = {}
    truncations: dict[str, bool] = {}
    for context in contexts:
        searched = SEARCHED[context]
        # Other kinds' ids and names tell capitals apart.
        wanted = prefix.lower() if searched.has_uuid else prefix
        truncations[context] = False
        if searched.has_uuid and not HEX.issuperset(wanted):
            continue
        ids, truncations[context] = yield from _ids(replica, context, wanted, rights, namespace, limits)
        matches[context] = tuple(ids) or None
    return PrefixFound(matches, truncations)


def _ids(
    replica: Replica, context: Context, prefix: str, rights: Rights, namespace: str, limits: SearchLimits
) -> Generator[None, None, tuple[list[str], bool]]:
    table = SEARCHED[context].table
    ids: list[str] = []
    if table is None:
        return ids, False
    is_seen = seen_by(rights, context, namespace)
    examined = 0
    for beginning in beginnings(replica, table, namespace, prefix):
        for some in in_steps(replica, table, beginning):
            for record in some:
                if examined == limits.examined_max:
                    return ids, True
                examined += 1
                if is_seen(record):
                    if len(ids) == RESULTS_MAX:
                        return ids, True
                    ids.append(_id_of(record, table.key_attributes))
            yield
    return ids, False


def _id_of(record: Any, key: tuple[str, ...]) -> str:
    found: str = getattr(record, key[-1])
    return found
