"""Desks for tests: accounts with every kind of credential, and an ASGI caller that is asked step by step."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wharf.limits.asgi import Application, LimitsMiddleware, Message
from wharf.limits.config import LimiterSettings
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.core.rule import RuleSet
from wharf.limits.decisions import DecisionService
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.stores import MemoryStore
from wharf.world import SimulatedWorld, World

T = TypeVar("T")

ADA: Final = "ghp_adaadaadaadaadaadaada"
OAUTH: Final = "gho_oauthoauthoauthoauth"
APP_USER: Final = "ghu_appuserappuserappuser"
INSTALLATION: Final = "ghs_installationinstallation"
WORKFLOW: Final = "ghs_workflowworkflowworkflow"
CLIENT_ID: Final = "Iv1.client"
CLIENT_SECRET: Final = "a client's secret"
REVOKED: Final = "ghp_revokedrevokedrevoked"

DIRECTORY: Final = f"""
[[user]]
login = "ada"
id = 5
tokens = [
  {{ name = "laptop", sha256 = "{hash_secret(ADA)}" }},
  {{ name = "site", sha256 = "{hash_secret(OAUTH)}", app = 8, scopes = ["repo", "read:org"] }},
  {{ name = "bot", sha256 = "{hash_secret(APP_USER)}", app = 7 }},
  {{ name = "lost", sha256 = "{hash_secret(REVOKED)}", revoked = true }},
]
[[organization]]
login = "acme"
members = ["ada"]
[[app]]
id = 7
owner = "acme"
installations = [{{ id = 71, on = "acme", tokens = [{{ sha256 = "{hash_secret(INSTALLATION)}" }}] }}]
[[app]]
id = 8
owner = "acme"
oauth = true
client_id = "{CLIENT_ID}"
client_secret_sha256 = "{hash_secret(CLIENT_SECRET)}"
[[repository]]
name = "acme/site"
tokens = [{{ sha256 = "{hash_secret(WORKFLOW)}" }}]
"""


class MovingWorld(SimulatedWorld):
    """A world whose time moves when it is told to."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        super().__init__(1, lambda: self.elapsed_s)

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def a_desk(
    rules: RuleSet | str | None = None,
    *,
    world: World | None = None,
    settings: LimiterSettings | None = None,
    folder: Path | None = None,
) -> DecisionService:
    read = read_rules(rules) if isinstance(rules, str) else rules or read_profile()
    world = world or SimulatedWorld(1)
    store = MemoryStore(world, read)
    service = LimitEvaluator(read, store, lambda: world.now_ns() // 1_000_000)
    return DecisionService(service, world, settings, directory=read_directory(DIRECTORY), folder=folder)


class Heard(msgspec.Struct):
    """A reply, as its parts came."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Caller:
    """Calls an application as a server does: what it sends is given, what it hears is kept."""

    def __init__(
        self,
        path: str = "/things",
        *,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        token: str | None = None,
        body: bytes = b"",
        query: str = "",
        kind: str = "http",
        peer: str = "192.0.2.7",
    ) -> None:
        pairs = [(name.encode(), value.encode()) for name, value in headers]
        if token is not None:
            pairs.append((b"authorization", f"Bearer {token}".encode()))
        self.scope: dict[str, Any] = {
            "type": kind,
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": pairs,
            "client": (peer, 4321),
            "extensions": {"websocket.http.response": {}},
        }
        self.heard = Heard()
        self.to_send: asyncio.Queue[Message] = asyncio.Queue()
        if kind == "http":
            self.to_send.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def hang_up(self) -> None:
        kind = self.scope["type"]
        self.to_send.put_nowait({"type": "websocket.disconnect" if kind == "websocket" else "http.disconnect"})

    async def send(self, message: Message) -> None:
        if "status" in message:
            self.heard.status = message["status"]
        if "headers" in message:
            self.heard.headers |= {name.decode(): value.decode() for name, value in message["headers"]}
        self.heard.body += message.get("body", b"")

    async def call(self, application: Any) -> Heard:
        await application(self.scope, self.to_send.get, self.send)
        return self.heard


def replies(
    status: int = 200, headers: Sequence[tuple[bytes, bytes]] = (), body: Sequence[bytes] = (b"hello",)
) -> Application:
    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for some in body:
            await send({"type": "http.response.body", "body": some, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return application


def ask(desk: DecisionService, caller: Caller, application: Application | None = None) -> Heard:
    return asyncio.run(caller.call(LimitsMiddleware(application or replies(), desk)))


def run(scenario: Callable[[], Awaitable[T]]) -> T:
    async def whole() -> T:
        return await scenario()

    return asyncio.run(whole())


def held(desk: DecisionService, owner: str = "user:ada", rule: str = "concurrent") -> int:
    """How many slots an owner holds now."""
    assert isinstance(desk.evaluator.store, MemoryStore)
    return desk.evaluator.store.counters.tables[rule].count_used(owner, desk.now_ms())


def used(desk: DecisionService, rule: str, owner: str = "user:ada") -> int:
    return held(desk, owner, rule)
