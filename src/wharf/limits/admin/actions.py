"""What an operator may ask and do. Every act is audited with who and why; what cannot be done is refused with a sentence."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.recognition import is_enterprise_account
from wharf.limits.core.counting.bans import BanRecord
from wharf.limits.core.limiter import Grant
from wharf.limits.core.plans import Charge, build_charge
from wharf.limits.core.rule import UNLIMITED, StoreOutagePolicy
from wharf.limits.decisions.activity import ActivityRow
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.rules import lint_rules
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import StoreUnavailable
from wharf.world import World

UNKNOWN_ADDRESS: Final = "address:0.0.0.0"
"""Where a caller is who was not seen."""
OWNER_KINDS: Final = ("user", "address", "installation", "app", "repository", "token")
MINUTE_MS: Final = 60_000
MAX_TOP_CALLERS: Final = 1_000
MAX_ENDPOINTS: Final = 256
STORE_DOWN_DRILL: Final = "store-down"


class ActionError(Exception):
    """An act that is not possible. Its text says why, and what to do."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def _away(lost: StoreUnavailable) -> ActionError:
    return ActionError(f"the store is away: {lost}", 503)


class _Exported(msgspec.Struct, frozen=True):
    form: int
    grants: list[Grant] = []
    bans: dict[str, BanRecord] = {}
    counters: dict[str, dict[str, tuple[int, ...]]] = {}


def _busiest(rows: Iterable[ActivityRow]) -> list[dict[str, Any]]:
    by_owner: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = by_owner.setdefault(
            row.caller.owner, {"caller": row.caller.owner, "requests": 0, "refused": 0, "endpoints": {}}
        )
        entry["requests"] += row.total
        entry["refused"] += row.primary + row.secondary
        entry["endpoints"][row.endpoint] = entry["endpoints"].get(row.endpoint, 0) + row.total
    for entry in by_owner.values():
        endpoints = entry.pop("endpoints")
        entry["busiest"] = max(endpoints, key=lambda name: endpoints[name])
    return sorted(by_owner.values(), key=lambda entry: (-entry["requests"], entry["caller"]))


