"""The `LimiterInterface` of a server, over the limiter of this process and the queries and actions of its operators."""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import SECOND
from wharf.contract.wire import limits
from wharf.limits.admin.actions import OperatorActions
from wharf.limits.admin.callers import expand_name
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.queries import OperatorQueries
from wharf.limits.core.counting.bans import OperatorBan
from wharf.limits.core.decision import Verdict
from wharf.limits.core.limiter import Grant
from wharf.limits.core.plans import is_subject_shadow
from wharf.limits.core.rule import MINUTE_MS, UNLIMITED, Rule
from wharf.limits.decisions.activity import ActivityRow
from wharf.limits.decisions.decision_log import LoggedDecision
from wharf.limits.rate_limiter import RateLimiter

NS_PER_MS: Final = 1_000_000
MAX_SUMMED_ROWS: Final = 10_000
"""Activity rows that are summed up in one step, which takes up to 10 ms. Protects the event loop of the process."""
CODE_BY_STATUS: Final = {
    404: RefusalCode.NOT_FOUND,
    409: RefusalCode.CONFLICT,
    503: RefusalCode.UNAVAILABLE,
}


class LimiterAdapter:
    """Answers a server's questions about the limiter in front of its API. Implements `LimiterInterface`."""

    def __init__(self, limiter: RateLimiter, queries: OperatorQueries, actions: OperatorActions) -> None:
        self._service = limiter.decision_service
        self._queries = queries
        self._actions = actions

    async def read_status(self, *, minutes: int, limit: int) -> limits.LimiterStatus:
        """Return rules, limited callers, refusals, grants and bans. `limit` applies to each list."""
        service, now_ms = self._service, self._service.now_ms()
        overrides = service.overrides
        logged = list(service.decision_log.list_refusals())
        ended_bans = await self._list_ended_bans(logged, now_ms)
        refusals = tuple(map(self._build_refusal, logged))
        callers, is_cut = self._sum_callers(now_ms - minutes * MINUTE_MS) if limit else ((), False)
        rules = service.evaluator.rules.counted_rules
        rules_by_name = {rule.name: rule for rule in rules}
        still_valid = [
            refusal for refusal, each in zip(refusals, logged, strict=True) if _would_refuse(each, rules_by_name)
        ]
        refused_by_rule = service.activity.sum_refusals(now_ms)
        grants = [each for each in overrides.grant_file.entries if now_ms < each.until_ms]
        bans = [each for each in overrides.bans.values() if now_ms < each.until_ms]
        return limits.LimiterStatus(
            is_enabled=True,
            process=service.shared_records.process_id,
            off_until=overrides.off_until_ms * NS_PER_MS if overrides.is_off else 0,
            is_store_away=self._queries.is_store_away(),
            minutes=minutes,
            is_cut=is_cut,
            rules=tuple(_build_rule(rule, refused_by_rule[rule.name]) for rule in rules),
            limited=find_limited_callers(still_valid, now_ms * NS_PER_MS, ended_bans)[
                : limit or limits.DEFAULT_ENTRIES
            ],
            refusals=refusals[:limit],
            callers=callers[:limit],
            grants=tuple(map(_build_grant, grants[:limit])),
            grant_count=len(grants),
            bans=tuple(map(self._build_ban, bans[:limit])),
            ban_count=len(bans),
        )

    async def read_caller(self, name: str) -> limits.CallerLimits:
        """Return the counters, grants and ban of a caller. Raises `Refusal`."""
        with _refusing():
            found = await self._queries.describe_caller(await expand_name(self._service, name))
        now_ms, banned_s = self._service.now_ms(), found["banned_for_s"]
        return limits.CallerLimits(
            caller=found["caller"],
            credential=found["credential"],
            caller_class=found["case"],
            ban_subject=found["ban_subject"] or "",
            banned_until=(now_ms + banned_s * 1_000) * NS_PER_MS if banned_s else 0,
            is_ban_known=found["is_ban_known"],
            is_ban_enforced=found["is_ban_enforced"],
            grants=tuple(
                _build_grant(grant)
                for grant in self._service.overrides.grant_file.entries
                if grant.owner == found["caller"] and now_ms < grant.until_ms
            )[: limits.MAX_ENTRIES],
            counters=tuple(map(_build_counter, found["limits"][: limits.MAX_ENTRIES])),
        )

    async def estimate_cost(self, name: str, method: str, path: str) -> limits.RequestEstimate:
        """Return what a request of a caller would cost now. Nothing is charged. Raises `Refusal`."""
        with _refusing():
            caller = await expand_name(self._service, name)
            plan, charges = await self._queries.estimate_charges(caller, method, path)
            ban_end_ms = await self._queries.get_ban_end_ms(caller, plan.ban_subject)
        is_banned = bool(ban_end_ms) and not plan.is_ban_shadow
        refusing = next((each.charge.name for each in charges if each.is_exceeded and each.charge.is_enforced), "")
        return limits.RequestEstimate(
            caller=caller,
            endpoint=plan.endpoint,
            is_free=plan.is_free,
            is_admitted=not is_banned and not refusing,
            is_banned=is_banned,
            rule=refusing,
            charges=tuple(
                limits.RequestCharge(
                    rule=each.charge.name,
                    bucket=each.charge.rule.resource or "",
                    counts=each.charge.rule.counts.value,
                    cost=each.charge.cost,
                    used=each.used,
                    ceiling=_limit_ceiling(each.charge.ceiling),
                    is_exceeded=each.is_exceeded,
                    is_enforced=each.charge.is_enforced,
                    resets_in=each.resets_in_s * SECOND,
                )
                for each in charges
            ),
        )

    async def add_grant(
        self, name: str, *, bucket: str, amount: int, duration_ns: int, by: str, reason: str
    ) -> limits.LimitGrant:
        """Raise the ceiling of a caller's bucket for some time. Raises `Refusal`."""
        with _refusing():
            grant = await self._actions.add_grant(
                await expand_name(self._service, name),
                resource=bucket,
                amount=amount,
                for_ms=duration_ns // NS_PER_MS,
                by=by,
                reason=reason,
            )
        return _build_grant(Grant(**grant))

    async def end_grants(self, name: str, *, bucket: str, by: str, reason: str) -> tuple[limits.LimitGrant, ...]:
        """End the grants of a caller for a bucket, or for all if it is empty. Raises `Refusal`."""
        with _refusing():
            caller = await expand_name(self._service, name)
            ended = await self._actions.revoke_grants(caller, resource=bucket or None, by=by, reason=reason)
        return tuple(_build_grant(Grant(**grant)) for grant in ended)

    async def set_ban(self, subject: str, *, duration_ns: int, by: str, reason: str, message: str) -> limits.LimitBan:
        """Ban a caller for some time; 0 ends its ban. Raises `Refusal`."""
        with _refusing():
            ban = await self._actions.set_ban(
                await expand_name(self._service, subject),
                for_ms=duration_ns // NS_PER_MS,
                by=by,
                reason=reason,
                message=message,
            )
        return limits.LimitBan(
            subject=ban["subject"],
            until=ban["until_ms"] * NS_PER_MS,
            by=by,
            reason=reason,
            message=message,
            is_enforced=ban["is_enforced"],
        )

    async def _list_ended_bans(self, refusals: Iterable[LoggedDecision], now_ms: int) -> frozenset[str]:
        """Return the callers that were refused because of a ban that an operator has ended since.

        While the store does not reply, no ban counts as ended.
        """
        banned = {
            each.caller.owner: each.decision.plan.ban_subject
            for each in refusals
            if each.decision.verdict is Verdict.BANNED
        }
        ended = []
        for owner, subject in list(banned.items())[: limits.MAX_ENTRIES]:
            try:
                if await self._queries.get_ban_end_ms(owner, subject) <= now_ms:
                    ended.append(owner)
            except ActionError:
                continue
        return frozenset(ended)

    def _sum_callers(self, since_ms: int) -> tuple[tuple[limits.CallerActivity, ...], bool]:
        """Return what each caller has sent to this process since a time, and whether older rows were left out."""
        activity = self._service.activity
        activity.add_admissions_to_rows(self._service.now_ms())
        rows = list(islice(activity.iter_newest_rows(since_ms=since_ms), MAX_SUMMED_ROWS))
        return sum_callers(rows), len(rows) == MAX_SUMMED_ROWS

    def _build_refusal(self, logged: LoggedDecision) -> limits.LimitRefusal:
        decision, charge = logged.decision, logged.decision.refusing_charge
        wait_s = decision.retry_after_s
        return limits.LimitRefusal(
            request_id=logged.id,
            at=logged.at_ms * NS_PER_MS,
            caller=logged.caller.owner,
            address=self._service.decision_log.cut_address(logged.caller),
            method=logged.method,
            path=logged.path,
            verdict=decision.verdict.value,
            rule="" if charge is None else charge.name,
            ceiling=None if charge is None else _limit_ceiling(charge.ceiling),
            until=(logged.at_ms + wait_s * 1_000) * NS_PER_MS if wait_s else 0,
        )

    def _build_ban(self, ban: OperatorBan) -> limits.LimitBan:
        return limits.LimitBan(
            subject=ban.subject,
            until=ban.until_ms * NS_PER_MS,
            by=ban.by,
            reason=ban.reason,
            message=ban.message,
            is_enforced=not is_subject_shadow(ban.subject, self._service.evaluator.rules.ban),
        )


