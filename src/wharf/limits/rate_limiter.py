"""A limiter built from its settings: store, rules, accounts, desk, watched files; opened and closed as one.

What cannot be used is refused before anything listens, with a sentence that says what and where.
"""

import logging
from pathlib import Path
from typing import Final, Protocol

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
from wharf.limits.toml.problems import FileProblem, SourceLocation
from wharf.world import World

log = logging.getLogger(__name__)

COUNTERS_FILE: Final = "counters"


class LimiterStartError(Exception):
    """A limiter that cannot start. Its text says why, and what to do."""


class Closable(Protocol):
    async def close(self) -> None: ...


class Openable(Closable, Protocol):
    async def open(self) -> None: ...


def load_settings(path: Path) -> LimiterSettings:
    """Read the file that sets a limiter up. Raises LimiterStartError."""
    try:
        return read_settings(_text_of(path), str(path), folder=path.parent)
    except InvalidFile as refused:
        raise LimiterStartError(str(refused)) from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as problem:
        raise LimiterStartError(f"{path} is not UTF-8: {problem}") from None
    except OSError as problem:
        raise LimiterStartError(f"{path} cannot be read: {problem.strerror}") from None


class RateLimiter:
    """Everything of one process. `desk` is what requests are brought to."""

    def __init__(self, settings: LimiterSettings, world: World, *, directory: Directory | None = None) -> None:
        """`directory`: who has which credential, where no file says so."""
        self.settings: Final = settings
        self._world = world
        try:
            rules = self._read_rules()
            known = directory if directory is not None else self._read_directory()
        except InvalidFile as refused:
            raise LimiterStartError(str(refused)) from None
        self.drill_store: DrillStore | None = None
        self.guarded_store: GuardedStore | None = None
        self.redis_store: RedisStore | None = None
        self.counter_server: CounterServer | None = None
        self.neighbour_store: NeighbourStore | None = None
        self._opened: list[Openable] = []
        self.store = self._make_store(rules)
        service = LimitEvaluator(rules, self.store, self._now_ms)
        self.decision_service: Final = DecisionService(
            service, world, settings, directory=known, folder=settings.data_folder
        )
        self.webhook = Webhook(settings.webhook_url) if settings.webhook_url else None
        self._share()
        if self.webhook is not None:
            self.decision_service.alerts, self.decision_service.send_alerts = AlertQueue(), self.webhook.send
        self.watcher: Final = FileWatcher(world, list(self._watched()))

    def _share(self) -> None:
        """What operators say, and what they ask for, goes over the store where others count there too."""
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
        path = self.settings.rules_file
        if path is None:
            return read_profile(self.settings.profile)
        rules = read_rules(_text_of(path), str(path))
        _refuse_errors(rules)
        return rules

    def _read_directory(self) -> MemoryDirectory:
        path = self.settings.directory_file
        return MemoryDirectory() if path is None else read_directory(_text_of(path), str(path))

    def _make_store(self, rules: RuleSet) -> Store:
        store = self.settings.store
        if store.kind is StoreKind.MEMORY:
            path = self.settings.data_folder / COUNTERS_FILE if store.is_saved else None
            memory = MemoryStore(self._world, rules, path=path, has_change_log=store.socket is not None)
            self._opened = [memory]
            if store.socket is not None:
                self.counter_server = CounterServer(memory, store.socket)
                self._opened.append(self.counter_server)
            return memory
        if store.kind is StoreKind.NEIGHBOUR:
            assert store.socket is not None, "whoever made the settings gave it"
            self.neighbour_store = NeighbourStore(self._world, store.socket)
            self.drill_store = DrillStore(self.neighbour_store)
            self.guarded_store = GuardedStore(self.drill_store, rules, store.guard, self._world)
            self._opened = [self.guarded_store]
            return self.guarded_store
        redis = self.redis_store = RedisStore(self._world, rules, store.redis)
        self.drill_store = DrillStore(redis)
        if store.leases is None:
            self.guarded_store = GuardedStore(self.drill_store, rules, store.guard, self._world)
        else:
            leases = QuotaLeaseStore(self.drill_store, self._world, store.leases)
            self._opened.append(leases)
            self.guarded_store = GuardedStore(leases, rules, store.guard, self._world)
        self._opened.append(self.guarded_store)
        return self.guarded_store

    def _watched(self) -> list[WatchedFile]:
        files = []
        if self.settings.rules_file is not None:
            files.append(WatchedFile(self.settings.rules_file, "rules", self._take_rules))
        if self.settings.directory_file is not None:
            files.append(WatchedFile(self.settings.directory_file, "directory", self._take_directory))
        return files

    async def _take_rules(self, text: str) -> None:
        path = str(self.settings.rules_file)
        _refuse_errors(read_rules(text, path))
        await self.decision_service.set_rules(text, path)

    async def _take_directory(self, text: str) -> None:
        self.decision_service.caller_resolver.set_directory(read_directory(text, str(self.settings.directory_file)))

    async def open(self) -> None:
        """Open the store and begin to work. Raises LimiterStartError."""
        opened: list[Closable] = []
        try:
            self.settings.data_folder.mkdir(parents=True, exist_ok=True)
            if self.redis_store is not None:
                await self._open_far(self.redis_store)
                opened.append(self.redis_store)
            if self.neighbour_store is not None:
                opened.append(self.neighbour_store)
                if not await self.neighbour_store.open() and self.guarded_store is not None:
                    log.info(
                        "nobody counts at %s yet: each rule's on_store_loss decides until then",
                        self.settings.store.socket,
                    )
                    self.guarded_store.start_unavailable()
            for part in self._opened:
                await part.open()
                opened.append(part)
            self.decision_service.open()
            self.watcher.open()
        except (StoreUnavailable, UnsuitableStore, InvalidSnapshot, InvalidGrantsFile, OSError) as problem:
            for done in reversed(opened):
                await done.close()
            raise LimiterStartError(f"the limiter cannot start: {problem}") from None
        rules = self.decision_service.evaluator.rules
        log.info("limits are in force: %d rules, %s", len(rules.rules), hash_rules(rules))

    async def _open_far(self, far: RedisStore) -> None:
        """Where no rule is closed while the store is away, a start need not wait for it."""
        closed = [
            rule.name
            for rule in self.decision_service.evaluator.rules.rules
            if rule.on_store_loss is StoreOutagePolicy.CLOSED and not rule.shadow
        ]
        try:
            is_there = await far.open(can_be_away=not closed)
        except StoreUnavailable as lost:
            raise StoreUnavailable(
                f'{lost}, and {closed[0]} has on_store_loss = "closed": it would refuse all'
            ) from None
        if not is_there and self.guarded_store is not None:
            log.warning("limits begin without their store: each rule's on_store_loss decides until it is there")
            self.guarded_store.start_unavailable()

    async def close(self) -> None:
        await self.watcher.close()
        await self.decision_service.close()
        for part in reversed(self._opened):
            await part.close()
        for elsewhere in (self.redis_store, self.neighbour_store):
            if elsewhere is not None:
                await elsewhere.close()


def _refuse_errors(rules: RuleSet) -> None:
    """Rules that can be read and can never work are refused like those that cannot be read."""
    errors = [finding for finding in lint_rules(rules) if finding.severity is Severity.ERROR]
    if errors:
        raise InvalidFile(
            [FileProblem(f.file, SourceLocation(max(1, f.line), 1), f"rule {f.rule}", f.what) for f in errors]
        )
