"""What operators can query: busy callers, the counters of a caller, the reasons of a decision, and the rules."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from wharf.limits.admin.callers import MAX_ECHOED_CHARS, UNKNOWN_ADDRESS, find_caller, list_charges
from wharf.limits.admin.errors import ActionError, reporting_outages
from wharf.limits.core.paths import BadPath
from wharf.limits.core.plans import Charge, ChargePlan, is_subject_shadow
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import MINUTE_MS, UNLIMITED, StoreOutagePolicy
from wharf.limits.decisions.activity import ActivityRow
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.rules import lint_rules
from wharf.limits.stores.port import StoreUnavailable

MAX_TOP_CALLERS: Final = 1_000
"""Limits the length of a reply."""


class EstimatedCharge(NamedTuple):
    """What one limit would charge a request, and its counter."""

    charge: Charge
    used: int
    resets_in_s: int

    @property
    def is_exceeded(self) -> bool:
        """Whether the request would not fit."""
        return self.used + self.charge.required > self.charge.ceiling


class OperatorQueries:
    """The queries of operators about a running limiter. Replies are JSON objects. Nothing is charged or changed."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._service = limiter.decision_service

    async def read_activity(self, since_ms: int, until_ms: int | None = None) -> dict[str, list[ActivityRow]]:
        """Return by process id the activity rows of a time range, of all processes that share the store.

        A row is the number of requests of one caller at one endpoint in one minute.
        """
        return await self._service.shared_records.read_activity(
            now_ms=self._service.now_ms(), since_ms=since_ms, until_ms=until_ms
        )

    async def list_top_callers(self, minutes: int = 1) -> dict[str, Any]:
        """Return the id of this process, and for each process its busiest callers of the last `minutes`, busiest first.

        At most `MAX_TOP_CALLERS` callers of each process are included.
        """
        rows_by_process = await self.read_activity(self._service.now_ms() - minutes * MINUTE_MS)
        return {
            "process": self._service.shared_records.process_id,
            "seen": {process: _sum_by_caller(rows)[:MAX_TOP_CALLERS] for process, rows in rows_by_process.items()},
        }

    async def describe_caller(self, name: str) -> dict[str, Any]:
        """Return the counters, grants and ban of a caller. Raises `ActionError` if the caller is unknown."""
        service, now_ms = self._service, self._service.now_ms()
        limiter = service.evaluator.limiter
        caller = find_caller(service, name)
        charges = [
            limiter.apply_grants(charge, now_ms) if charge.rule.is_primary else charge
            for charge in list_charges(service, caller)
        ]
        readings = await service.evaluator.store.peek(charges)
        limits = [
            {
                "rule": charge.name,
                "resource": charge.rule.resource,
                "key": charge.key,
                "used": reading.used,
                "limit": None if charge.ceiling >= UNLIMITED else charge.ceiling,
                "is_enforced": charge.is_enforced,
                "resets_in_s": max(0, -(-(reading.end_ms - now_ms) // 1_000)),
                "counts": charge.rule.counts.value,
                "window_s": charge.rule.window_ms // 1_000,
            }
            for charge, reading in zip(charges, readings, strict=True)
        ]
        # A caller without requests has no known token and address, and so no ban subject.
        ban_subject = None if caller.ban_subject in ("", UNKNOWN_ADDRESS) else caller.ban_subject
        ban_s, is_ban_known = None, True
        if ban_subject is not None:
            try:
                ban_s = await self._get_ban_s(ban_subject, now_ms)
            except StoreUnavailable:  # The rest is what operators need during an outage.
                is_ban_known = False
        user_ban = service.overrides.find_ban(caller.user, now_ms)
        if user_ban is not None:
            user_ban_s = -(-(user_ban.until_ms - now_ms) // 1_000)
            if ban_s is None or user_ban_s >= ban_s:
                ban_subject, ban_s = user_ban.subject, user_ban_s
        operator_ban = service.overrides.find_ban(ban_subject, now_ms) if ban_s else None
        return {
            "caller": caller.owner,
            "credential": caller.kind.value,
            "case": caller.caller_class.value,
            "ban_subject": ban_subject,
            "banned_for_s": ban_s,
            "banned_by": operator_ban.by if operator_ban is not None else None,
            "ban_reason": operator_ban.reason if operator_ban is not None else None,
            "is_ban_known": is_ban_known,
            "is_ban_enforced": ban_subject is None or not is_subject_shadow(ban_subject, limiter.rulebook.rules.ban),
            "grants": [msgspec.to_builtins(g) for g in service.overrides.grant_file.entries if g.owner == caller.owner],
            "fallback_processes": self._get_fallback_processes(),
            "limits": limits,
        }

    async def estimate_charges(self, name: str, method: str, path: str) -> tuple[ChargePlan, list[EstimatedCharge]]:
        """Return the charge plan of a request of a caller, and what each of its limits would charge. Nothing is charged.

        `path` is as a client sends it, without a query. Raises `ActionError` if the caller is unknown, the path is refused or
        the store is unavailable.
        """
        service, now_ms = self._service, self._service.now_ms()
        limiter = service.evaluator.limiter
        caller = find_caller(service, name)
        try:
            normal_path = limiter.rulebook.normalize_path(path.encode())
        except BadPath as problem:
            raise ActionError(f"path {path[:MAX_ECHOED_CHARS]!r}: {problem}") from None
        call = limiter.build_call(RequestFacts(id="", method=method, path=normal_path, caller=caller), now_ms)
        with reporting_outages():
            readings = await service.evaluator.store.peek(call.charges)
        return call.plan, [
            EstimatedCharge(charge, reading.used, max(0, -(-(reading.end_ms - now_ms) // 1_000)))
            for charge, reading in zip(call.charges, readings, strict=True)
        ]

    async def get_ban_end_ms(self, name: str, subject: str) -> int:
        """Return when the ban of a caller or of its ban subject ends, in Unix milliseconds; 0 if there is none.

        Raises `ActionError` while the store is unavailable.
        """
        service, now_ms = self._service, self._service.now_ms()
        user_ban = service.overrides.find_ban(find_caller(service, name).user, now_ms)
        with reporting_outages():
            end_ms = await service.evaluator.store.get_ban_end_ms(subject)
        return max(end_ms if end_ms > now_ms else 0, 0 if user_ban is None else user_ban.until_ms)

    def is_store_away(self) -> bool:
        """Return whether the store of the counters is unavailable."""
        remote = self._limiter.stores.remote
        return remote is not None and remote.guard.counts.is_away

    def _get_fallback_processes(self) -> int | None:
        """Return how many processes share each limit now, because the store is unavailable; `None` if it is available."""
        remote = self._limiter.stores.remote
        return remote.guard.fallback.process_count if remote is not None and self.is_store_away() else None

    async def _get_ban_s(self, subject: str, now_ms: int) -> int | None:
        """Return how many more seconds a subject is banned; `None` if it is not banned.

        Raises `StoreUnavailable`.
        """
        left_ms = await self._service.evaluator.store.get_ban_end_ms(subject) - now_ms
        return -(-left_ms // 1_000) if left_ms > 0 else None

    async def explain_decision(self, request_id: str) -> dict[str, Any]:
        """Return the logged decision about a request, of this or another process.

        Raises `ActionError` if it is not found, or if other processes cannot be queried.
        """
        decision = self._service.decision_log.find(request_id)
        if decision is None:
            try:
                decision = await self._service.shared_records.find_decision(request_id)
            except StoreUnavailable as problem:
                raise ActionError(
                    f"decision {request_id} not found in this process; other processes cannot be queried: {problem}",
                    503,
                ) from None
        if decision is None:
            raise ActionError(
                f"decision {request_id} not found: all refusals are logged, also those that shadow mode prevented, "
                "but of other requests only the last 10,000 and a sample of earlier ones",
                404,
            )
        return decision

    def describe_rules(self) -> dict[str, Any]:
        """Return the rules in force with file and line, their likely mistakes, and the files that were rejected."""
        rules = self._service.evaluator.rules
        return {
            "hash": self._service.evaluator.limiter.rulebook.hash,
            "rules": [
                {
                    "name": rule.name,
                    "resource": rule.resource,
                    "counts": rule.counts.value,
                    "algorithm": rule.algorithm.value,
                    "scope": list(rule.scope),
                    "window_s": rule.window_ms // 1_000,
                    "ceilings": {case.value: ceiling for case, ceiling in rule.ceilings.items()},
                    "match": list(rule.match),
                    "shadow": rule.shadow,
                    "enforce": rule.enforce_percent,
                    "source": f"{rule.file}:{rule.line}",
                }
                for rule in rules.counted_rules
            ],
            "while_away": self._describe_outage_limits(),
            "findings": [str(finding) for finding in lint_rules(rules)],
            "refused": {str(file.path): file.problem for file in self._limiter.watcher.files if file.problem},
        }

    def _describe_outage_limits(self) -> dict[str, Any] | None:
        """Return the number of requests that all processes together admit during an outage, by rule and class of callers.

        Return `None` if the counters are in this process.
        """
        remote = self._limiter.stores.remote
        if remote is None:
            return None
        processes = remote.guard.fallback.process_count
        totals = {
            rule.name: {case.value: -(-ceiling // processes) * processes for case, ceiling in rule.ceilings.items()}
            for rule in self._service.evaluator.rules.counted_rules
            if rule.on_store_loss is StoreOutagePolicy.LOCAL
        }
        return {"processes": processes, "at_most": totals}

    def export_state(self) -> dict[str, Any]:
        """Return all grants and, if the counters are in this process, the counters and bans."""
        state: dict[str, Any] = {
            "form": 1,
            "grants": [msgspec.to_builtins(grant) for grant in self._service.overrides.grant_file.entries],
            "operator_bans": [msgspec.to_builtins(ban) for ban in self._service.overrides.bans.values()],
        }
        counters = self._limiter.stores.store.local_counters
        if counters is not None:
            state["bans"] = {subject: msgspec.to_builtins(record) for subject, record in counters.bans.items()}
            state["counters"] = {
                name: {key: list(row) for key in list(table.keys()) if (row := table.dump_row(key)) is not None}
                for name, table in counters.tables.items()
            }
        return state


def _sum_by_caller(rows: Iterable[ActivityRow]) -> list[dict[str, Any]]:
    """Return number of requests, refusals and busiest endpoint of each caller, those with the most requests first."""
    by_owner: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = by_owner.setdefault(
            row.caller.owner,
            {"caller": row.caller.owner, "requests": 0, "refused": 0, "would_refuse": 0, "endpoints": {}},
        )
        entry["requests"] += row.total
        entry["refused"] += row.primary + row.secondary
        entry["would_refuse"] += row.shadowed
        entry["endpoints"][row.endpoint] = entry["endpoints"].get(row.endpoint, 0) + row.total
    for entry in by_owner.values():
        endpoints = entry.pop("endpoints")
        entry["busiest"] = max(endpoints, key=lambda name: endpoints[name])
    return sorted(by_owner.values(), key=lambda entry: (-entry["requests"], entry["caller"]))
