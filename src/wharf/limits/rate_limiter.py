"""A limiter built from its settings: store, rules, accounts, decision service and watched files, opened and closed
together.

Invalid settings are rejected before anything listens. The message names the file and the problem.
"""

import logging
from pathlib import Path
from typing import Final, Protocol

from wharf.languages.source_locations import SourceLocation
from wharf.limits.config.file_watcher import FileWatcher, WatchedFile
from wharf.limits.config.settings import LimiterSettings, StoreKind
from wharf.limits.config.settings_file import read_settings
from wharf.limits.core.callers.directory import Directory, MemoryDirectory
from wharf.limits.core.rule import RuleSet, StoreOutagePolicy
from wharf.limits.core.rulebook import hash_rules
from wharf.limits.decisions.alerts import AlertQueue, Webhook
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.overrides import InvalidGrantsFile
from wharf.limits.decisions.service import DecisionService
from wharf.limits.rules import InvalidFile, Severity, lint_rules, read_directory, read_rules
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.stores.drill import DrillStore
from wharf.limits.stores.guard import GuardedStore
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.limits.stores.port import Store, StoreUnavailable, UnsuitableStore
from wharf.limits.stores.quota_leases import QuotaLeaseStore
from wharf.limits.stores.redis import RedisRecords, RedisStore
from wharf.limits.stores.snapshot import InvalidSnapshot
from wharf.limits.toml.problems import FileProblem
from wharf.world import World

log = logging.getLogger(__name__)

COUNTERS_FILE: Final = "counters"


class LimiterStartError(Exception):
    """A limiter that cannot start. The text gives the reason and what to do."""


class Closable(Protocol):
    async def close(self) -> None: ...


class Openable(Closable, Protocol):
    async def open(self) -> None: ...


def load_settings(path: Path) -> LimiterSettings:
    """Return the settings of a file. Raises `LimiterStartError`."""
    try:
        return read_settings(_read_text(path), str(path), folder=path.parent)
    except InvalidFile as error:
        raise LimiterStartError(str(error)) from None


