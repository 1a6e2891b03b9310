"""What operators can change. Every action is written to the audit log, with the operator and the reason."""

import asyncio
from typing import Any, Final

import msgspec

from wharf.limits.admin.callers import (
    MAX_ECHOED_CHARS,
    find_ban_subject,
    find_caller,
    is_credential_key,
    list_charges,
)
from wharf.limits.admin.errors import ActionError, reporting_outages
from wharf.limits.core.counting.bans import USER_PREFIX, BanRecord, OperatorBan
from wharf.limits.core.limiter import Grant
from wharf.limits.core.plans import is_subject_shadow
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World
from wharf.world.tasks import cancel_tasks

STORE_DOWN_DRILL: Final = "store-down"
EXPORT_FORMAT: Final = 1
MAX_BAN_MESSAGE_CHARS: Final = 200
"""Limits the size of refusals."""


class _ExportedState(msgspec.Struct, frozen=True):
    """The exported state of a limiter, as an import reads it."""

    form: int
    """The version of the format."""
    grants: list[Grant] = []
    bans: dict[str, BanRecord] = {}
    """By subject: an app, a token or an address."""
    operator_bans: list[OperatorBan] = []
    counters: dict[str, dict[str, tuple[int, ...]]] = {}
    """By rule name and counter key, the numbers of each counter."""


