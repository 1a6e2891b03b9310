"""Verifies JSON Web Tokens of one issuer with its public keys, which are fetched and cached."""

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError

from wharf.limits.config.credential_settings import TokenSettings
from wharf.limits.core.callers.recognition import CredentialOwner
from wharf.limits.credentials.claims import MAX_EXPIRY_S, read_expiry_ms, read_owner
from wharf.limits.credentials.questions import HttpClient, NoAnswer
from wharf.world import World
from wharf.world.key_sets import UnusableKeys, VerifyingKey, read_public_keys

log = logging.getLogger(__name__)

MAX_TOKEN_CHARACTERS: Final = 16_384
"""Longer tokens are not verified; limits the work that callers cause."""
MAX_TRIED_KEYS: Final = 4
"""Keys that are tried for a token that names none; each takes 0.05 ms."""
FETCH_TIMEOUT_S: Final = 2.0
"""How long a request waits for the keys of the issuer."""
REFETCH_DELAY_MS: Final = 30_000
"""Keys are not fetched more often, whatever key ids callers invent."""


class VerifiedToken(msgspec.Struct, frozen=True):
    """The result for a token of the issuer: its owner, or `None` if the token is not valid."""

    owner: CredentialOwner | None
    issued_ms: int = 0


class TokenVerifier:
    """Verifies the tokens of one issuer."""

    def __init__(self, settings: TokenSettings, world: World) -> None:
        self._settings = settings
        self._world = world
        ca_file = str(settings.ca_file) if settings.ca_file is not None else ""
        self._client = HttpClient(timeout_s=FETCH_TIMEOUT_S, ca_file=ca_file)
        self._keys: list[VerifyingKey] = []
        self._fetched_ms = 0
        """When keys were fetched last, also in vain."""
        self._is_fetched = False
        self._fetch: asyncio.Task[None] | None = None

    @property
    def has_keys(self) -> bool:
        return self._is_fetched

    def is_of_issuer(self, token: str) -> bool:
        """Return whether a token says that it is of the configured issuer. The signature is not verified yet."""
        if len(token) > MAX_TOKEN_CHARACTERS or token.count(".") != 2:
            return False
        claims = _decode_part(token.split(".")[1])
        return claims is not None and claims.get("iss") == self._settings.issuer

    def needs_keys(self, token: str, now_ms: int) -> bool:
        """Return whether keys must be fetched before this token can be verified."""
        if self._fetch is not None:
            return not self._is_fetched
        if now_ms - self._fetched_ms < REFETCH_DELAY_MS and self._fetched_ms:
            return False
        if not self._is_fetched or now_ms - self._fetched_ms >= self._settings.refresh_ms:
            return True
        key_id = _read_key_id(token)
        return key_id is not None and all(key.kid != key_id for key in self._keys)

    async def fetch_keys(self) -> None:
        """Fetch the keys of the issuer, or wait for the fetch of another request. The old keys stay after a failure."""
        if self._fetch is None:
            self._fetch = self._world.start_task(self._run_fetch(), name="limits: fetch keys of the issuer")
            self._fetch.add_done_callback(self._on_fetched)
        await asyncio.shield(self._fetch)

    def _on_fetched(self, _task: "asyncio.Task[None]") -> None:
        self._fetch = None

    async def _run_fetch(self) -> None:
        self._fetched_ms = self._world.now_ns() // 1_000_000
        source = str(self._settings.keys_file or self._settings.keys_url)
        try:
            if self._settings.keys_file is not None:
                body = await self._world.run_off_loop(_FileReader(self._settings.keys_file))
            else:
                status, body = await self._client.send("GET", self._settings.keys_url, {"accept": "application/json"})
                if status != 200:
                    raise UnusableKeys(f"the issuer replied with status {status}")
            self._keys = read_public_keys(body, source)
            self._is_fetched = True
        except (NoAnswer, UnusableKeys, OSError) as error:
            log.warning("keys of the issuer not fetched source=%s error=%s", source, error)
        except Exception:  # Otherwise the requests that wait for the keys would get no reply.
            log.exception("fetching keys of the issuer failed")

    def verify(self, token: str, now_ms: int) -> VerifiedToken:
        """Return the owner of a token of the issuer, if signature, times and audience are right."""
        settings = self._settings
        key_id = _read_key_id(token)
        keys = [
            key
            for key in self._keys
            if (key_id is None or key.kid in (None, key_id)) and key.get("use") in (None, "sig")
        ][:MAX_TRIED_KEYS]
        for key in keys:
            try:
                claims = jwt.decode(token, key, algorithms=list(settings.algorithms)).claims
            except (JoseError, ValueError, TypeError, RecursionError):
                continue
            if not self._are_claims_valid(claims, now_ms):
                return VerifiedToken(None)
            owner = read_owner(claims, settings.claims, expires_ms=read_expiry_ms(claims))
            issued_ms = _read_time_ms(claims.get("iat"))
            return VerifiedToken(owner, issued_ms or 0)
        return VerifiedToken(None)

    def _are_claims_valid(self, claims: dict[str, Any], now_ms: int) -> bool:
        """Return whether issuer, audience and times of a token with a valid signature are right. It needs an end."""
        settings = self._settings
        expires_ms = read_expiry_ms(claims)
        if claims.get("iss") != settings.issuer or expires_ms is None or now_ms >= expires_ms + settings.leeway_ms:
            return False
        begins_ms = _read_time_ms(claims.get("nbf", 0))
        if begins_ms is None or begins_ms > now_ms + settings.leeway_ms:
            return False
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        return not settings.audience or settings.audience in audiences

    async def close(self) -> None:
        await self._client.close()


class _FileReader:
    """Reads a key file on a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(1 << 20)


def _read_time_ms(value: object) -> int | None:
    """Return a time in Unix seconds as milliseconds; `None` if it is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_EXPIRY_S:
        return None
    return int(value * 1_000)


def _decode_part(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a part of a token; `None` if the part is not one."""
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(decoded, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _read_key_id(token: str) -> str | None:
    """Return the id of the key that a token names; `None` without one."""
    header = _decode_part(token.partition(".")[0])
    key_id = header.get("kid") if header is not None else None
    return key_id if isinstance(key_id, str) else None
