"""A limiter built from its settings: store, rules, accounts, decision service and watched files, opened and closed
together.

Invalid settings are rejected before anything listens. The message names the file and the problem.
"""

import contextlib
import logging
from pathlib import Path
from typing import Final

import msgspec

from wharf.languages.source_locations import SourceLocation
from wharf.limits.config.credential_settings import CredentialMode
from wharf.limits.config.file_watcher import FileWatcher, WatchedFile
from wharf.limits.config.settings import LimiterSettings, StoreKind
from wharf.limits.config.settings_file import list_changed_keys, read_settings
from wharf.limits.core.callers.directory import Directory, MemoryDirectory
from wharf.limits.core.counting.compiled import USUAL_CALLS
from wharf.limits.core.placed_routes import find_misplaced_pattern
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.rulebook import hash_rules
from wharf.limits.credentials import UnlistedCredentials
from wharf.limits.credentials.keyed_hash import UnusableKey, load_key
from wharf.limits.decisions.alerts import AlertQueue, Webhook
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.overrides import InvalidOverrideFile
from wharf.limits.decisions.service import DecisionService
from wharf.limits.rules import InvalidFile, Severity, lint_rules, read_directory, read_rules
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.stores.build import build_store
from wharf.limits.stores.port import StoreUnavailable, UnsuitableStore
from wharf.limits.stores.redis import RedisRecords, RedisStore
from wharf.limits.stores.redis.records import RedisCredentials
from wharf.limits.stores.snapshot import InvalidSnapshot
from wharf.limits.toml.problems import FileProblem
from wharf.sinks.build import build_stream
from wharf.sinks.spool import SpoolError
from wharf.world import World

log = logging.getLogger(__name__)

SPOOL_FOLDER: Final = "sinks"
"""The folder for records that wait for their receivers, in the data folder."""
_START_PROBLEMS: Final = (StoreUnavailable, UnsuitableStore, InvalidSnapshot, InvalidOverrideFile, OSError)
"""What can be wrong outside of this program when a limiter starts."""


class ChangedSettings(msgspec.Struct, frozen=True):
    """How the settings file differs from the settings that a limiter has read."""

    keys: tuple[str, ...]
    """The keys with another value."""
    problem: str
    """Why a limiter could not start with the changed file; empty if it could."""


class LimiterStartError(Exception):
    """A limiter that cannot start. The text gives the reason and what to do."""


def load_settings(path: Path) -> LimiterSettings:
    """Return the limiter settings in a file. Raises `LimiterStartError` if it cannot be read or is invalid."""
    text = _read_text(path)
    try:
        settings = read_settings(text, str(path), folder=path.parent)
    except InvalidFile as error:
        raise LimiterStartError(str(error)) from None
    return msgspec.structs.replace(settings, file=path, file_text=text)


