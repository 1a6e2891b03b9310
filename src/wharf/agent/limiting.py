"""Limits around the API, where the configuration switches them on: profile `cluster`, accounts out of the replica's tokens.

Several processes of a machine share the counters of the first, and several machines those on Redis: a limit that each
counts alone is none.
"""

from pathlib import Path
from typing import Final

import msgspec

from wharf.agent.life import CannotStart, Life
from wharf.agent.refusal import Refused
from wharf.api.limiting import App, Marking, Receive, Scope, Send
from wharf.config.settings import Settings as AgentSettings
from wharf.engines.settings import EngineKind
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.building import Limits, LimitsRefused, load_settings
from wharf.limits.configuration import Settings
from wharf.limits.configuration.settings import StoreKind, StoreSettings
from wharf.limits.core.caller import Case, CredentialKind
from wharf.limits.core.directory import Register, Token, User
from wharf.limits.core.rule import RuleSet
from wharf.limits.operating.admin import AdminServer
from wharf.server.server import Server
from wharf.state.tables import ACL_TOKENS, TOKENS_BY_SECRET

PROFILE: Final = "cluster"
FIRST: Final = "api-1"
COUNTERS_SOCKET: Final = "counters.sock"
FOLDER: Final = "limits"
REQUEST_ID: Final = "x-cluster-limits-id"


class ReplicaTokens(Register, frozen=True):
    """The tokens of this cluster, asked of the replica each time. There is nobody else: no app, no organization."""

    server: Server

    def find_token(self, sha256: str) -> Token | None:
        found = self.server.replica.those(TOKENS_BY_SECRET, sha256)
        if not found:
            return None
        token = found[0]
        expires = token.expiration_time
        return Token(
            sha256=sha256,
            kind=CredentialKind.PERSONAL_TOKEN,
            user=token.accessor_id,
            expires_ms=None if expires is None else int(expires.timestamp() * 1_000),
        )

    def find_user(self, login: str) -> User | None:
        """Who a token belongs to nobody knows: each is counted by itself, under its accessor id."""
        return User(login=login)

    def knows(self, sha256: str) -> bool:
        token = self.find_token(sha256)
        now_ms = self.server.world.now_ns() // 1_000_000
        return token is not None and (token.expires_ms is None or now_ms < token.expires_ms)


class ApiLimits:
    """Of one process that answers HTTP. `app` is what the port serves."""

    def __init__(self, life: Life, server: Server, app: App) -> None:
        """Raises CannotStart, with what to do."""
        order, world = life.order, life.world
        self._server = server
        self._tokens = ReplicaTokens(server=server)
        self._stands_for = (-1, -1)
        try:
            settings = limiter_settings(order.settings, Path(order.data_folder), order.name)
            self._limits = Limits(settings, world, directory=self._tokens)
        except (LimitsRefused, Refused) as refused:
            raise CannotStart(str(refused)) from None
        if not knows_machines(self._limits.desk.service.rules):
            raise CannotStart(
                f'{settings.rules_file}: these are rules for another service: begin the file with profile = "{PROFILE}"'
            )
        self._admin = AdminServer(self._limits, world)
        known = self._tokens if order.settings.acl.enabled else None
        inner = LimitsMiddleware(app, self._limits.desk)
        self.app: App = Marking(self._fresh(inner), server, known, compat=order.settings.compat.nomad)

    def _fresh(self, inner: App) -> App:
        """What the limiter remembers of tokens goes when any of them changed, so that a deleted one is nobody's at once."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            replica = self._server.replica
            stands_for = (replica.epoch, replica.last_change(ACL_TOKENS))
            if stands_for != self._stands_for:
                self._stands_for = stands_for
                self._limits.desk.callers.use(self._tokens)
            await inner(scope, receive, send)

        return serve

    async def open(self) -> None:
        try:
            await self._limits.open()
            await self._admin.open()
        except LimitsRefused as refused:
            raise CannotStart(str(refused)) from None
        except OSError as problem:
            raise CannotStart(f"operators' commands cannot be listened for: {problem}") from None

    def reload(self, _settings: AgentSettings) -> None:
        """Rules are read again at once, not only when their file is seen to have changed."""
        self._limits.desk.start(self._limits.watcher.look())

    async def close(self) -> None:
        await self._admin.close()
        await self._limits.close()


def knows_machines(rules: RuleSet) -> bool:
    return any(Case.MACHINE in rule.ceilings for rule in rules.rules)


def limiter_settings(settings: AgentSettings, data_folder: Path, process: str) -> Settings:
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
                raise Refused(f"{file}: {name} is for a gateway; here requests and tokens are those of the API")
    else:
        told = Settings()
    store = told.store
    if store.kind is not StoreKind.REDIS and settings.state.engine is EngineKind.ETCD:
        raise Refused(
            "limits.enabled: servers on several machines would each count alone; name a file in limits.file with "
            '[store] kind = "redis" and addresses = "host:6379" (docs/limits.md), so that they share'
        )
    if store.kind is StoreKind.MEMORY and settings.api.processes > 1:
        store = shared_on_machine(store, data_folder / FOLDER / COUNTERS_SOCKET, settings.api.processes, process)
    return msgspec.structs.replace(
        told,
        store=store,
        profile=PROFILE,
        data_folder=data_folder / FOLDER / process,
        admin_socket=data_folder / f"{FOLDER}-{process}.sock",
        request_id_header=REQUEST_ID
        if told.request_id_header == Settings().request_id_header
        else told.request_id_header,
    )


def shared_on_machine(store: StoreSettings, socket: Path, processes: int, process: str) -> StoreSettings:
    """The first process counts, and the others ask it; while it is away each has its share of a limit."""
    if process == FIRST:
        return msgspec.structs.replace(store, socket=socket)
    guard = msgspec.structs.replace(store.guard, fallback_processes=processes)
    return msgspec.structs.replace(store, kind=StoreKind.NEIGHBOUR, socket=socket, guard=guard)
