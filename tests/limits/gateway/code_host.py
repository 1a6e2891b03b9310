"""A small code host for tests: it knows some credentials, and answers over real sockets behind the gateway."""

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec

from tests.limits.decision_services import encode_basic
from tests.limits.gateway.running_gateway import ReceivedRequest

BOB_TOKEN = "bob-token-000000000000000000"
BOB_SECOND_TOKEN = "bob-second-00000000000000000"
EVE_TOKEN = "eve-token-000000000000000000"
BOB = f"Authorization: Bearer {BOB_TOKEN}"
EVE = f"Authorization: Bearer {EVE_TOKEN}"
BOB_SESSION = "Cookie: theme=dark; session=bob-session"


class CodeHost:
    """The handler of a scripted service: pages for everybody, and an API that needs a credential."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {BOB_TOKEN: "Bob", BOB_SECOND_TOKEN: "Bob", EVE_TOKEN: "eve"}
        self.sessions: dict[str, str] = {"bob-session": "Bob"}
        self.questions: list[str] = []
        """The credentials of requests for the user that owns them."""
        self.is_away = False
        """Whether questions get a 503."""
        self.question_gate: asyncio.Event | None = None
        """Questions wait for it, if it is set."""

    def find_login(self, headers: Mapping[str, str], target: str) -> str | None:
        """Return the login of the user that a request is from."""
        authorization = headers.get("authorization", "")
        scheme, _, value = authorization.partition(" ")
        tokens = [headers.get("private-token", ""), *parse_qs(urlsplit(target).query).get("private_token", [])]
        if scheme.lower() in ("bearer", "token"):
            tokens.append(value)
        for token, login in self.owners.items():
            if token in tokens or authorization in (encode_basic(login.lower(), token), encode_basic(token, "")):
                return login
            if scheme == "Basic" and authorization == encode_basic("anybody", token):
                return login
        for cookie in headers.get("cookie", "").split(";"):
            name, _, content = cookie.strip().partition("=")
            if name == "session" and content in self.sessions:
                return self.sessions[content]
        return None

    async def handle(
        self, request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Reply to one request."""
        target = request.line.split(" ")[1]
        path = urlsplit(target).path
        login = self.find_login(request.headers, target)
        if path == "/api/v1/user":
            self.questions.append(request.headers.get("authorization", request.headers.get("cookie", "")))
            if self.question_gate is not None:
                await self.question_gate.wait()
            if self.is_away:
                writer.write(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n")
                return
        if path.startswith("/api/") and login is None:
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        elif path.startswith("/login"):
            writer.write(b"HTTP/1.1 303 See Other\r\nContent-Length: 0\r\n\r\n")
        else:
            body = msgspec.json.encode({"login": login, "id": 9})
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