def _read_text(path: Path) -> str:
    """Return the text of a file. Raises `LimiterStartError` if it cannot be read or is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as problem:
        raise LimiterStartError(f"{path} is not UTF-8: {problem}") from None
    except OSError as problem:
        raise LimiterStartError(f"{path} cannot be read: {problem.strerror}") from None


class RateLimiter:
    """The limiter of one process, built from its settings. Gateway and middleware pass requests to `decision_service`."""

    def __init__(self, settings: LimiterSettings, world: World, *, directory: Directory | None = None) -> None:
        """Read rules and accounts. `directory` provides the accounts instead of the directory file.

        Raises `LimiterStartError` if a file cannot be read or is invalid.
        """
        self.settings: Final = settings
        self._world = world
        try:
            rules = self._read_rules()
            accounts = directory if directory is not None else self._read_directory()
        except InvalidFile as error:
            raise LimiterStartError(str(error)) from None
        if problem := find_misplaced_setting(settings, rules):
            raise LimiterStartError(f"settings: {problem}")
        self.stores: Final = build_store(settings.store, rules, world, data_folder=settings.data_folder)
        evaluator = LimitEvaluator(rules, self.stores.store, self._now_ms)
        self.decision_service: Final = DecisionService(
            evaluator,
            world,
            settings,
            directory=accounts,
            folder=settings.data_folder,
            unlisted=_build_unlisted(settings, world),
        )
        self._connect_shared_state()
        service = self.decision_service
        try:
            service.records.stream = build_stream(
                settings.sinks, world, folder=settings.data_folder / SPOOL_FOLDER, source=service.records.source
            )
        except SpoolError as error:
            raise LimiterStartError(f"cannot start the limiter: {error}") from None
        self.webhook = Webhook(settings.webhook_url) if settings.webhook_url else None
        if self.webhook is not None:
            self.decision_service.alerts, self.decision_service.send_alerts = AlertQueue(), self.webhook.send
        self.watcher: Final = FileWatcher(world, list(self._list_watched_files()))

    def _connect_shared_state(self) -> None:
        """Connect the decision service to the parts of the store that processes share.

        These are the overrides of operators and, on Redis, the records of decisions and activity.
        """
        self.decision_service.overrides.shared_overrides = self.stores.overrides
        remote, decisions = self.stores.remote, self.settings.decisions
        unlisted = self.decision_service.unlisted
        if unlisted is not None:
            self.decision_service.overrides.on_revocation = unlisted.apply_revocation
            if remote is not None and isinstance(remote.store, RedisStore):
                unlisted.shared = RedisCredentials(remote.store.link, self.settings.store.redis.prefix)
        if remote is not None and isinstance(remote.store, RedisStore) and decisions.is_kept:
            self.decision_service.shared_records.record_store = RedisRecords(
                remote.store.link,
                self.settings.store.redis.prefix,
                max_decisions=decisions.shared_most,
                retention_ms=decisions.kept_ms,
            )

    def _now_ms(self) -> int:
        return self._world.now_ns() // 1_000_000

    def _read_rules(self) -> RuleSet:
        """Return the rules of the rules file, or of the built-in profile. Raises `InvalidFile` or `LimiterStartError`."""
        path = self.settings.rules_file
        if path is None:
            return read_profile(self.settings.profile)
        rules = read_rules(_read_text(path), str(path))
        _raise_lint_errors(rules)
        return rules

    def _read_directory(self) -> MemoryDirectory:
        """Return the accounts of the directory file, or an empty directory without one. Raises `InvalidFile`."""
        path = self.settings.directory_file
        return MemoryDirectory() if path is None else read_directory(_read_text(path), str(path))

    def _list_watched_files(self) -> list[WatchedFile]:
        """Return the files that are reloaded when they change."""
        files = []
        if self.settings.rules_file is not None:
            files.append(WatchedFile(self.settings.rules_file, "rules", self._apply_rules))
        if self.settings.directory_file is not None:
            files.append(WatchedFile(self.settings.directory_file, "directory", self._apply_directory))
        return files

    async def _apply_rules(self, text: str) -> None:
        """Replace the rules by those in the text of the changed rules file. Raises `InvalidFile` if they are rejected."""
        path = str(self.settings.rules_file)
        rules = read_rules(text, path)
        _raise_lint_errors(rules)
        if problem := find_misplaced_setting(self.settings, rules):
            raise InvalidFile([FileProblem(path, SourceLocation(1, 1), "base_path", problem)])
        await self.decision_service.set_rules(text, path)

    async def _apply_directory(self, text: str) -> None:
        """Replace the accounts by those in the text of the changed directory file. Raises `InvalidFile` if it is rejected."""
        self.decision_service.caller_resolver.set_directory(read_directory(text, str(self.settings.directory_file)))

    def find_changed_settings(self) -> ChangedSettings:
        """Return what has changed in the settings file since the settings were read. Only a restart applies it."""
        file, text = self.settings.file, self.settings.file_text
        if file is None:
            return ChangedSettings((), "")
        try:
            changed_text = _read_text(file)
            if changed_text == text:
                return ChangedSettings((), "")
            read_settings(changed_text, str(file), folder=file.parent)
            return ChangedSettings(tuple(list_changed_keys(text, changed_text)), "")
        except (InvalidFile, LimiterStartError) as error:
            return ChangedSettings((), str(error))

    async def open(self) -> None:
        """Open the store and start all background tasks. Raises `LimiterStartError`."""
        unlisted = self.decision_service.unlisted
        if unlisted is not None and unlisted.lacks_service:
            path = "" if self.settings.credentials.resolver is None else self.settings.credentials.resolver.url
            raise LimiterStartError(
                f'the limiter cannot ask who owns a credential: `url` in `[resolver]` is the path "{path}", and it is not known of '
                f'which service. Write the whole URL, such as url = "http://127.0.0.1:3000{path}", or set `upstream` in '
                "`[gateway]`"
            )
        try:
            self.settings.data_folder.mkdir(parents=True, exist_ok=True)
            async with contextlib.AsyncExitStack() as exits:
                await self.stores.open()
                exits.push_async_callback(self.stores.close)
                self.decision_service.open()
                self.decision_service.records.stream.open()
                self.watcher.open()
                exits.pop_all()
        except BaseException as problem:
            self.decision_service.records.stream.close_spools()
            if not isinstance(problem, _START_PROBLEMS):
                raise
            raise LimiterStartError(f"cannot start the limiter: {problem}") from None
        rules = self.decision_service.evaluator.rules
        log.info(
            "limiter started rules=%d rules_hash=%s has_compiled_counters=%s",
            len(rules.rules) + len(rules.descriptors),
            hash_rules(rules),
            USUAL_CALLS is not None,
        )

    async def close(self) -> None:
        """Stop all tasks and close the store."""
        await self.watcher.close()
        await self.decision_service.close()
        await self.stores.close()


ACCEPTED_FILE: Final = "accepted-credentials.json"


def _build_unlisted(settings: LimiterSettings, world: World) -> UnlistedCredentials | None:
    """Return the state of unlisted credentials; `None` if they are rejected. Raises `LimiterStartError`.

    Only a limiter with counters in memory saves it: others may share the data folder.
    """
    if settings.credentials.mode is CredentialMode.LISTED:
        return None
    try:
        key = load_key(settings.credentials.key_file, settings.data_folder, world)
    except UnusableKey as error:
        raise LimiterStartError(f"the secret key for credentials cannot be used: {error}") from None
    is_saved = settings.store.kind is StoreKind.MEMORY and settings.store.is_saved
    ca_file = settings.gateway.upstream_ca_file
    return UnlistedCredentials(
        settings.credentials,
        world,
        key,
        upstream=settings.gateway.upstream,
        upstream_ca_file=str(ca_file) if ca_file is not None else "",
        file=settings.data_folder / ACCEPTED_FILE if is_saved else None,
    )


def find_misplaced_setting(settings: LimiterSettings, rules: RuleSet) -> str:
    """Return which pattern of the settings these rules make useless, and why; empty if there is none."""
    opaque = settings.credentials.opaque
    for key, patterns in (
        ("accepted_on", opaque.accepted_on),
        ("sessions_accepted_on", opaque.sessions_accepted_on),
    ):
        if problem := find_misplaced_pattern(patterns, rules):
            return f"{key} in [opaque]: {problem}"
    return ""


def _raise_lint_errors(rules: RuleSet) -> None:
    """Raise `InvalidFile` if `lint` finds errors in the rules; warnings are accepted."""
    errors = [finding for finding in lint_rules(rules) if finding.severity is Severity.ERROR]
    if errors:
        raise InvalidFile(
            [FileProblem(f.file, SourceLocation(max(1, f.line), 1), f"rule {f.rule}", f.what) for f in errors]
        )
