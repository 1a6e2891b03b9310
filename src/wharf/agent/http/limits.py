"""Rate limits of the API, if the configuration enables them. Clients are identified by the tokens in the replica.

The api processes of a machine share the counters of the first process. Several machines share counters on Redis.
"""

from pathlib import Path
from typing import Final

import msgspec

from wharf.agent.errors import CommandError, StartupError
from wharf.agent.http.limiter_adapter import LimiterAdapter
from wharf.agent.process_context import ProcessContext
from wharf.cluster.access.authentication import find_token_by_secret
from wharf.cluster.api.asgi import App, Receive, Scope, Send
from wharf.cluster.api.rate_limiting import RequestClassifier
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ACL_TOKENS
from wharf.config.settings import AgentSettings
from wharf.limits.admin.server import AdminServer
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config import LimiterSettings
from wharf.limits.config.credential_settings import CredentialMode
from wharf.limits.config.settings import StoreKind, StoreSettings
from wharf.limits.core.callers.caller import CallerClass, CredentialKind
from wharf.limits.core.callers.directory import DirectoryToken, MemoryDirectory, User
from wharf.limits.core.rule import RuleSet
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter, load_settings

LIMITS_PROFILE: Final = "cluster"
"""The profile that rule files for the API must name."""
COUNTING_PROCESS: Final = "api-1"
"""The process that holds the shared counters of a machine."""
COUNTERS_SOCKET: Final = "counters.sock"
LIMITS_FOLDER: Final = "limits"
REQUEST_ID_HEADER: Final = "x-cluster-limits-id"


class ReplicaTokens(MemoryDirectory, frozen=True):
    """A directory of the tokens of this cluster, read from the replica at each lookup. It has no apps or organizations."""

    server: Server

    def find_token(self, sha256: str) -> DirectoryToken | None:
        """Return the token with this hash of its secret, or `None`."""
        token = find_token_by_secret(self.server.replica, sha256)
        if token is None:
            return None
        expires = token.expiration_time
        return DirectoryToken(
            sha256=sha256,
            kind=CredentialKind.PERSONAL_TOKEN,
            user=token.accessor_id,
            expires_ms=None if expires is None else int(expires.timestamp() * 1_000),
        )

    def find_user(self, login: str) -> User | None:
        """Build a user for a token of the cluster; `login` is the accessor id of the token.

        Tokens of a cluster have no owner, so the limiter treats each token as a user of its own. Nothing is looked up.
        """
        return User(login=login)

    def is_known_token(self, sha256: str) -> bool:
        """Return whether a valid token with this hash exists."""
        token = self.find_token(sha256)
        now_ms = self.server.world.now_ns() // 1_000_000
        return token is not None and (token.expires_ms is None or now_ms < token.expires_ms)


class ApiLimits:
    """The rate limiter of one api process. `app` is the application that the HTTP port serves."""

    def __init__(self, context: ProcessContext, server: Server, app: App) -> None:
        """Raises `StartupError`, which says what to do."""
        order, world = context.order, context.world
        self._server = server
        self._tokens = ReplicaTokens(server=server)
        self._directory_version = (-1, -1)
        try:
            settings = build_limiter_settings(order.settings, Path(order.data_folder), order.name)
            self._limits = RateLimiter(settings, world, directory=self._tokens)
        except (LimiterStartError, CommandError) as error:
            raise StartupError(str(error)) from None
        if not has_machine_rules(self._limits.decision_service.evaluator.rules):
            raise StartupError(
                f'{settings.rules_file}: these are rules for another service: begin the file with profile = "{LIMITS_PROFILE}"'
            )
        self._admin = AdminServer(self._limits, world)
        server.limiter = LimiterAdapter(self._limits, self._admin.queries, self._admin.actions)
        known_tokens = self._tokens if order.settings.acl.enabled else None
        inner = LimitsMiddleware(app, self._limits.decision_service, routes_raw_paths=True)
        self.app: App = RequestClassifier(
            self._with_fresh_tokens(inner), server, known_tokens, is_nomad_compatible=order.settings.compat.nomad
        )

    def _with_fresh_tokens(self, inner: App) -> App:
        """Return an application that clears the limiter's cache of tokens before a request if any token has changed.

        So a deleted token is unknown to the limiter immediately.
        """

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            replica = self._server.replica
            version = (replica.epoch, replica.get_last_change(ACL_TOKENS))
            if version != self._directory_version:
                self._directory_version = version
                self._limits.decision_service.caller_resolver.set_directory(self._tokens)
            await inner(scope, receive, send)

        return serve

    async def open(self) -> None:
        """Open the limiter and its command socket. Raises `StartupError`."""
        try:
            await self._limits.open()
            await self._admin.open()
        except LimiterStartError as error:
            raise StartupError(str(error)) from None
        except OSError as problem:
            raise StartupError(f"the socket for operators' commands cannot be opened: {problem}") from None

    def reload(self, _settings: AgentSettings) -> None:
        """Reload the rules immediately, without waiting for the file watcher."""
        self._limits.decision_service.start_task(self._limits.watcher.reload_all())

    async def close(self) -> None:
        await self._admin.close()
        await self._limits.close()


