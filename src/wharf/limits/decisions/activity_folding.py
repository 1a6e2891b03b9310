"""Folds the activity rows of a minute if they are too many: keeps those of the busiest callers, and sums all others.

Pure functions. Sums by organization and by primary bucket are always exact, and those by endpoint and resource as long as a minute
has few of them. Sums of the busiest callers are exact too.
"""

from collections.abc import Iterable
from typing import Final

from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.resources import get_organization
from wharf.limits.decisions.activity import ActivityRow

OTHERS: Final = Caller(
    kind=CredentialKind.NONE,
    caller_class=CallerClass.NONE,
    owner="others:others",
    address="",
    display_name="others",
)
"""Stands for all callers with a credential that have no row of their own."""
ANONYMOUS_OTHERS: Final = Caller(
    kind=CredentialKind.NONE,
    caller_class=CallerClass.NONE,
    owner="address:others",
    address="",
    display_name="other addresses",
)
"""Stands for all callers without a credential that have no row of their own."""
OTHER_ENDPOINT: Final = "* others"
"""Stands for all endpoints and resources of an organization that have no row of their own."""
OTHERS_SHARE: Final = 4
"""One row in this number is for the sums of other callers, by endpoint and resource."""
MAX_ROWS_OF_CALLER: Final = 6
"""Rows of one of the busiest callers, so that 400 rows are enough for 50 of them; its other rows are summed."""
_RowKey = tuple[Caller, str, str, str]


def fold_rows(rows: list[ActivityRow], *, max_rows: int, max_of_organization: int) -> list[ActivityRow]:
    """Return at most about `max_rows` rows of one minute, with the same sums.

    Each organization gets the rows that it needs, up to `max_of_organization` and to an equal part of `max_rows`. Rows without an
    organization count as those of one more.
    """
    groups: dict[str, list[ActivityRow]] = {}
    for row in rows:
        groups.setdefault(get_organization(row.resource), []).append(row)
    folded: list[ActivityRow] = []
    left = max_rows
    by_size = sorted(groups.items(), key=lambda item: len(item[1]))  # What small ones leave is for large ones.
    for index, (organization, group) in enumerate(by_size):
        limit = min(max_of_organization, max(1, left // (len(by_size) - index)))
        part = _fold_group(organization, group, limit)
        left -= len(part)
        folded += part
    return folded


def _fold_group(organization: str, rows: list[ActivityRow], limit: int) -> list[ActivityRow]:
    """Return about `limit` rows of one organization: all rows of its busiest callers, then the sums of the other callers."""
    if len(rows) <= limit:
        return rows
    by_owner: dict[str, list[ActivityRow]] = {}
    for row in rows:
        by_owner.setdefault(row.caller.owner, []).append(row)
    busiest = sorted(by_owner.values(), key=_sum_total, reverse=True)
    busy: list[ActivityRow] = []
    max_busy = limit - -(-limit // OTHERS_SHARE)
    count = 0
    while count < len(busiest):
        caller_rows = _fold_endpoints(organization, busiest[count], MAX_ROWS_OF_CALLER)
        if len(busy) + len(caller_rows) > max_busy:
            break
        busy += caller_rows
        count += 1
    others: dict[_RowKey, ActivityRow] = {}
    for caller_rows in busiest[count:]:
        for row in caller_rows:
            caller = ANONYMOUS_OTHERS if row.caller.is_anonymous else OTHERS
            _add_row(others, row, (caller, row.endpoint, row.resource, row.bucket))
    return busy + _fold_endpoints(organization, list(others.values()), limit - len(busy))


def _fold_endpoints(organization: str, rows: list[ActivityRow], limit: int) -> list[ActivityRow]:
    """Return the rows with most requests, and for each credential and bucket one row with the sums of the rest."""
    if len(rows) <= limit:
        return rows
    rows.sort(key=lambda row: row.total, reverse=True)
    least_count = len({(row.caller, row.bucket) for row in rows})
    busy = rows[: max(0, limit - least_count)]
    rest: dict[_RowKey, ActivityRow] = {}
    for row in rows[len(busy) :]:
        _add_row(rest, row, (row.caller, OTHER_ENDPOINT, organization, row.bucket))
    return busy + list(rest.values())


def _add_row(sums: dict[_RowKey, ActivityRow], row: ActivityRow, key: _RowKey) -> None:
    """Add the counts of a row to the sum with this key: caller, endpoint, resource and bucket."""
    total = sums.get(key)
    if total is None:
        caller, endpoint, resource, bucket = key
        total = sums[key] = ActivityRow(row.minute, caller, endpoint, resource=resource, bucket=bucket)
    total.total += row.total
    total.primary += row.primary
    total.secondary += row.secondary
    total.shadowed += row.shadowed
    total.last_ms = max(total.last_ms, row.last_ms)
    total.last_limited_ms = max(total.last_limited_ms, row.last_limited_ms)


def _sum_total(rows: Iterable[ActivityRow]) -> int:
    return sum(row.total for row in rows)


def is_others(caller: Caller) -> bool:
    """Return whether this is the sum of other callers with a credential, also in a row that was read from the store."""
    return caller.owner == OTHERS.owner
