"""A limiter built from its settings: store, rules, accounts, desk, watched files; opened and closed as one.

What cannot be used is refused before anything listens, with a sentence that says what and where.
"""

import logging
from pathlib import Path
from typing import Final, Protocol

from wharf.limits.configuration.reader import read_settings
from wharf.limits.configuration.settings import Settings, StoreKind
from wharf.limits.core.directory import Directory, Register
from wharf.limits.core.rule import RuleSet, StoreLoss
from wharf.limits.core.rulebook import hash_rules
from wharf.limits.desk.alerts import Alerts
from wharf.limits.desk.desk import Desk
from wharf.limits.desk.grants import GrantsRefused
from wharf.limits.rules import FileRefused, Severity, lint, read_directory, read_rules
from wharf.limits.rules.problems import Place, Problem
from wharf.limits.rules.reader import read_profile
from wharf.limits.service import LimitService
from wharf.limits.stores.drill import DrillStore
from wharf.limits.stores.guard import GuardedStore
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CountingPlace, NeighbourStore
from wharf.limits.stores.port import Store, StoreLost, StoreRefused
from wharf.limits.stores.quota import QuotaLeases
from wharf.limits.stores.redis import RedisRecords, RedisStore
from wharf.limits.stores.saved import SavedRefused
from wharf.limits.watching import WatchedFile, Watcher
from wharf.limits.webhook import Webhook
from wharf.world import World

log = logging.getLogger(__name__)

COUNTERS_FILE: Final = "counters"


class LimitsRefused(Exception):
    """A limiter that cannot start. Its text says why, and what to do."""


class Closed(Protocol):
    async def close(self) -> None: ...


class Opened(Closed, Protocol):
    async def open(self) -> None: ...


def load_settings(path: Path) -> Settings:
    """Read the file that sets a limiter up. Raises LimitsRefused."""
    try:
        return read_settings(_text_of(path), str(path), folder=path.parent)
    except FileRefused as refused:
        raise LimitsRefused(str(refused)) from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as problem:
        raise LimitsRefused(f"{path} is not UTF-8: {problem}") from None
    except OSError as problem:
        raise LimitsRefused(f"{path} cannot be read: {problem.strerror}") from None