def has_machine_rules(rules: RuleSet) -> bool:
    """Return whether any rule has a ceiling for the caller class `MACHINE`.

    Rules for the API need one; rules for other services have none.
    """
    return any(CallerClass.MACHINE in rule.ceilings for rule in rules.rules)


def check_limits_file(settings: AgentSettings) -> None:
    """Raise `CommandError` if the file of enabled rate limits cannot be used by a server.

    Counts nothing and opens no store.
    """
    if not settings.server.enabled:
        return
    try:
        build_limiter_settings(settings, Path(settings.data_dir), COUNTING_PROCESS)
    except LimiterStartError as error:
        raise CommandError(str(error)) from error


def build_limiter_settings(settings: AgentSettings, data_folder: Path, process: str) -> LimiterSettings:
    """Return the limiter settings of one process.

    Raises `LimiterStartError` if the file cannot be used, and `CommandError` if servers could not share its store.
    """
    file = settings.limits.file
    if file:
        limiter = load_settings(Path(file))
        for name, is_set in (
            ("directory", limiter.directory_file is not None),
            ("gateway.upstream", limiter.gateway.upstream is not None),
            ("credentials", limiter.credentials.mode is not CredentialMode.LISTED),
        ):
            if is_set:
                raise CommandError(f"{file}: {name} is for a gateway; here requests and tokens are those of the API")
    else:
        limiter = LimiterSettings()
    store = limiter.store
    if store.kind is not StoreKind.REDIS and settings.state.engine is EngineKind.ETCD:
        raise CommandError(
            "limits.enabled: servers on several machines would each count alone; name a file in limits.file with "
            '[store] kind = "redis" and addresses = "host:6379" (documentation page Rate limits in front of a service), so that they share'
        )
    if store.kind is StoreKind.MEMORY and settings.api.processes > 1:
        store = share_on_machine(store, data_folder / LIMITS_FOLDER / COUNTERS_SOCKET, settings.api.processes, process)
    return msgspec.structs.replace(
        limiter,
        store=store,
        profile=LIMITS_PROFILE,
        data_folder=data_folder / LIMITS_FOLDER / process,
        admin_socket=data_folder / f"{LIMITS_FOLDER}-{process}.sock",
        request_id_header=REQUEST_ID_HEADER
        if limiter.request_id_header == LimiterSettings().request_id_header
        else limiter.request_id_header,
    )


def share_on_machine(store: StoreSettings, socket: Path, processes: int, process: str) -> StoreSettings:
    """Return store settings for one process, with which the first process counts the requests of all processes of the
    machine.

    `process` is the name of the process, `processes` how many there are. While the first one is unavailable, each other
    process allows its share of a limit.
    """
    if process == COUNTING_PROCESS:
        return msgspec.structs.replace(store, socket=socket)
    guard = msgspec.structs.replace(store.guard, fallback_processes=processes)
    return msgspec.structs.replace(store, kind=StoreKind.NEIGHBOUR, socket=socket, guard=guard)
