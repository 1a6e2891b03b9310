"""Verifies JSON Web Tokens of one issuer with its public keys, which are fetched and cached.

Only the public members of supplied keys are read, and their sizes are limited before the library gets them.
"""

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey

from wharf.limits.config.credential_settings import TokenSettings
from wharf.limits.core.callers.recognition import CredentialOwner
from wharf.limits.credentials.claims import MAX_EXPIRY_S, read_expiry_ms, read_owner
from wharf.limits.credentials.questions import HttpClient, NoAnswer
from wharf.world import World

log = logging.getLogger(__name__)

MAX_TOKEN_CHARACTERS: Final = 16_384
"""Longer tokens are not verified; limits the work that callers cause."""
MAX_KEYS: Final = 100
"""The most keys of an issuer; limits memory and the time to read them."""
MAX_TRIED_KEYS: Final = 4
"""Keys that are tried for a token that names none; each takes 0.05 ms."""
MAX_MEMBER_CHARACTERS: Final = 1_366
"""The longest number of a key: that of an RSA key with 8,192 bits. A larger one takes too long to verify with."""
MAX_EXPONENT_CHARACTERS: Final = 11
"""The longest exponent of an RSA key, 64 bits. A check with a longer one takes up to 6 ms."""
FETCH_TIMEOUT_S: Final = 2.0
"""How long a request waits for the keys of the issuer."""
REFETCH_DELAY_MS: Final = 30_000
"""Keys are not fetched more often, whatever key ids callers invent."""
CURVES: Final = frozenset({"P-256", "P-384", "P-521", "Ed25519", "Ed448"})

VerifyingKey = RSAKey | ECKey | OKPKey


class _IssuerKeyMembers(msgspec.Struct, frozen=True, omit_defaults=True):
    """The public members of a JSON Web Key. All others are ignored."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    n: str | None = None
    e: str | None = None
    crv: str | None = None
    x: str | None = None
    y: str | None = None


class _IssuerKeySet(msgspec.Struct, frozen=True):
    keys: list[_IssuerKeyMembers]


class UnusableKeySet(Exception):
    """The keys of the issuer cannot be used. The text says why, for the log."""


class VerifiedToken(msgspec.Struct, frozen=True):
    """The result for a token of the issuer: its owner, or `None` if the token is not valid."""

    owner: CredentialOwner | None
    issued_ms: int = 0


def read_key_set(body: bytes) -> list[VerifyingKey]:
    """Return the public keys of a JSON Web Key set. Keys of unknown types are left out. Raises `UnusableKeySet`."""
    try:
        document = msgspec.json.decode(body, type=_IssuerKeySet)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableKeySet(f"it is not a JSON Web Key set: {error}") from None
    if len(document.keys) > MAX_KEYS:
        raise UnusableKeySet(f"it has {len(document.keys)} keys, more than {MAX_KEYS}")
    keys: list[VerifyingKey] = []
    for members in document.keys:
        if members.use not in (None, "sig") or not (members.kty == "RSA" or members.crv in CURVES):
            continue
        longest = max(len(text or "") for text in (members.n, members.x, members.y, members.kid))
        if longest > MAX_MEMBER_CHARACTERS or len(members.e or "") > MAX_EXPONENT_CHARACTERS:
            raise UnusableKeySet("one of its keys is too large")
        try:
            key = JWKRegistry.import_key(msgspec.to_builtins(members))
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise UnusableKeySet(f"one of its keys is malformed: {error}") from None
        if isinstance(key, RSAKey | ECKey | OKPKey):
            keys.append(key)
    if not keys:
        raise UnusableKeySet("it has no public key of a supported type")
    return keys


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
        try:
            if self._settings.keys_file is not None:
                body = await self._world.run_off_loop(_FileReader(self._settings.keys_file))
            else:
                status, body = await self._client.send("GET", self._settings.keys_url, {"accept": "application/json"})
                if status != 200:
                    raise UnusableKeySet(f"the issuer replied with status {status}")
            self._keys = read_key_set(body)
            self._is_fetched = True
        except (NoAnswer, UnusableKeySet, OSError) as error:
            log.warning(
                "keys of the issuer not fetched source=%s error=%s",
                self._settings.keys_file or self._settings.keys_url,
                error,
            )
        except Exception:  # Otherwise the requests that wait for the keys would get no reply.
            log.exception("fetching keys of the issuer failed")

    def verify(self, token: str, now_ms: int) -> VerifiedToken:
        """Return the owner of a token of the issuer, if signature, times and audience are right."""
        settings = self._settings
        key_id = _read_key_id(token)
        keys = [key for key in self._keys if key_id is None or key.kid in (None, key_id)][:MAX_TRIED_KEYS]
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
