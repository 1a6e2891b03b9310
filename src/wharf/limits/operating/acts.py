"""What an operator may ask and do. Every act is audited with who and why; what cannot be done is refused with a sentence."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from wharf.limits.building import Limits
from wharf.limits.core.ban import BanRecord
from wharf.limits.core.caller import Caller, Case, CredentialKind
from wharf.limits.core.charging import charge_of
from wharf.limits.core.limiter import Grant
from wharf.limits.core.plan import Charge
from wharf.limits.core.recognition import is_enterprise_account
from wharf.limits.core.rule import UNLIMITED, StoreLoss
from wharf.limits.desk.tally import Row
from wharf.limits.rules import lint
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import StoreLost
from wharf.world import World

NOWHERE: Final = "address:0.0.0.0"
"""Where a caller is who was not seen."""
OWNER_KINDS: Final = ("user", "address", "installation", "app", "repository", "token")
TOP_MINUTE_MS: Final = 60_000
TOP_MOST: Final = 1_000
ENDPOINTS_MOST: Final = 256
STORE_DOWN: Final = "store-down"


class ActRefused(Exception):
    """An act that is not possible. Its text says why, and what to do."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def _away(lost: StoreLost) -> ActRefused:
    return ActRefused(f"the store is away: {lost}", 503)


class _Exported(msgspec.Struct, frozen=True):
    form: int
    grants: list[Grant] = []
    bans: dict[str, BanRecord] = {}
    counters: dict[str, dict[str, tuple[int, ...]]] = {}


def _busiest(rows: Iterable[Row]) -> list[dict[str, Any]]:
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


