"""Decision services for tests: accounts with every kind of credential, and a caller of ASGI applications."""

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


class AdvancingWorld(SimulatedWorld):
    """A world whose time moves only by `advance`."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        super().__init__(1, lambda: self.elapsed_s)

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds


def encode_basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def make_decision_service(
    rules: RuleSet | str | None = None,
    *,
    world: World | None = None,
    settings: LimiterSettings | None = None,
    folder: Path | None = None,
) -> DecisionService:
    """Return a decision service with counters in memory; without `rules`, with those of the built-in profile."""
    rule_set = read_rules(rules) if isinstance(rules, str) else rules or read_profile()
    world = world or SimulatedWorld(1)
    evaluator = LimitEvaluator(rule_set, MemoryStore(world, rule_set), lambda: world.now_ns() // 1_000_000)
    return DecisionService(evaluator, world, settings, directory=read_directory(DIRECTORY), folder=folder)


class RecordedReply(msgspec.Struct):
    """The parts of a reply that have arrived."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class AsgiCaller:
    """Calls an application with one request, like an ASGI server, and records the reply."""

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
        self.reply = RecordedReply()
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        """The messages that the application receives next."""
        if kind == "http":
            self.messages.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def disconnect(self) -> None:
        kind = self.scope["type"]
        self.messages.put_nowait({"type": "websocket.disconnect" if kind == "websocket" else "http.disconnect"})

    async def send(self, message: Message) -> None:
        """Record a message of the application."""
        if "status" in message:
            self.reply.status = message["status"]
        if "headers" in message:
            self.reply.headers |= {name.decode(): value.decode() for name, value in message["headers"]}
        self.reply.body += message.get("body", b"")

    async def call(self, application: Any) -> RecordedReply:
        await application(self.scope, self.messages.get, self.send)
        return self.reply


def make_application(
    status: int = 200, headers: Sequence[tuple[bytes, bytes]] = (), body: Sequence[bytes] = (b"hello",)
) -> Application:
    """Return an application that sends the same reply to every request."""

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return application


def send_request(
    decision_service: DecisionService, caller: AsgiCaller, application: Application | None = None
) -> RecordedReply:
    """Send a caller's request through the ASGI middleware."""
    return asyncio.run(caller.call(LimitsMiddleware(application or make_application(), decision_service)))


def run_async(scenario: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await scenario()

    return asyncio.run(run())


def count_slots(decision_service: DecisionService, owner: str = "user:ada", rule: str = "concurrent") -> int:
    """Return how many slots of a rule an owner holds."""
    return count_used(decision_service, rule, owner)


def count_used(decision_service: DecisionService, rule: str, owner: str = "user:ada") -> int:
    """Return how much of a rule's limit an owner has used."""
    assert isinstance(decision_service.evaluator.store, MemoryStore)
    table = decision_service.evaluator.store.counters.tables[rule]
    return table.count_used(owner, decision_service.now_ms())
