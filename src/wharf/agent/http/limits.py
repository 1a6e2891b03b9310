"""Limits around the API, where the configuration switches them on: profile `cluster`, accounts out of the replica's tokens.

Several processes of a machine share the counters of the first, and several machines those on Redis: a limit that each
counts alone is none.
"""

from pathlib import Path
from typing import Final

import msgspec

from wharf.agent.errors import CommandError, StartupError
from wharf.agent.process_context import ProcessContext
from wharf.cluster.api.rate_limiting import App, Receive, RequestClassifier, Scope, Send
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ACL_TOKENS, TOKENS_BY_SECRET
from wharf.config.settings import AgentSettings
from wharf.limits.admin.server import AdminServer
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config import LimiterSettings
from wharf.limits.config.settings import StoreKind, StoreSettings
from wharf.limits.core.callers.caller import CallerClass, CredentialKind
from wharf.limits.core.callers.directory import DirectoryToken, MemoryDirectory, User
from wharf.limits.core.rule import RuleSet
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter, load_settings

LIMITS_PROFILE: Final = "cluster"
COUNTING_PROCESS: Final = "api-1"
COUNTERS_SOCKET: Final = "counters.sock"
LIMITS_FOLDER: Final = "limits"
REQUEST_ID_HEADER: Final = "x-cluster-limits-id"


class ReplicaTokens(MemoryDirectory, frozen=True):
    """The tokens of this cluster, asked of the replica each time. There is nobody else: no app, no organization."""

    server: Server

    def find_token(self, sha256: str) -> DirectoryToken | None:
        found = self.server.replica.list_by_index(TOKENS_BY_SECRET, sha256)
        if not found:
            return None
        token = found[0]
        expires = token.expiration_time
        return DirectoryToken(
            sha256=sha256,
            kind=CredentialKind.PERSONAL_TOKEN,
            user=token.accessor_id,
            expires_ms=None if expires is None else int(expires.timestamp() * 1_000),
        )

    def find_user(self, login: str) -> User | None:
        """Who a token belongs to nobody knows: each is counted by itself, under its accessor id."""
        return User(login=login)

    def is_known_token(self, sha256: str) -> bool:
        token = self.find_token(sha256)
        now_ms = self.server.world.now_ns() // 1_000_000
        return token is not None and (token.expires_ms is None or now_ms < token.expires_ms)


class ApiLimits:
    """Of one process that answers HTTP. `app` is what the port serves."""

    def __init__(self, life: ProcessContext, server: Server, app: App) -> None:
        """Raises StartupError, with what to do."""
        order, world = life.order, life.world
        self._server = server
        self._tokens = ReplicaTokens(server=server)
        self._stands_for = (-1, -1)
        try:
            settings = build_limiter_settings(order.settings, Path(order.data_folder), order.name)
            self._limits = RateLimiter(settings, world, directory=self._tokens)
        except (LimiterStartError, CommandError) as refused:
            raise StartupError(str(refused)) from None
        if not has_machine_rules(self._limits.decision_service.evaluator.rules):
            raise StartupError(
                f'{settings.rules_file}: these are rules for another service: begin the file with profile = "{LIMITS_PROFILE}"'
            )
        self._admin = AdminServer(self._limits, world)
        known = self._tokens if order.settings.acl.enabled else None
        inner = LimitsMiddleware(app, self._limits.decision_service)
        self.app: App = RequestClassifier(
            self._fresh(inner), server, known, is_nomad_compatible=order.settings.compat.nomad
        )

    def _fresh(self, inner: App) -> App:
        """What the limiter remembers of tokens goes when any of them changed, so that a deleted one is nobody's at once."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            replica = self._server.replica
            stands_for = (replica.epoch, replica.get_last_change(ACL_TOKENS))
            if stands_for != self._stands_for:
                self._stands_for = stands_for
                self._limits.decision_service.caller_resolver.set_directory(self._tokens)
            await inner(scope, receive, send)

        return serve

    async def open(self) -> None:
        try:
            await self._limits.open()
            await self._admin.open()
        except LimiterStartError as refused:
            raise StartupError(str(refused)) from None
        except OSError as problem:
            raise StartupError(f"operators' commands cannot be listened for: {problem}") from None

    def reload(self, _settings: AgentSettings) -> None:
        """Rules are read again at once, not only when their file is seen to have changed."""
        self._limits.decision_service.start_task(self._limits.watcher.reload_all())

    async def close(self) -> None:
        await self._admin.close()
        await self._limits.close()


def has_machine_rules(rules: RuleSet) -> bool:
    return any(CallerClass.MACHINE in rule.ceilings for rule in rules.rules)


def build_limiter_settings(settings: AgentSettings, data_folder: Path, process: str) -> LimiterSettings:
    """What the limiter of one process is told. Raises LimitsRefused for a file that cannot be used, and Refused for a
    store that cannot be shared as it would have to be."""
    file = settings.limits.file
    if file:
        told = load_settings(Path(file))
        for name, is_given in (
            ("directory", told.directory_file is not None),
            ("gateway.upstream", told.gateway.upstream is not None),
        ):
            if is_given:
                raise CommandError(f"{file}: {name} is for a gateway; here requests and tokens are those of the API")
    else:
        told = LimiterSettings()
    store = told.store
    if store.kind is not StoreKind.REDIS and settings.state.engine is EngineKind.ETCD:
        raise CommandError(
            "limits.enabled: servers on several machines would each count alone; name a file in limits.file with "
            '[store] kind = "redis" and addresses = "host:6379" (docs/limits.md), so that they share'
        )
    if store.kind is StoreKind.MEMORY and settings.api.processes > 1:
        store = share_on_machine(store, data_folder / LIMITS_FOLDER / COUNTERS_SOCKET, settings.api.processes, process)
    return msgspec.structs.replace(
        told,
        store=store,
        profile=LIMITS_PROFILE,
        data_folder=data_folder / LIMITS_FOLDER / process,
        admin_socket=data_folder / f"{LIMITS_FOLDER}-{process}.sock",
        request_id_header=REQUEST_ID_HEADER
        if told.request_id_header == LimiterSettings().request_id_header
        else told.request_id_header,
    )


def share_on_machine(store: StoreSettings, socket: Path, processes: int, process: str) -> StoreSettings:
    """The first process counts, and the others ask it; while it is away each has its share of a limit."""
    if process == COUNTING_PROCESS:
        return msgspec.structs.replace(store, socket=socket)
    guard = msgspec.structs.replace(store.guard, fallback_processes=processes)
    return msgspec.structs.replace(store, kind=StoreKind.NEIGHBOUR, socket=socket, guard=guard)