def _would_refuse(logged: LoggedDecision, rules_by_name: Mapping[str, Rule]) -> bool:
    """Return whether the rule of a refusal is still as it was. After a change, only a new refusal shows who is limited."""
    charge = logged.decision.refusing_charge
    if charge is None:
        return True  # A ban.
    rule = rules_by_name.get(charge.name)
    return rule is not None and (rule.shadow, rule.counts, rule.window_ms, rule.ceilings) == (
        charge.rule.shadow,
        charge.rule.counts,
        charge.rule.window_ms,
        charge.rule.ceilings,
    )


def find_limited_callers(
    refusals: Iterable[limits.LimitRefusal], now_ns: int, ended_bans: Container[str] = ()
) -> tuple[limits.LimitedCaller, ...]:
    """Return who is refused now and by which rule, according to the last refusals; who waits longest first.

    `ended_bans` has the callers whose ban an operator has ended.
    """
    by_key: dict[tuple[str, str, bool], list[limits.LimitRefusal]] = {}
    for refusal in refusals:
        is_banned = refusal.verdict == Verdict.BANNED.value
        if is_banned and refusal.caller in ended_bans:
            continue
        by_key.setdefault((refusal.caller, refusal.rule, is_banned), []).append(refusal)
    limited = [
        limits.LimitedCaller(
            caller=caller,
            rule=rule,
            until=until,
            is_banned=is_banned,
            refused=len(found),
            last=max(each.at for each in found),
        )
        for (caller, rule, is_banned), found in by_key.items()
        if (until := max(each.until for each in found)) > now_ns
    ]
    return tuple(sorted(limited, key=lambda each: (-each.until, each.caller, each.rule)))