class Limits:
    """Everything of one process. `desk` is what requests are brought to."""

    def __init__(self, settings: Settings, world: World, *, directory: Directory | None = None) -> None:
        """`directory`: who has which credential, where no file says so."""
        self.settings: Final = settings
        self._world = world
        try:
            rules = self._read_rules()
            known = directory if directory is not None else self._read_directory()
        except FileRefused as refused:
            raise LimitsRefused(str(refused)) from None
        self.drill: DrillStore | None = None
        self.guard: GuardedStore | None = None
        self.far: RedisStore | None = None
        self.place: CountingPlace | None = None
        self.neighbour: NeighbourStore | None = None
        self._opened: list[Opened] = []
        self.store = self._make_store(rules)
        service = LimitService(rules, self.store, self._now_ms)
        self.desk: Final = Desk(service, world, settings, directory=known, folder=settings.data_folder)
        self.webhook = Webhook(settings.webhook_url) if settings.webhook_url else None
        self._share()
        if self.webhook is not None:
            self.desk.alerts, self.desk.send_alerts = Alerts(), self.webhook.send
        self.watcher: Final = Watcher(world, list(self._watched()))

    def _share(self) -> None:
        """What operators say, and what they ask for, goes over the store where others count there too."""
        self.desk.orders.board = self.far or self.place or self.neighbour
        if self.far is None:
            return
        decisions = self.settings.decisions
        if decisions.is_kept:
            self.desk.sharing.records = RedisRecords(
                self.far.link,
                self.settings.store.redis.prefix,
                decisions_most=decisions.shared_most,
                kept_ms=decisions.kept_ms,
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

    def _read_directory(self) -> Register:
        path = self.settings.directory_file
        return Register() if path is None else read_directory(_text_of(path), str(path))

    def _make_store(self, rules: RuleSet) -> Store:
        store = self.settings.store
        if store.kind is StoreKind.MEMORY:
            path = self.settings.data_folder / COUNTERS_FILE if store.is_saved else None
            memory = MemoryStore(self._world, rules, path=path, keeps_changes=store.socket is not None)
            self._opened = [memory]
            if store.socket is not None:
                self.place = CountingPlace(memory, store.socket)
                self._opened.append(self.place)
            return memory
        if store.kind is StoreKind.NEIGHBOUR:
            assert store.socket is not None, "whoever made the settings gave it"
            self.neighbour = NeighbourStore(self._world, store.socket)
            self.drill = DrillStore(self.neighbour)
            self.guard = GuardedStore(self.drill, rules, store.guard, self._world)
            self._opened = [self.guard]
            return self.guard
        redis = self.far = RedisStore(self._world, rules, store.redis)
        self.drill = DrillStore(redis)
        if store.leases is None:
            self.guard = GuardedStore(self.drill, rules, store.guard, self._world)
        else:
            leases = QuotaLeases(self.drill, self._world, store.leases)
            self._opened.append(leases)
            self.guard = GuardedStore(leases, rules, store.guard, self._world)
        self._opened.append(self.guard)
        return self.guard

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
        await self.desk.use_rules(text, path)

    async def _take_directory(self, text: str) -> None:
        self.desk.callers.use(read_directory(text, str(self.settings.directory_file)))

    async def open(self) -> None:
        """Open the store and begin to work. Raises LimitsRefused."""
        opened: list[Closed] = []
        try:
            self.settings.data_folder.mkdir(parents=True, exist_ok=True)
            if self.far is not None:
                await self._open_far(self.far)
                opened.append(self.far)
            if self.neighbour is not None:
                opened.append(self.neighbour)
                if not await self.neighbour.open() and self.guard is not None:
                    log.info(
                        "nobody counts at %s yet: each rule's on_store_loss decides until then",
                        self.settings.store.socket,
                    )
                    self.guard.begin_away()
            for part in self._opened:
                await part.open()
                opened.append(part)
            self.desk.open()
            self.watcher.open()
        except (StoreLost, StoreRefused, SavedRefused, GrantsRefused, OSError) as problem:
            for done in reversed(opened):
                await done.close()
            raise LimitsRefused(f"the limiter cannot start: {problem}") from None
        rules = self.desk.service.rules
        log.info("limits are in force: %d rules, %s", len(rules.rules), hash_rules(rules))

    async def _open_far(self, far: RedisStore) -> None:
        """Where no rule is closed while the store is away, a start need not wait for it."""
        closed = [
            rule.name
            for rule in self.desk.service.rules.rules
            if rule.on_store_loss is StoreLoss.CLOSED and not rule.shadow
        ]
        try:
            is_there = await far.open(may_be_away=not closed)
        except StoreLost as lost:
            raise StoreLost(f'{lost}, and {closed[0]} has on_store_loss = "closed": it would refuse all') from None
        if not is_there and self.guard is not None:
            log.warning("limits begin without their store: each rule's on_store_loss decides until it is there")
            self.guard.begin_away()

    async def close(self) -> None:
        await self.watcher.close()
        await self.desk.close()
        for part in reversed(self._opened):
            await part.close()
        for elsewhere in (self.far, self.neighbour):
            if elsewhere is not None:
                await elsewhere.close()


def _refuse_errors(rules: RuleSet) -> None:
    """Rules that can be read and can never work are refused like those that cannot be read."""
    errors = [finding for finding in lint(rules) if finding.severity is Severity.ERROR]
    if errors:
        raise FileRefused([Problem(f.file, Place(max(1, f.line), 1), f"rule {f.rule}", f.what) for f in errors])
