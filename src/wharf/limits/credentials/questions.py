"""Asks who owns a credential: the service, a program of the operator, or an authorization server.

A question is one HTTP request. Caching, and what follows from an answer, are in `resolver`.
"""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

import msgspec

from wharf.limits.config.credential_settings import QuestionKind, ResolverSettings
from wharf.limits.config.settings import Upstream
from wharf.limits.core.callers.carriers import AUTHORIZATION, CarriedCredential
from wharf.limits.core.callers.credentials import PresentedToken
from wharf.limits.core.callers.recognition import CredentialOwner
from wharf.limits.credentials.claims import read_expiry_ms, read_owner

MAX_REPLY_BYTES: Final = 1 << 18
"""The longest answer; limits memory. The user record of a code host has 2,000 bytes."""


class Answer(msgspec.Struct, frozen=True):
    """The answer to a question. Without `owner` and `is_known`, nobody owns the credential."""

    owner: CredentialOwner | None = None
    is_known: bool = False
    """Whether the credential is valid, although the answer may not name its owner."""


UNKNOWN: Final = Answer()
NAMELESS: Final = Answer(is_known=True)


class NoAnswer(Exception):
    """The question was not answered. The text says why, for the log."""


class Question(Protocol):
    """A way to ask who owns a credential."""

    @property
    def has_address(self) -> bool:
        """Whether it is known where to send the question."""
        ...

    async def ask(self, credential: CarriedCredential, address: str) -> Answer:
        """Return the answer. `address` is that of the caller. Raises `NoAnswer`."""
        ...

    async def close(self) -> None: ...


class HttpClient:
    """Sends requests with limits for time and bytes. The library is loaded with the first request, because that is slow."""

    def __init__(self, *, timeout_s: float, ca_file: str = "") -> None:
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._client: Any = None  # An asyncio client of the HTTP library, whose types load it.

    async def send(self, method: str, url: str, headers: Mapping[str, str], content: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of the reply. Raises `NoAnswer`."""
        import httpx2

        from wharf.world.http_clients import build_async_client, read_body
        from wharf.world.tls_contexts import ClientTls, load_client_context

        try:
            async with asyncio.timeout(self._timeout_s):
                if self._client is None:
                    context = await load_client_context(ClientTls(ca_file=self._ca_file))
                    self._client = self._client or build_async_client(timeout=self._timeout_s, verify=context)
                async with self._client.stream(method, url, headers=dict(headers), content=content) as reply:
                    body = await read_body(reply, timeout_s=self._timeout_s, max_bytes=MAX_REPLY_BYTES)
                    return int(reply.status_code), body
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError, ValueError) as error:
            raise NoAnswer(str(error) or f"no reply within {self._timeout_s:g} s") from None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _HttpQuestion:
    """What all questions have in common: a client, and the names of the claims."""

    def __init__(self, settings: ResolverSettings, ca_file: str) -> None:
        self._settings = settings
        self._client = HttpClient(timeout_s=settings.timeout_ms / 1_000, ca_file=ca_file)

    @property
    def has_address(self) -> bool:
        return True

    async def close(self) -> None:
        await self._client.close()

    def _read_owner(self, body: bytes) -> Answer:
        """Return the owner in a JSON object. Raises `NoAnswer` if the body is not one."""
        claims = _decode_object(body)
        if claims.get("active") is False:
            return UNKNOWN
        owner = read_owner(claims, self._settings.claims, expires_ms=read_expiry_ms(claims))
        return Answer(owner, is_known=True)


class HostQuestion(_HttpQuestion):
    """Asks the service, with the credential as the caller sent it."""

    def __init__(self, settings: ResolverSettings, upstream: Upstream | None, ca_file: str) -> None:
        super().__init__(settings, ca_file)
        self._url = settings.url
        if upstream is not None and settings.url.startswith("/"):
            self._url = f"{upstream}{settings.url}"

    @property
    def has_address(self) -> bool:
        return not self._url.startswith("/")

    async def ask(self, credential: CarriedCredential, address: str) -> Answer:
        """Send the question. 401 means that nobody owns the credential, as 400 and 422 do, and 403 that the service does not name its owner."""
        url, headers = self._url, {"accept": "application/json", "x-forwarded-for": address}
        kind, _, name = credential.carrier.partition(" ")
        match kind:
            case "header":
                headers[name] = credential.text
            case "cookie":
                headers["cookie"] = f"{name}={credential.text}"
            case "query":
                url += f"{'&' if '?' in url else '?'}{quote(name)}={quote(credential.text, safe='')}"
            case _:
                headers[AUTHORIZATION] = credential.text
        status, body = await self._client.send("GET", url, headers)
        match status:
            case 200:
                return self._read_owner(body)
            case 400 | 401 | 422:
                return UNKNOWN
            case 403:
                return NAMELESS
        raise NoAnswer(f"the service replied with status {status}")


class HookQuestion(_HttpQuestion):
    """Asks a program of the operator."""

    async def ask(self, credential: CarriedCredential, address: str) -> Answer:
        """Send the question. The statuses 401 and 404 mean that nobody owns the credential."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._settings.secret:
            headers[AUTHORIZATION] = f"Bearer {self._settings.secret}"
        question = {"carrier": credential.carrier, "credential": credential.text, "address": address}
        status, body = await self._client.send("POST", self._settings.url, headers, msgspec.json.encode(question))
        match status:
            case 200:
                return self._read_owner(body)
            case 401 | 404:
                return UNKNOWN
        raise NoAnswer(f"the hook replied with status {status}")


class IntrospectionQuestion(_HttpQuestion):
    """Asks an authorization server (RFC 7662)."""

    async def ask(self, credential: CarriedCredential, address: str) -> Answer:  # noqa: ARG002 - It is not asked for.
        """Send the question. A password is no token: the server is not asked about it."""
        if not isinstance(credential.presented, PresentedToken) and " " in credential.secret:
            return NAMELESS
        settings = self._settings
        names = f"{quote(settings.client_id, safe='')}:{quote(settings.secret, safe='')}"
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
            AUTHORIZATION: f"Basic {base64.b64encode(names.encode()).decode()}",
        }
        token = credential.text if credential.is_cookie else credential.secret
        status, body = await self._client.send("POST", settings.url, headers, urlencode({"token": token}).encode())
        if status != 200:
            raise NoAnswer(f"the authorization server replied with status {status}")
        if _decode_object(body).get("active") is not True:
            return UNKNOWN
        return self._read_owner(body)


def _decode_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises `NoAnswer` if the body is not one."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoAnswer("the reply is not a JSON object") from None


def build_question(settings: ResolverSettings, upstream: Upstream | None, upstream_ca_file: str) -> Question:
    """Return the configured question. `upstream` is the service behind the gateway; `None` without one."""
    ca_file = str(settings.ca_file) if settings.ca_file is not None else ""
    match settings.kind:
        case QuestionKind.HOST:
            return HostQuestion(settings, upstream, ca_file or upstream_ca_file)
        case QuestionKind.HOOK:
            return HookQuestion(settings, ca_file)
        case QuestionKind.INTROSPECTION:
            return IntrospectionQuestion(settings, ca_file)