def sum_callers(rows: Iterable[ActivityRow]) -> tuple[limits.CallerActivity, ...]:
    """Return what each caller has sent, those with the most requests first."""
    counts: dict[str, list[int]] = {}
    endpoints: dict[str, dict[str, int]] = {}
    for row in rows:
        owner = row.caller.owner
        sums = counts.setdefault(owner, [0, 0, 0])
        sums[0] += row.total
        sums[1] += row.primary + row.secondary
        sums[2] += row.shadowed
        by_endpoint = endpoints.setdefault(owner, {})
        by_endpoint[row.endpoint] = by_endpoint.get(row.endpoint, 0) + row.total
    return tuple(
        limits.CallerActivity(
            caller=owner,
            requests=requests,
            refused=refused,
            would_refuse=would_refuse,
            endpoint=max(endpoints[owner], key=lambda name, owner=owner: (endpoints[owner][name], name)),  # type: ignore[misc]
        )
        for owner, (requests, refused, would_refuse) in sorted(counts.items(), key=lambda item: (-item[1][0], item[0]))
    )


def _build_rule(rule: Rule, refused: int) -> limits.LimitRule:
    return limits.LimitRule(
        name=rule.name,
        bucket=rule.resource or "",
        counts=rule.counts.value,
        window=rule.window_ms * NS_PER_MS,
        ceilings={case.value: _limit_ceiling(ceiling) for case, ceiling in rule.ceilings.items()},
        is_enforced=not rule.shadow,
        refused=refused,
        source=f"{rule.file}:{rule.line}",
    )


def _build_grant(grant: Grant) -> limits.LimitGrant:
    return limits.LimitGrant(
        caller=grant.owner,
        bucket=grant.resource,
        amount=grant.amount,
        until=grant.until_ms * NS_PER_MS,
        by=grant.by,
        reason=grant.reason,
    )


def _build_counter(facts: dict[str, Any]) -> limits.LimitCounter:
    return limits.LimitCounter(
        rule=facts["rule"],
        bucket=facts["resource"] or "",
        key=facts["key"],
        counts=facts["counts"],
        used=facts["used"],
        ceiling=facts["limit"],
        resets_in=facts["resets_in_s"] * SECOND,
        window=facts["window_s"] * SECOND,
        is_enforced=facts["is_enforced"],
    )


def _limit_ceiling(ceiling: int) -> int | None:
    """Return a ceiling, or `None` if it is unlimited."""
    return None if ceiling >= UNLIMITED else ceiling


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise a `Refusal` for what operators cannot do."""
    try:
        yield
    except ActionError as error:
        raise Refusal(CODE_BY_STATUS.get(error.status, RefusalCode.INVALID), str(error)) from None