class OperatorActions:
    def __init__(self, limits: RateLimiter, world: World) -> None:
        self._limits = limits
        self._desk = limits.decision_service
        self._world = world
        self._drill: asyncio.Task[None] | None = None

    # -- looking ---------------------------------------------------------------------------------------------------

    async def read_activity(self, since_ms: int, until_ms: int | None = None) -> dict[str, list[ActivityRow]]:
        now_ms = self._desk.now_ms()
        return await self._desk.shared_records.read_activity(now_ms=now_ms, since_ms=since_ms, until_ms=until_ms)

    async def list_top_callers(self, minutes: int = 1) -> dict[str, Any]:
        """Callers by requests in the last minutes, busiest first, as each process saw them."""
        seen = await self.read_activity(self._desk.now_ms() - minutes * MINUTE_MS)
        return {
            "process": self._desk.shared_records.process_id,
            "seen": {process: _busiest(rows)[:MAX_TOP_CALLERS] for process, rows in seen.items()},
        }

    async def describe_caller(self, name: str) -> dict[str, Any]:
        """All counters of one caller that can be listed, its grants, and its ban."""
        caller = self.find_caller(name)
        desk, book, now_ms = self._desk, self._desk.evaluator.limiter.rulebook, self._desk.now_ms()
        charges = [desk.evaluator.limiter.apply_grants(charge, now_ms) for charge in book.list_primary_charges(caller)]
        charges += book.list_secondary_charges(caller)
        charges += self._endpoint_charges(caller)
        readings = await desk.evaluator.store.peek(charges)
        limits = [
            {
                "rule": charge.name,
                "resource": charge.rule.resource,
                "key": charge.key,
                "used": reading.used,
                "limit": None if charge.ceiling >= UNLIMITED else charge.ceiling,
                "resets_in_s": max(0, -(-(reading.end_ms - now_ms) // 1_000)),
                "window_s": charge.rule.window_ms // 1_000,
            }
            for charge, reading in zip(charges, readings, strict=True)
        ]
        # Of whom only the directory knows it is not known with which token, or from where, they would ask.
        subject = None if caller.ban_subject == UNKNOWN_ADDRESS else caller.ban_subject
        return {
            "caller": caller.owner,
            "credential": caller.kind.value,
            "case": caller.caller_class.value,
            "ban_subject": subject,
            "banned_for_s": await self._banned_for_s(subject, now_ms) if subject is not None else None,
            "grants": [msgspec.to_builtins(g) for g in desk.overrides.grant_file.grants if g.owner == caller.owner],
            "limits": limits,
        }

    async def _banned_for_s(self, subject: str, now_ms: int) -> int | None:
        try:
            left_ms = await self._desk.evaluator.store.get_ban_end_ms(subject) - now_ms
        except StoreUnavailable as lost:
            raise _away(lost) from None
        return -(-left_ms // 1_000) if left_ms > 0 else None

    def _endpoint_charges(self, caller: Caller) -> list[Charge]:
        """Counters by endpoint, of the endpoints that this caller was seen at."""
        self._desk.activity.fold_counts(self._desk.now_ms())
        rows = self._desk.activity.list_rows(since_ms=self._desk.now_ms() - 60 * MINUTE_MS)
        names = list(dict.fromkeys(row.endpoint for row in rows if row.caller.owner == caller.owner))
        rules = [r for r in self._desk.evaluator.rules.rules if r.per_endpoint and r.applies_to(caller.caller_class)]
        return [build_charge(rule, caller, endpoint=name, cost=1) for rule in rules for name in names[:MAX_ENDPOINTS]]

    async def explain_decision(self, request_id: str) -> dict[str, Any]:
        found = self._desk.decision_log.find(request_id)
        if found is None:
            try:
                found = await self._desk.shared_records.find_decision(request_id)
            except StoreUnavailable as lost:
                raise ActionError(f"{request_id} is not known here, and others cannot be asked: {lost}", 503) from None
        if found is None:
            raise ActionError(
                f"no decision with the id {request_id} is kept: refusals are all kept, and of admitted requests the "
                "last 10,000 and some of those before",
                404,
            )
        return found

    def describe_rules(self) -> dict[str, Any]:
        """The rules in force, with the lines that they stand in."""
        rules = self._desk.evaluator.rules
        return {
            "hash": self._desk.evaluator.limiter.rulebook.hash,
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
                for rule in rules.rules
            ],
            "while_away": self._while_away(),
            "findings": [str(finding) for finding in lint_rules(rules)],
            "refused": {str(file.path): file.problem for file in self._limits.watcher.files if file.problem},
        }

    def _while_away(self) -> dict[str, Any] | None:
        """What all processes together admit of each rule in a window while the store is away; None where it cannot be."""
        guard = self._limits.guarded_store
        if guard is None:
            return None
        processes = guard.fallback.process_count
        totals = {
            rule.name: {case.value: -(-ceiling // processes) * processes for case, ceiling in rule.ceilings.items()}
            for rule in self._desk.evaluator.rules.rules
            if rule.on_store_loss is StoreOutagePolicy.LOCAL
        }
        return {"processes": processes, "at_most": totals}

    def find_caller(self, name: str) -> Caller:
        """Whom an operator means: one who was seen, else one of the directory."""
        owner = name if name.partition(":")[0] in OWNER_KINDS and ":" in name else f"user:{name}"
        seen = self._desk.activity.last_callers.get(owner)
        if seen is not None:
            return seen
        self._desk.activity.fold_counts(self._desk.now_ms())
        seen = self._desk.activity.last_callers.get(owner)
        if seen is not None:
            return seen
        kind, _, rest = owner.partition(":")
        directory = self._desk.caller_resolver.directory
        if kind == "address":
            return Caller(
                kind=CredentialKind.NONE, caller_class=CallerClass.NONE, owner=owner, address=owner, display_name=rest
            )
        if kind == "user" and directory.find_user(rest) is not None:
            return Caller(
                kind=CredentialKind.PERSONAL_TOKEN,
                caller_class=CallerClass.USER,
                owner=owner,
                address=UNKNOWN_ADDRESS,
                user=owner,
            )
        is_number = rest.isascii() and rest.isdigit()
        if kind == "installation" and is_number:
            installation = directory.find_installation(int(rest))
            if installation is not None:
                is_raised = is_enterprise_account(installation.account, directory)
                return Caller(
                    kind=CredentialKind.INSTALLATION_TOKEN,
                    caller_class=CallerClass.INSTALLATION_ENTERPRISE if is_raised else CallerClass.INSTALLATION,
                    owner=owner,
                    address=UNKNOWN_ADDRESS,
                    installation=owner,
                    app=f"app:{installation.app}",
                    repositories=installation.repositories,
                    members=installation.members,
                )
        if kind == "app" and is_number and (app := directory.find_app(int(rest))) is not None:
            case = CallerClass.CLIENT_ENTERPRISE if is_enterprise_account(app.owner, directory) else CallerClass.CLIENT
            return Caller(
                kind=CredentialKind.CLIENT_SECRET, caller_class=case, owner=owner, address=UNKNOWN_ADDRESS, app=owner
            )
        if kind == "repository" and (repository := directory.find_repository(rest)) is not None:
            case = (
                CallerClass.WORKFLOW_ENTERPRISE
                if is_enterprise_account(repository.owner, directory)
                else CallerClass.WORKFLOW
            )
            return Caller(
                kind=CredentialKind.WORKFLOW_TOKEN,
                caller_class=case,
                owner=owner,
                address=UNKNOWN_ADDRESS,
                repository=owner,
            )
        raise ActionError(
            f"{name} was not seen and is not in the directory: name a caller as user:ada, address:192.0.2.7, "
            "installation:71, app:7 or repository:acme/site",
            404,
        )

    # -- acting ----------------------------------------------------------------------------------------------------

    async def add_grant(
        self, name: str, *, resource: str, amount: int, for_ms: int = 0, until_ms: int = 0, by: str, reason: str
    ) -> dict[str, Any]:
        """Give more for a time, or until a moment."""
        owner = self.find_caller(name).owner
        known = {rule.resource for rule in self._desk.evaluator.rules.rules if rule.resource is not None}
        if resource not in known:
            raise ActionError(f"{resource!r} is no resource of the rules: there are {', '.join(sorted(known))}")
        now_ms = self._desk.now_ms()
        until_ms = until_ms or now_ms + for_ms
        if amount <= 0 or until_ms <= now_ms:
            raise ActionError("a grant adds at least 1, and ends later than now")
        grant = Grant(owner=owner, resource=resource, amount=amount, until_ms=until_ms, by=by, reason=reason)
        try:
            await self._desk.overrides.add_grants([grant])
        except StoreUnavailable as lost:
            raise _away(lost) from None
        told: dict[str, Any] = msgspec.to_builtins(grant)
        self._desk.write_audit_entry("grant", **told)
        return told

    async def revoke_grants(self, name: str, *, resource: str | None, by: str, reason: str) -> list[dict[str, Any]]:
        try:
            ended = await self._desk.overrides.revoke_grants(self.find_caller(name).owner, resource)
        except StoreUnavailable as lost:
            raise _away(lost) from None
        if not ended:
            raise ActionError(f"{name} has no such grant", 404)
        for grant in ended:
            self._desk.write_audit_entry(
                "grant revoked", by=by, reason=reason, owner=grant.owner, resource=grant.resource
            )
        return [msgspec.to_builtins(grant) for grant in ended]

    async def reset_counters(self, name: str, *, rule: str | None, by: str, reason: str) -> list[str]:
        """Start the caller's counters again. Returns which."""
        caller, book = self.find_caller(name), self._desk.evaluator.limiter.rulebook
        charges = [
            *book.list_primary_charges(caller),
            *book.list_secondary_charges(caller),
            *self._endpoint_charges(caller),
        ]
        if rule is not None:
            charges = [charge for charge in charges if rule in (charge.name, charge.rule.resource)]
            if not charges:
                raise ActionError(f"{rule!r} is neither a rule nor a resource that {caller.owner} has")
        try:
            await self._desk.evaluator.store.reset(charges)
        except StoreUnavailable as lost:
            raise _away(lost) from None
        names = list(dict.fromkeys(charge.name for charge in charges))
        self._desk.write_audit_entry("reset", by=by, reason=reason, owner=caller.owner, rules=names)
        return names

    async def set_ban(self, subject: str, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Ban an app, a token or an address; with 0 end a ban."""
        kind = subject.partition(":")[0]
        if kind not in ("app", "token", "address"):
            raise ActionError(
                f"{subject} cannot be banned: only app:…, token:… and address:… can, never a whole user; "
                "`wharf limits show` names the ban subject of a caller"
            )
        until_ms = self._desk.now_ms() + for_ms if for_ms > 0 else 0
        try:
            await self._desk.evaluator.store.ban(subject, until_ms)
        except StoreUnavailable as lost:
            raise _away(lost) from None
        self._desk.write_audit_entry(
            "ban" if for_ms > 0 else "unban", by=by, reason=reason, subject=subject, until_ms=until_ms
        )
        return {"subject": subject, "until_ms": until_ms}

    async def set_off(self, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Switch limits off for a time; with 0 on again."""
        try:
            await self._desk.overrides.set_off_until(self._desk.now_ms() + for_ms if for_ms > 0 else 0)
        except StoreUnavailable as lost:
            raise _away(lost) from None
        self._desk.write_audit_entry("limits off" if for_ms > 0 else "limits on", by=by, reason=reason, for_ms=for_ms)
        return {"off_until_ms": self._desk.overrides.off_until_ms}

    async def reload_files(self) -> dict[str, Any]:
        await self._limits.watcher.reload_all()
        return self.describe_rules()

    def start_drill(self, drill_name: str, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Make the store look lost for a time, so that it is seen what the rules answer then."""
        drill = self._limits.drill_store
        if drill_name != STORE_DOWN_DRILL:
            raise ActionError(f"{drill_name!r} is no drill: there is {STORE_DOWN_DRILL}")
        if drill is None:
            raise ActionError("counters are in memory here: there is no store that could be lost")
        if self._drill is not None and not self._drill.done():
            raise ActionError("a drill is on already", 409)

        async def last() -> None:
            try:
                await asyncio.sleep(for_ms / 1_000)
            finally:
                drill.is_active = False
                self._desk.write_audit_entry("drill ended", by="time", what=drill_name)

        drill.is_active = True
        self._desk.write_audit_entry("drill", by=by, reason=reason, what=drill_name, for_ms=for_ms)
        self._drill = self._world.start_task(last(), name="limits: a drill")
        return {"drill": drill_name, "for_ms": for_ms}

    def export_state(self) -> dict[str, Any]:
        """Grants, and where counters are in memory, these and the bans."""
        told: dict[str, Any] = {
            "form": 1,
            "grants": [msgspec.to_builtins(g) for g in self._desk.overrides.grant_file.grants],
        }
        store = self._limits.store
        if isinstance(store, MemoryStore):
            counters = store.counters
            told["bans"] = {subject: msgspec.to_builtins(record) for subject, record in counters.bans.items()}
            told["counters"] = {
                name: {key: list(saved) for key in list(table.keys()) if (saved := table.dump_row(key)) is not None}
                for name, table in counters.tables.items()
            }
        return told

    async def import_state(self, exported: dict[str, Any], *, by: str, reason: str) -> dict[str, int]:
        """Put in what was exported: grants are added, counters and bans of the same name replaced."""
        try:
            found = msgspec.convert(exported, _Exported)
        except msgspec.ValidationError as problem:
            raise ActionError(f"this is no export of a limiter: {problem}") from None
        if found.form != 1:
            raise ActionError(f"this export has the form {found.form}, and form 1 is read here")
        try:
            await self._desk.overrides.add_grants(found.grants)
        except StoreUnavailable as lost:
            raise _away(lost) from None
        loaded = 0
        store = self._limits.store
        if isinstance(store, MemoryStore):
            store.counters.bans.update(found.bans)
            for name, rows in found.counters.items():
                if name in store.counters.tables:
                    for key, numbers in rows.items():
                        store.counters.load_row(name, key, numbers)
                        loaded += 1
        elif found.counters:
            raise ActionError("counters are elsewhere here: only an export without counters can be put in")
        self._desk.write_audit_entry("import", by=by, reason=reason, grants=len(found.grants), counters=loaded)
        return {"grants": len(found.grants), "bans": len(found.bans), "counters": loaded}

    async def close(self) -> None:
        if self._drill is not None:
            self._drill.cancel()
            await asyncio.gather(self._drill, return_exceptions=True)