class Acts:
    def __init__(self, limits: Limits, world: World) -> None:
        self._limits = limits
        self._desk = limits.desk
        self._world = world
        self._drill: asyncio.Task[None] | None = None

    # -- looking ---------------------------------------------------------------------------------------------------

    async def seen(self, since_ms: int, until_ms: int | None = None) -> dict[str, list[Row]]:
        now_ms = self._desk.now_ms()
        return await self._desk.sharing.seen(now_ms=now_ms, since_ms=since_ms, until_ms=until_ms)

    async def top(self, minutes: int = 1) -> dict[str, Any]:
        """Callers by requests in the last minutes, busiest first, as each process saw them."""
        seen = await self.seen(self._desk.now_ms() - minutes * TOP_MINUTE_MS)
        return {
            "process": self._desk.sharing.process,
            "seen": {process: _busiest(rows)[:TOP_MOST] for process, rows in seen.items()},
        }

    async def show(self, name: str) -> dict[str, Any]:
        """All counters of one caller that can be listed, its grants, and its ban."""
        caller = self.caller(name)
        desk, book, now_ms = self._desk, self._desk.service.limiter.book, self._desk.now_ms()
        charges = [desk.service.limiter.with_grants(charge, now_ms) for charge in book.primary_charges(caller)]
        charges += book.secondary_charges(caller)
        charges += self._endpoint_charges(caller)
        readings = await desk.service.store.peek(charges)
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
        subject = None if caller.ban_subject == NOWHERE else caller.ban_subject
        return {
            "caller": caller.owner,
            "credential": caller.kind.value,
            "case": caller.case.value,
            "ban_subject": subject,
            "banned_for_s": await self._banned_for_s(subject, now_ms) if subject is not None else None,
            "grants": [msgspec.to_builtins(g) for g in desk.orders.grants.grants if g.owner == caller.owner],
            "limits": limits,
        }

    async def _banned_for_s(self, subject: str, now_ms: int) -> int | None:
        try:
            left_ms = await self._desk.service.store.banned_until_ms(subject) - now_ms
        except StoreLost as lost:
            raise _away(lost) from None
        return -(-left_ms // 1_000) if left_ms > 0 else None

    def _endpoint_charges(self, caller: Caller) -> list[Charge]:
        """Counters by endpoint, of the endpoints that this caller was seen at."""
        self._desk.tally.fold(self._desk.now_ms())
        rows = self._desk.tally.rows(since_ms=self._desk.now_ms() - 60 * TOP_MINUTE_MS)
        names = list(dict.fromkeys(row.endpoint for row in rows if row.caller.owner == caller.owner))
        rules = [r for r in self._desk.service.rules.rules if r.per_endpoint and r.applies_to(caller.case)]
        return [charge_of(rule, caller, endpoint=name, cost=1) for rule in rules for name in names[:ENDPOINTS_MOST]]

    async def why(self, request_id: str) -> dict[str, Any]:
        found = self._desk.journal.find(request_id)
        if found is None:
            try:
                found = await self._desk.sharing.find(request_id)
            except StoreLost as lost:
                raise ActRefused(f"{request_id} is not known here, and others cannot be asked: {lost}", 503) from None
        if found is None:
            raise ActRefused(
                f"no decision with the id {request_id} is kept: refusals are all kept, and of admitted requests the "
                "last 10,000 and some of those before",
                404,
            )
        return found

    def rules(self) -> dict[str, Any]:
        """The rules in force, with the lines that they stand in."""
        rules = self._desk.service.rules
        return {
            "hash": self._desk.service.limiter.book.hash,
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
            "findings": [str(finding) for finding in lint(rules)],
            "refused": {str(file.path): file.problem for file in self._limits.watcher.files if file.problem},
        }

    def _while_away(self) -> dict[str, Any] | None:
        """What all processes together admit of each rule in a window while the store is away; None where it cannot be."""
        guard = self._limits.guard
        if guard is None:
            return None
        processes = guard.fallback.processes
        totals = {
            rule.name: {case.value: -(-ceiling // processes) * processes for case, ceiling in rule.ceilings.items()}
            for rule in self._desk.service.rules.rules
            if rule.on_store_loss is StoreLoss.LOCAL
        }
        return {"processes": processes, "at_most": totals}

    def caller(self, name: str) -> Caller:
        """Whom an operator means: one who was seen, else one of the directory."""
        owner = name if name.partition(":")[0] in OWNER_KINDS and ":" in name else f"user:{name}"
        seen = self._desk.tally.seen.get(owner)
        if seen is not None:
            return seen
        self._desk.tally.fold(self._desk.now_ms())
        seen = self._desk.tally.seen.get(owner)
        if seen is not None:
            return seen
        kind, _, rest = owner.partition(":")
        directory = self._desk.callers.directory
        if kind == "address":
            return Caller(kind=CredentialKind.NONE, case=Case.NONE, owner=owner, address=owner, spoken=rest)
        if kind == "user" and directory.find_user(rest) is not None:
            return Caller(kind=CredentialKind.PERSONAL_TOKEN, case=Case.USER, owner=owner, address=NOWHERE, user=owner)
        is_number = rest.isascii() and rest.isdigit()
        if kind == "installation" and is_number:
            installation = directory.find_installation(int(rest))
            if installation is not None:
                is_raised = is_enterprise_account(installation.on, directory)
                return Caller(
                    kind=CredentialKind.INSTALLATION_TOKEN,
                    case=Case.INSTALLATION_ENTERPRISE if is_raised else Case.INSTALLATION,
                    owner=owner,
                    address=NOWHERE,
                    installation=owner,
                    app=f"app:{installation.app}",
                    repositories=installation.repositories,
                    members=installation.members,
                )
        if kind == "app" and is_number and (app := directory.find_app(int(rest))) is not None:
            case = Case.CLIENT_ENTERPRISE if is_enterprise_account(app.owner, directory) else Case.CLIENT
            return Caller(kind=CredentialKind.CLIENT_SECRET, case=case, owner=owner, address=NOWHERE, app=owner)
        if kind == "repository" and (repository := directory.find_repository(rest)) is not None:
            case = Case.WORKFLOW_ENTERPRISE if is_enterprise_account(repository.owner, directory) else Case.WORKFLOW
            return Caller(kind=CredentialKind.WORKFLOW_TOKEN, case=case, owner=owner, address=NOWHERE, repository=owner)
        raise ActRefused(
            f"{name} was not seen and is not in the directory: name a caller as user:ada, address:192.0.2.7, "
            "installation:71, app:7 or repository:acme/site",
            404,
        )

    # -- acting ----------------------------------------------------------------------------------------------------

    async def grant(
        self, name: str, *, resource: str, amount: int, for_ms: int = 0, until_ms: int = 0, by: str, reason: str
    ) -> dict[str, Any]:
        """Give more for a time, or until a moment."""
        owner = self.caller(name).owner
        known = {rule.resource for rule in self._desk.service.rules.rules if rule.resource is not None}
        if resource not in known:
            raise ActRefused(f"{resource!r} is no resource of the rules: there are {', '.join(sorted(known))}")
        now_ms = self._desk.now_ms()
        until_ms = until_ms or now_ms + for_ms
        if amount <= 0 or until_ms <= now_ms:
            raise ActRefused("a grant adds at least 1, and ends later than now")
        grant = Grant(owner=owner, resource=resource, amount=amount, until_ms=until_ms, by=by, reason=reason)
        try:
            await self._desk.orders.give([grant])
        except StoreLost as lost:
            raise _away(lost) from None
        told: dict[str, Any] = msgspec.to_builtins(grant)
        self._desk.audit("grant", **told)
        return told

    async def revoke(self, name: str, *, resource: str | None, by: str, reason: str) -> list[dict[str, Any]]:
        try:
            ended = await self._desk.orders.revoke(self.caller(name).owner, resource)
        except StoreLost as lost:
            raise _away(lost) from None
        if not ended:
            raise ActRefused(f"{name} has no such grant", 404)
        for grant in ended:
            self._desk.audit("grant revoked", by=by, reason=reason, owner=grant.owner, resource=grant.resource)
        return [msgspec.to_builtins(grant) for grant in ended]

    async def reset(self, name: str, *, rule: str | None, by: str, reason: str) -> list[str]:
        """Start the caller's counters again. Returns which."""
        caller, book = self.caller(name), self._desk.service.limiter.book
        charges = [*book.primary_charges(caller), *book.secondary_charges(caller), *self._endpoint_charges(caller)]
        if rule is not None:
            charges = [charge for charge in charges if rule in (charge.name, charge.rule.resource)]
            if not charges:
                raise ActRefused(f"{rule!r} is neither a rule nor a resource that {caller.owner} has")
        try:
            await self._desk.service.store.reset(charges)
        except StoreLost as lost:
            raise _away(lost) from None
        names = list(dict.fromkeys(charge.name for charge in charges))
        self._desk.audit("reset", by=by, reason=reason, owner=caller.owner, rules=names)
        return names

    async def ban(self, subject: str, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Ban an app, a token or an address; with 0 end a ban."""
        kind = subject.partition(":")[0]
        if kind not in ("app", "token", "address"):
            raise ActRefused(
                f"{subject} cannot be banned: only app:…, token:… and address:… can, never a whole user; "
                "`wharf limits show` names the ban subject of a caller"
            )
        until_ms = self._desk.now_ms() + for_ms if for_ms > 0 else 0
        try:
            await self._desk.service.store.ban(subject, until_ms)
        except StoreLost as lost:
            raise _away(lost) from None
        self._desk.audit("ban" if for_ms > 0 else "unban", by=by, reason=reason, subject=subject, until_ms=until_ms)
        return {"subject": subject, "until_ms": until_ms}

    async def off(self, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Switch limits off for a time; with 0 on again."""
        try:
            await self._desk.orders.switch_off(self._desk.now_ms() + for_ms if for_ms > 0 else 0)
        except StoreLost as lost:
            raise _away(lost) from None
        self._desk.audit("limits off" if for_ms > 0 else "limits on", by=by, reason=reason, for_ms=for_ms)
        return {"off_until_ms": self._desk.orders.off_until_ms}

    async def reload(self) -> dict[str, Any]:
        await self._limits.watcher.look()
        return self.rules()

    def drill(self, what: str, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Make the store look lost for a time, so that it is seen what the rules answer then."""
        drill = self._limits.drill
        if what != STORE_DOWN:
            raise ActRefused(f"{what!r} is no drill: there is {STORE_DOWN}")
        if drill is None:
            raise ActRefused("counters are in memory here: there is no store that could be lost")
        if self._drill is not None and not self._drill.done():
            raise ActRefused("a drill is on already", 409)

        async def last() -> None:
            try:
                await asyncio.sleep(for_ms / 1_000)
            finally:
                drill.is_lost = False
                self._desk.audit("drill ended", by="time", what=what)

        drill.is_lost = True
        self._desk.audit("drill", by=by, reason=reason, what=what, for_ms=for_ms)
        self._drill = self._world.start(last(), name="limits: a drill")
        return {"drill": what, "for_ms": for_ms}

    def export(self) -> dict[str, Any]:
        """Grants, and where counters are in memory, these and the bans."""
        told: dict[str, Any] = {"form": 1, "grants": [msgspec.to_builtins(g) for g in self._desk.orders.grants.grants]}
        store = self._limits.store
        if isinstance(store, MemoryStore):
            counters = store.counters
            told["bans"] = {subject: msgspec.to_builtins(record) for subject, record in counters.bans.items()}
            told["counters"] = {
                name: {key: list(saved) for key in list(table.keys()) if (saved := table.saved(key)) is not None}
                for name, table in counters.tables.items()
            }
        return told

    async def take_in(self, told: dict[str, Any], *, by: str, reason: str) -> dict[str, int]:
        """Put in what was exported: grants are added, counters and bans of the same name replaced."""
        try:
            found = msgspec.convert(told, _Exported)
        except msgspec.ValidationError as problem:
            raise ActRefused(f"this is no export of a limiter: {problem}") from None
        if found.form != 1:
            raise ActRefused(f"this export has the form {found.form}, and form 1 is read here")
        try:
            await self._desk.orders.give(found.grants)
        except StoreLost as lost:
            raise _away(lost) from None
        loaded = 0
        store = self._limits.store
        if isinstance(store, MemoryStore):
            store.counters.bans.update(found.bans)
            for name, rows in found.counters.items():
                if name in store.counters.tables:
                    for key, numbers in rows.items():
                        store.counters.load(name, key, numbers)
                        loaded += 1
        elif found.counters:
            raise ActRefused("counters are elsewhere here: only an export without counters can be put in")
        self._desk.audit("import", by=by, reason=reason, grants=len(found.grants), counters=loaded)
        return {"grants": len(found.grants), "bans": len(found.bans), "counters": loaded}

    async def close(self) -> None:
        if self._drill is not None:
            self._drill.cancel()
            await asyncio.gather(self._drill, return_exceptions=True)