def _read_text(path: Path) -> str:
    """Return the text of a file. Raises `LimiterStartError`."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as problem:
        raise LimiterStartError(f"{path} is not UTF-8: {problem}") from None
    except OSError as problem:
        raise LimiterStartError(f"{path} cannot be read: {problem.strerror}") from None


class RateLimiter:
    """The limiter of one process. Gateway and middleware pass requests to `decision_service`."""

    def __init__(self, settings: LimiterSettings, world: World, *, directory: Directory | None = None) -> None:
        """`directory` provides the accounts if the settings name no directory file."""
        self.settings: Final = settings
        self._world = world
        try:
            rules = self._read_rules()
            accounts = directory if directory is not None else self._read_directory()
        except InvalidFile as error:
            raise LimiterStartError(str(error)) from None
        self.drill_store: DrillStore | None = None
        self.guarded_store: GuardedStore | None = None
        self.redis_store: RedisStore | None = None
        self.counter_server: CounterServer | None = None
        self.neighbour_store: NeighbourStore | None = None
        self._parts: list[Openable] = []
        self.store = self._make_store(rules)
        service = LimitEvaluator(rules, self.store, self._now_ms)
        self.decision_service: Final = DecisionService(
            service, world, settings, directory=accounts, folder=settings.data_folder
        )
        self.webhook = Webhook(settings.webhook_url) if settings.webhook_url else None
        self._connect_shared_state()
        if self.webhook is not None:
            self.decision_service.alerts, self.decision_service.send_alerts = AlertQueue(), self.webhook.send
        self.watcher: Final = FileWatcher(world, list(self._list_watched_files()))

    def _connect_shared_state(self) -> None:
        """Share overrides of operators, and records for them, with the other processes of the store."""
        self.decision_service.overrides.shared_overrides = (
            self.redis_store or self.counter_server or self.neighbour_store
        )
        if self.redis_store is None:
            return
        decisions = self.settings.decisions
        if decisions.is_kept:
            self.decision_service.shared_records.record_store = RedisRecords(
                self.redis_store.link,
                self.settings.store.redis.prefix,
                max_decisions=decisions.shared_most,
                retention_ms=decisions.kept_ms,
            )

    def _now_ms(self) -> int:
        return self._world.now_ns() // 1_000_000

    def _read_rules(self) -> RuleSet:
        """Return the rules of the rules file, or of the profile. Raises `InvalidFile`."""
        path = self.settings.rules_file
        if path is None:
            return read_profile(self.settings.profile)
        rules = read_rules(_read_text(path), str(path))
        _raise_lint_errors(rules)
        return rules

    def _read_directory(self) -> MemoryDirectory:
        path = self.settings.directory_file
        return MemoryDirectory() if path is None else read_directory(_read_text(path), str(path))

    def _make_store(self, rules: RuleSet) -> Store:
        """Return the store with its wrappers, as the settings select it."""
        store = self.settings.store
        if store.kind is StoreKind.MEMORY:
            path = self.settings.data_folder / COUNTERS_FILE if store.is_saved else None
            memory = MemoryStore(self._world, rules, path=path, has_change_log=store.socket is not None)
            self._parts = [memory]
            if store.socket is not None:
                self.counter_server = CounterServer(memory, store.socket)
                self._parts.append(self.counter_server)
            return memory
        if store.kind is StoreKind.NEIGHBOUR:
            assert store.socket is not None, "the settings of a neighbour have a socket"
            self.neighbour_store = NeighbourStore(self._world, store.socket)
            self.drill_store = DrillStore(self.neighbour_store)
            self.guarded_store = GuardedStore(self.drill_store, rules, store.guard, self._world)
            self._parts = [self.guarded_store]
            return self.guarded_store
        redis = self.redis_store = RedisStore(self._world, rules, store.redis)
        self.drill_store = DrillStore(redis)
        if store.leases is None:
            self.guarded_store = GuardedStore(self.drill_store, rules, store.guard, self._world)
        else:
            leases = QuotaLeaseStore(self.drill_store, self._world, store.leases)
            self._parts.append(leases)
            self.guarded_store = GuardedStore(leases, rules, store.guard, self._world)
        self._parts.append(self.guarded_store)
        return self.guarded_store

    def _list_watched_files(self) -> list[WatchedFile]:
        """Return the files that are reloaded when they change."""
        files = []
        if self.settings.rules_file is not None:
            files.append(WatchedFile(self.settings.rules_file, "rules", self._apply_rules))
        if self.settings.directory_file is not None:
            files.append(WatchedFile(self.settings.directory_file, "directory", self._apply_directory))
        return files

    async def _apply_rules(self, text: str) -> None:
        """Use the rules of a changed file. Raises `InvalidFile`."""
        path = str(self.settings.rules_file)
        _raise_lint_errors(read_rules(text, path))
        await self.decision_service.set_rules(text, path)

    async def _apply_directory(self, text: str) -> None:
        """Use the accounts of a changed file. Raises `InvalidFile`."""
        self.decision_service.caller_resolver.set_directory(read_directory(text, str(self.settings.directory_file)))

    async def open(self) -> None:
        """Open the store and start all background tasks. Raises `LimiterStartError`."""
        opened: list[Closable] = []
        try:
            self.settings.data_folder.mkdir(parents=True, exist_ok=True)
            if self.redis_store is not None:
                await self._open_redis(self.redis_store)
                opened.append(self.redis_store)
            if self.neighbour_store is not None:
                opened.append(self.neighbour_store)
                if not await self.neighbour_store.open() and self.guarded_store is not None:
                    log.info(
                        "counter server not reached: requests are decided by the on_store_loss of each rule socket=%s",
                        self.settings.store.socket,
                    )
                    self.guarded_store.start_unavailable()
            for part in self._parts:
                await part.open()
                opened.append(part)
            self.decision_service.open()
            self.watcher.open()
        except (StoreUnavailable, UnsuitableStore, InvalidSnapshot, InvalidGrantsFile, OSError) as problem:
            for opened_part in reversed(opened):
                await opened_part.close()
            raise LimiterStartError(f"cannot start the limiter: {problem}") from None
        rules = self.decision_service.evaluator.rules
        log.info("limiter started rules=%d rules_hash=%s", len(rules.rules), hash_rules(rules))

    async def _open_redis(self, redis_store: RedisStore) -> None:
        """Connect to Redis. The limiter can start without it unless a rule refuses requests during an outage."""
        closed_rules = [
            rule.name
            for rule in self.decision_service.evaluator.rules.rules
            if rule.on_store_loss is StoreOutagePolicy.CLOSED and not rule.shadow
        ]
        try:
            is_connected = await redis_store.open(can_be_away=not closed_rules)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f'{error}; rule {closed_rules[0]} has on_store_loss = "closed" and would refuse all requests'
            ) from None
        if not is_connected and self.guarded_store is not None:
            log.warning("limiter started without its store: requests are decided by the on_store_loss of each rule")
            self.guarded_store.start_unavailable()

    async def close(self) -> None:
        """Stop all tasks and close the store."""
        await self.watcher.close()
        await self.decision_service.close()
        for part in reversed(self._parts):
            await part.close()
        for remote_store in (self.redis_store, self.neighbour_store):
            if remote_store is not None:
                await remote_store.close()


def _raise_lint_errors(rules: RuleSet) -> None:
    """Reject rules with lint errors like rules that cannot be read."""
    errors = [finding for finding in lint_rules(rules) if finding.severity is Severity.ERROR]
    if errors:
        raise InvalidFile(
            [FileProblem(f.file, SourceLocation(max(1, f.line), 1), f"rule {f.rule}", f.what) for f in errors]
        )