class OperatorActions:
    """The changes that operators can make to a running limiter. Each raises `ActionError` if it is not possible."""

    def __init__(self, limiter: RateLimiter, world: World) -> None:
        self._limiter = limiter
        self._service = limiter.decision_service
        self._world = world
        self._drill: asyncio.Task[None] | None = None

    async def add_grant(
        self, name: str, *, resource: str, amount: int, for_ms: int = 0, until_ms: int = 0, by: str, reason: str
    ) -> dict[str, Any]:
        """Increase the ceiling of a caller's bucket `resource` by an amount, for a duration or until a time.

        Return the grant as a JSON object. Raises `ActionError` for invalid values, and if the store is unavailable or the
        grants file cannot be written.
        """
        owner = find_caller(self._service, name).owner
        resources = {rule.resource for rule in self._service.evaluator.rules.rules if rule.resource is not None}
        if resource not in resources:
            raise ActionError(f"{resource!r} is not a resource of the rules: use one of {', '.join(sorted(resources))}")
        now_ms = self._service.now_ms()
        until_ms = until_ms or now_ms + for_ms
        if amount <= 0 or until_ms <= now_ms:
            raise ActionError("invalid grant: the amount must be 1 or more, and the end must be in the future")
        grant = Grant(owner=owner, resource=resource, amount=amount, until_ms=until_ms, by=by, reason=reason)
        with reporting_outages():
            await self._service.overrides.add_grants([grant])
        facts: dict[str, Any] = msgspec.to_builtins(grant)
        self._service.write_audit_entry("grant", **facts)
        return facts

    async def revoke_grants(self, name: str, *, resource: str | None, by: str, reason: str) -> list[dict[str, Any]]:
        """End a caller's grants for one bucket, or all if `resource` is `None`. Return them as JSON objects.

        Raises `ActionError` if there is none and while the store is unavailable.
        """
        with reporting_outages():
            ended = await self._service.overrides.revoke_grants(find_caller(self._service, name).owner, resource)
        if not ended:
            raise ActionError(f"{name} has no such grant", 404)
        for grant in ended:
            self._service.write_audit_entry(
                "grant revoked", by=by, reason=reason, owner=grant.owner, resource=grant.resource
            )
        return [msgspec.to_builtins(grant) for grant in ended]

    async def reset_counters(self, name: str, *, rule: str | None, by: str, reason: str) -> list[str]:
        """Set a caller's counters to 0: those of one rule or bucket, or all if `rule` is `None`. Return the names of the rules.

        Raises `ActionError` if no such limit applies to the caller and while the store is unavailable.
        """
        caller = find_caller(self._service, name)
        charges = list_charges(self._service, caller)
        if rule is not None:
            charges = [charge for charge in charges if rule in (charge.name, charge.rule.resource)]
            if not charges:
                raise ActionError(f"{rule!r} is neither a rule nor a resource that applies to {caller.owner}")
        with reporting_outages():
            await self._service.evaluator.store.reset(charges)
        names = list(dict.fromkeys(charge.name for charge in charges))
        self._service.write_audit_entry("reset", by=by, reason=reason, owner=caller.owner, rules=names)
        return names

    async def set_ban(self, subject: str, *, for_ms: int, by: str, reason: str, message: str = "") -> dict[str, Any]:
        """Ban a user, an app, a token or an address for a duration; 0 ends the ban. Callers see `message` in refusals.

        Return the subject and the end of the ban, whether the subject was banned before, and whether the rules enforce the
        ban or only record it (shadow mode).
        Raises `ActionError` for any other subject and while the store is unavailable.
        """
        subject = find_ban_subject(self._service, subject)
        if len(message) > MAX_BAN_MESSAGE_CHARS or not message.isprintable():
            raise ActionError(f"invalid message: write one line of at most {MAX_BAN_MESSAGE_CHARS} characters")
        now_ms = self._service.now_ms()
        until_ms = now_ms + for_ms if for_ms > 0 else 0
        ban = OperatorBan(subject=subject, until_ms=until_ms, by=by, reason=reason, message=message)
        overrides = self._service.overrides
        was_banned = overrides.find_ban(subject, now_ms) is not None
        with reporting_outages():
            if not was_banned and not subject.startswith(USER_PREFIX):
                was_banned = await self._service.evaluator.store.get_ban_end_ms(subject) > now_ms
            await (overrides.add_ban(ban) if for_ms > 0 else overrides.end_ban(subject))
            if not subject.startswith(USER_PREFIX):
                await self._service.evaluator.store.ban(subject, until_ms)
        shown = {"caller_message": message} if message else {}
        self._service.write_audit_entry(
            "ban" if for_ms > 0 else "unban", by=by, reason=reason, subject=subject, until_ms=until_ms, **shown
        )
        rules = self._service.evaluator.rules
        ban_rules = rules.ban
        return {
            "subject": subject,
            "until_ms": until_ms,
            "was_banned": was_banned,
            "is_enforced": not is_subject_shadow(subject, ban_rules),
            "is_shadow_for_all": ban_rules.shadow,
            "is_shadow_for_rules": rules.shadow,
        }

    async def revoke_credential(self, name: str, *, credential: str, by: str, reason: str) -> dict[str, Any]:
        """Forget what is known about a credential, or about all credentials of a user. Return what was revoked.

        `name` is `user:` with a login or `credential:` with a keyed hash; it is empty if `credential` is given.
        Raises `ActionError` for other names, if all credentials are listed, and while the store is unavailable.
        """
        unlisted, revoker = self._service.unlisted, self._service.revoker
        if unlisted is None or revoker is None:
            raise ActionError(
                "this limiter knows only the credentials of its directory file: set `revoked = true` there", 409
            )
        kind, _, value = name.partition(":")
        if credential:
            subjects = unlisted.list_subjects(credentials=[credential])
        elif kind == "user" and value:
            subjects = unlisted.list_subjects(users=[value])
        elif kind == "credential" and is_credential_key(value):
            subjects = unlisted.list_subjects(hashes=[value])
        else:
            raise ActionError(
                f"{name[:MAX_ECHOED_CHARS]!r} cannot be revoked: name a user such as user:ada, or a credential as "
                "`wharf limits top` prints it"
            )
        with reporting_outages():
            await revoker.revoke(subjects)
        self._service.write_audit_entry("credential revoked", by=by, reason=reason, subjects=subjects)
        return {"subjects": subjects}

    async def set_off(self, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Turn all limits off for a duration; 0 turns them on. Return until when they are off.

        Raises `ActionError` while the store is unavailable.
        """
        with reporting_outages():
            await self._service.overrides.set_off_until(self._service.now_ms() + for_ms if for_ms > 0 else 0)
        self._service.write_audit_entry(
            "limits off" if for_ms > 0 else "limits on", by=by, reason=reason, for_ms=for_ms
        )
        return {"off_until_ms": self._service.overrides.off_until_ms}

    async def reload_files(self) -> None:
        """Read the rules file and the directory file again. Problems of a rejected file are stored in its `WatchedFile`."""
        await self._limiter.watcher.reload_all()

    def start_drill(self, drill_name: str, *, for_ms: int, by: str, reason: str) -> dict[str, Any]:
        """Simulate an outage of the store for a duration, to test what the rules do then. Return name and duration.

        Raises `ActionError` for an unknown drill, during another drill, and if the store is in this process.
        """
        remote = self._limiter.stores.remote
        if drill_name != STORE_DOWN_DRILL:
            raise ActionError(f"{drill_name!r} is not a drill: use {STORE_DOWN_DRILL}")
        if remote is None:
            raise ActionError("no outage to simulate: the counters are in the memory of this process")
        if self._drill is not None and not self._drill.done():
            raise ActionError("a drill is already active", 409)

        async def end_later() -> None:
            """End the drill after its duration, also if this task is cancelled."""
            try:
                await asyncio.sleep(for_ms / 1_000)
            finally:
                remote.drill.is_active = False
                self._service.write_audit_entry("drill ended", by="time", what=drill_name)

        remote.drill.is_active = True
        self._service.write_audit_entry("drill", by=by, reason=reason, what=drill_name, for_ms=for_ms)
        self._drill = self._world.start_task(end_later(), name="limits: a drill")
        return {"drill": drill_name, "for_ms": for_ms}

    async def import_state(self, exported: dict[str, Any], *, by: str, reason: str) -> dict[str, int]:
        """Add exported grants, and replace counters and bans by exported ones. Return how many of each were in the export.

        Raises `ActionError` for an invalid export, while the store is unavailable, and for counters if they are not in
        this process.
        """
        try:
            state = msgspec.convert(exported, _ExportedState)
        except msgspec.ValidationError as problem:
            raise ActionError(f"this is not an export of a limiter: {problem}") from None
        if state.form != EXPORT_FORMAT:
            raise ActionError(f"unsupported export format {state.form}: this version reads format {EXPORT_FORMAT}")
        with reporting_outages():
            await self._service.overrides.add_grants(state.grants)
            for ban in state.operator_bans:
                if ban.until_ms > self._service.now_ms():
                    await self._service.overrides.add_ban(ban)
        loaded = 0
        counters = self._limiter.stores.store.local_counters
        if counters is not None:
            counters.bans.load(state.bans.items())
            for name, rows in state.counters.items():
                if name in counters.tables:
                    for key, numbers in rows.items():
                        counters.load_row(name, key, numbers)
                        loaded += 1
        elif state.counters:
            raise ActionError(
                "counters not imported: they are not in the memory of this process. Import an export without counters."
            )
        self._service.write_audit_entry("import", by=by, reason=reason, grants=len(state.grants), counters=loaded)
        return {"grants": len(state.grants), "bans": len(state.bans), "counters": loaded}

    async def close(self) -> None:
        """End an active drill."""
        if self._drill is not None:
            await cancel_tasks(self._drill)
