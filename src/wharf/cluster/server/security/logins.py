"""Logins by OIDC and JWT: requests to the provider and verification of its tokens (reference 5.2, 5.3).

The result is a set of claims; `operations.acl.logins` decides which token they give. The state between the two steps
of an OIDC login is sent along encrypted, so that any process of any server can finish it.
"""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from wharf.cluster.operations.keyring import make_auth_method_context
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.server.security.login_keys import load_assertion_key, load_pem_keys, read_key_set
from wharf.cluster.server.security.login_providers import (
    LoginProviders,
    ProviderReply,
    ProviderRequest,
    ProviderUnreachable,
)
from wharf.cluster.server.security.provider_documents import ProviderDocuments
from wharf.cluster.state import Replica
from wharf.contract.model.acl.auth_methods import (
    LOGIN_REJECTED_PREFIX,
    SIGNING_ALGORITHMS,
    AuthMethod,
    AuthMethodConfig,
)
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import SECOND, has_passed
from wharf.world import World
from wharf.world.jose import (
    decode_base64url,
    describe_jose_error,
    encode_base64url,
    read_key_id,
    read_unverified_claims,
)
from wharf.world.key_sets import UnusableKeys

T = TypeVar("T")

STATE_TTL_S: Final = 300
"""How long a user may take to log in at the provider, and how long a client assertion is valid."""

DEFAULT_LEEWAY_S: Final = 150
"""Leeway in seconds for expiry and not-before claims if the method sets none."""

DEFAULT_CLOCK_SKEW_S: Final = 60
DEFAULT_ALGORITHMS: Final = ("RS256",)
MAX_LOGIN_TOKEN_CHARS: Final = 16_384
"""The length of a token of an identity provider. Limits the work that callers without a token can cause."""
MAX_TIME_CLAIM_S: Final = 10**15
"""The largest time in a token; protects the arithmetic of times from numbers of any length."""
MAX_CACHED_URI_LISTS: Final = 16
"""Limits the memory of parsed redirect addresses, of which a list has up to 1,000."""
VERIFIER_BYTES: Final = 48
STATE_CONTEXT: Final = "login state"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


KeySource = Callable[[bool], Awaitable[KeySet]]
"""Returns the public keys that sign the tokens of a provider. The argument: whether to fetch them again."""


class LoginRejected(Exception):
    """The login is rejected. The message says why."""


class MethodSecrets(msgspec.Struct, frozen=True):
    """The secrets of an auth method; stored encrypted."""

    client_secret: str = ""
    assertion_key: str = ""


class LoginState(msgspec.Struct, frozen=True, array_like=True):
    """What the second step of an OIDC login needs from the first. The order of the fields is the wire format."""

    method: str
    redirect_uri: str
    nonce: str
    """Random text of the client, which the ID token must contain."""
    verifier: str
    """The PKCE code verifier; empty if PKCE is off."""
    expires_at_s: int


class ProviderMetadata(msgspec.Struct, frozen=True):
    """The endpoints of a provider, from its discovery document."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    userinfo_endpoint: str = ""
    jwks_uri: str = ""


class ProviderTokens(msgspec.Struct, frozen=True):
    """The tokens that an identity provider returns for an authorization code."""

    id_token: str = ""
    access_token: str = ""


class LoginVerifier:
    """Verifies logins with the help of identity providers."""

    def __init__(self, world: World, keyring: Keyring, providers: LoginProviders) -> None:
        self._world = world
        self._keyring = keyring
        self._providers = providers
        self._documents = ProviderDocuments(world, self._fetch_document)

    # -- OIDC --------------------------------------------------------------------------------------------------------

    async def build_auth_url(self, snapshot: Replica, method: AuthMethod, *, redirect_uri: str, nonce: str) -> str:
        """Return the URL of the identity provider at which the user logs in.

        Raises `Refusal` if the request is invalid, and `LoginRejected` if the provider cannot be reached.
        """
        config = _require_config(method)
        _check_redirect(config, redirect_uri)
        if not nonce:
            raise invalid_request("missing client nonce")
        metadata = await self._discover(config)
        verifier = (
            encode_base64url(self._world.token_bytes(VERIFIER_BYTES)) if config.oidc_enable_pkce is not False else ""
        )
        expires_at_s = self._world.now_ns() // SECOND + STATE_TTL_S
        state = LoginState(method.name, redirect_uri, nonce, verifier, expires_at_s)
        parameters = {
            "response_type": "code",
            "client_id": config.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *(config.oidc_scopes or ())))),
            "state": self._seal_state(snapshot, state),
            "nonce": nonce,
        }
        if verifier:
            challenge = hashlib.sha256(verifier.encode()).digest()
            parameters |= {"code_challenge": encode_base64url(challenge), "code_challenge_method": "S256"}
        joiner = "&" if "?" in metadata.authorization_endpoint else "?"
        return f"{metadata.authorization_endpoint}{joiner}{urlencode(parameters)}"

    async def complete_login(
        self,
        snapshot: Replica,
        method: AuthMethod,
        *,
        state: str,
        code: str,
        nonce: str,
        redirect_uri: str,
        issuer: str,
    ) -> dict[str, object]:
        """Exchange the authorization code of an OIDC login for tokens, and return the verified claims of the user.

        Raises `LoginRejected` if the provider rejects the code or a check fails.
        """
        config = _require_config(method)
        login_state = self._open_state(snapshot, state)
        if login_state.method != method.name or login_state.nonce != nonce or login_state.redirect_uri != redirect_uri:
            raise LoginRejected("the state belongs to another login: log in again")
        if has_passed(login_state.expires_at_s * SECOND, STATE_TTL_S * SECOND, self._world.now_ns()):
            raise LoginRejected("the login took too long: log in again")
        if not code:
            raise invalid_request("missing code")
        metadata = await self._discover(config)
        if issuer and issuer != metadata.issuer:
            raise LoginRejected(
                f"the reply comes from issuer {issuer}, but the login was started with {metadata.issuer}"
            )
        tokens = await self._exchange_code(snapshot, method, metadata, code=code, login_state=login_state)
        keys = self._make_key_source(metadata.jwks_uri, config.discovery_ca_pem or ())
        audiences = config.bound_audiences or (config.oidc_client_id,)
        claims = await self._verify_claims(
            config, tokens.id_token, keys, issuers=(metadata.issuer,), audiences=audiences, must_expire=True
        )
        if claims.get("nonce") != nonce:
            raise LoginRejected("the ID token was issued for another login: its nonce differs")
        if config.oidc_disable_user_info or not metadata.userinfo_endpoint or not tokens.access_token:
            return claims
        return {**await self._fetch_user_info(config, metadata, tokens.access_token, claims), **claims}

    async def _exchange_code(
        self, snapshot: Replica, method: AuthMethod, metadata: ProviderMetadata, *, code: str, login_state: LoginState
    ) -> ProviderTokens:
        """Exchange the authorization code for the provider's tokens. Raises `LoginRejected`."""
        config = _require_config(method)
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": login_state.redirect_uri}
        if login_state.verifier:
            form["code_verifier"] = login_state.verifier
        headers = {}
        secrets = self.open_secrets(snapshot, method)
        if config.oidc_client_assertion is not None:
            form |= {
                "client_id": config.oidc_client_id,
                "client_assertion_type": ASSERTION_TYPE,
                "client_assertion": self._sign_assertion(config, secrets, metadata),
            }
        else:
            pair = f"{_quote_form(config.oidc_client_id)}:{_quote_form(secrets.client_secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            reply = await self._providers.send(
                ProviderRequest(metadata.token_endpoint, form, headers, config.discovery_ca_pem or ())
            )
        except ProviderUnreachable as error:
            raise LoginRejected(str(error)) from error
        if reply.status != 200:
            raise LoginRejected(f"the identity provider rejected the authorization code (status {reply.status})")
        return _decode_json(reply.body, ProviderTokens, what="tokens")

    def _sign_assertion(self, config: AuthMethodConfig, secrets: MethodSecrets, metadata: ProviderMetadata) -> str:
        """Return a signed client assertion, a JWT with which this server authenticates at the provider instead of a
        secret.
        """
        assertion = config.oidc_client_assertion
        assert assertion is not None, "the caller checks that the method has one"
        now_s = self._world.now_ns() // SECOND
        claims = {
            "iss": config.oidc_client_id,
            "sub": config.oidc_client_id,
            "aud": list(assertion.audience or (metadata.issuer,)),
            "iat": now_s,
            "exp": now_s + STATE_TTL_S,
            "jti": self._world.new_id(),
        }
        header = {**(assertion.extra_headers or {}), "alg": assertion.key_algorithm or "RS256"}
        if assertion.private_key is not None and assertion.private_key.key_id:
            header[assertion.private_key.key_id_header or "kid"] = assertion.private_key.key_id
        try:
            key = load_assertion_key(secrets.assertion_key)
            return jwt.encode(header, claims, key, algorithms=[header["alg"]])
        except (UnusableKeys, JoseError, ValueError) as error:
            raise LoginRejected(f"cannot sign with the private key of the auth method: {error}") from error

    async def _fetch_user_info(
        self, config: AuthMethodConfig, metadata: ProviderMetadata, access_token: str, claims: Mapping[str, object]
    ) -> dict[str, object]:
        """Return further claims about the user from the provider's user info endpoint.

        Raises `LoginRejected` if they are about another user than `claims`.
        """
        headers = {"authorization": f"Bearer {access_token}"}
        reply = await self._fetch(metadata.userinfo_endpoint, config.discovery_ca_pem or (), headers=headers)
        user_info = _decode_json(reply.body, dict[str, object], what="the user info")
        if user_info.get("sub") != claims.get("sub"):
            raise LoginRejected("the user info of the identity provider belongs to another user")
        return user_info

    # -- JWT ---------------------------------------------------------------------------------------------------------

    async def verify_token(self, method: AuthMethod, login_token: str) -> dict[str, object]:
        """Verify a JWT of the user with the keys of the auth method, and return its claims. Raises `LoginRejected`."""
        config = _require_config(method)
        ca_pem = (config.jwks_ca_cert,) if config.jwks_ca_cert else config.discovery_ca_pem or ()
        issuers = config.bound_issuer or ()
        if config.jwt_validation_pub_keys:
            keys = _make_fixed_source(_load_method_keys(config.jwt_validation_pub_keys))
        elif config.jwks_url:
            keys = self._make_key_source(config.jwks_url, ca_pem)
        else:
            metadata = await self._discover(config)
            issuers = issuers or (metadata.issuer,)
            keys = self._make_key_source(metadata.jwks_uri, ca_pem)
        return await self._verify_claims(
            config, login_token, keys, issuers=issuers, audiences=config.bound_audiences or (), must_expire=False
        )

    # -- proof -------------------------------------------------------------------------------------------------------

    async def _verify_claims(
        self,
        config: AuthMethodConfig,
        text: str,
        keys: KeySource,
        *,
        issuers: tuple[str, ...],
        audiences: tuple[str, ...],
        must_expire: bool,
    ) -> dict[str, object]:
        """Return the claims of a token if its signature, issuer, audience and times are valid. Raises `LoginRejected`.

        `must_expire`: whether the token needs an expiration time, as ID tokens do. If no cached key of the provider fits,
        and the token names none of them, the keys are fetched again, because the provider may have a new one.
        """
        if len(text) > MAX_LOGIN_TOKEN_CHARS:
            raise LoginRejected(f"the token is longer than {MAX_LOGIN_TOKEN_CHARS:,} characters")
        allowed = [name for name in config.signing_algs or DEFAULT_ALGORITHMS if name in SIGNING_ALGORITHMS]
        if not allowed:  # The library would allow the algorithms that it recommends.
            raise LoginRejected(
                f"the auth method allows no supported signing algorithm: set SigningAlgs to some of "
                f"{', '.join(SIGNING_ALGORITHMS)}"
            )
        try:
            claims = read_unverified_claims(text)
        except ValueError as error:
            raise LoginRejected(str(error)) from None
        try:
            known = await keys(False)
            try:
                await _verify_signature(text, known, allowed)
            except (JoseError, ValueError, TypeError):
                if _names_known_key(text, known) or (newest := await keys(True)) is known:
                    raise
                await _verify_signature(text, newest, allowed)
        except (JoseError, ValueError, TypeError) as error:
            raise LoginRejected(f"invalid signature: {describe_jose_error(error, default='wrong key')}") from None
        _check_claim_types(claims)
        self._check_times(config, claims, must_expire=must_expire)
        if issuers and claims.get("iss") not in issuers:
            raise LoginRejected(f"the auth method does not accept issuer {claims.get('iss')!r}")
        audience_claim = claims.get("aud", [])
        token_audiences = audience_claim if isinstance(audience_claim, list) else [audience_claim]
        if audiences and set(audiences).isdisjoint(token_audiences):
            raise LoginRejected("the token was issued for another audience")
        if not audiences and token_audiences and not must_expire:
            raise LoginRejected("the token has an audience, but the auth method has none: set BoundAudiences")
        return claims

    def _check_times(self, config: AuthMethodConfig, claims: Mapping[str, object], *, must_expire: bool) -> None:
        """Raise `LoginRejected` unless the token is valid now, with the leeways of the auth method.

        A missing expiry or start time is derived from the other times.
        """
        now_s = self._world.now_ns() // SECOND
        skew_s = _resolve_leeway_s(config.clock_skew_leeway, DEFAULT_CLOCK_SKEW_S)
        issued, starts, ends = (_read_seconds(claims, name) for name in ("iat", "nbf", "exp"))
        if issued is None and starts is None and ends is None:
            raise LoginRejected("the token has neither an issue time nor an expiration time")
        if ends is None and must_expire:
            raise LoginRejected("the token has no expiration time")
        ends = (
            ends
            if ends is not None
            else (starts or issued or 0) + _resolve_leeway_s(config.expiration_leeway, DEFAULT_LEEWAY_S)
        )
        starts = (
            starts
            if starts is not None
            else (issued or ends) - _resolve_leeway_s(config.not_before_leeway, DEFAULT_LEEWAY_S)
        )
        if ends + skew_s <= now_s:
            raise LoginRejected("it has expired")
        if starts - skew_s > now_s:
            raise LoginRejected("the token is not valid yet")

    # -- metadata and keys of providers ------------------------------------------------------------------------------

    async def _discover(self, config: AuthMethodConfig) -> ProviderMetadata:
        """Return the endpoints of the provider, from its discovery document. Raises `LoginRejected`."""
        base = config.oidc_discovery_url.rstrip("/")
        url = f"{base}/.well-known/openid-configuration"
        found = _decode_json(
            await self._documents.get(url, config.discovery_ca_pem or ()), ProviderMetadata, what="its configuration"
        )
        if found.issuer.rstrip("/") != base:
            raise LoginRejected(f"the identity provider at {base} names itself {found.issuer}")
        return found

    def _make_key_source(self, url: str, ca_pem: tuple[str, ...]) -> KeySource:
        """Return the source of the public keys in the JSON Web Key set at the URL."""

        async def load_keys(must_refresh: bool) -> KeySet:
            """Return the keys. If those in the cache cannot be used, fetch them again. Raises `LoginRejected`."""
            if not must_refresh:
                with suppress(UnusableKeys):
                    return read_key_set(await self._documents.get(url, ca_pem), url)
            try:
                return read_key_set(await self._documents.refresh(url, ca_pem), url)
            except UnusableKeys as error:
                raise LoginRejected(str(error)) from None

        return load_keys

    async def _fetch_document(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Return the document at the URL. Raises `LoginRejected`."""
        return (await self._fetch(url, ca_pem)).body

    async def _fetch(
        self, url: str, ca_pem: tuple[str, ...], *, headers: Mapping[str, str] | None = None
    ) -> ProviderReply:
        """Return the reply to a GET of the URL. Raises `LoginRejected` if there is none or its status is not 200."""
        try:
            reply = await self._providers.send(ProviderRequest(url, None, headers or {}, ca_pem))
        except ProviderUnreachable as error:
            raise LoginRejected(str(error)) from error
        if reply.status != 200:
            raise LoginRejected(f"{url} returned status {reply.status}")
        return reply

    # -- sealed --------------------------------------------------------------------------------------------------------

    def open_secrets(self, snapshot: Replica, method: AuthMethod) -> MethodSecrets:
        """Return the decrypted secrets of an auth method; empty secrets if it has none. Raises `Refusal`."""
        if not method.secrets_sealed:
            return MethodSecrets()
        sealed = SealedData(method.secrets_sealed, method.sealed_with)
        return msgspec.json.decode(
            self._keyring.open(snapshot, sealed, context=make_auth_method_context(method.name)), type=MethodSecrets
        )

    def _seal_state(self, snapshot: Replica, state: LoginState) -> str:
        """Return the state of a login encrypted, as text for a URL."""
        sealed = self._keyring.seal(snapshot, msgspec.msgpack.encode(state), context=STATE_CONTEXT)
        return f"{sealed.key_id}.{encode_base64url(sealed.data)}"

    def _open_state(self, snapshot: Replica, text: str) -> LoginState:
        """Return the state of a login from the text that the client sent back. Raises `LoginRejected`."""
        key_id, _, data = text.partition(".")
        try:
            sealed = SealedData(decode_base64url(data), key_id)
            return msgspec.msgpack.decode(self._keyring.open(snapshot, sealed, context=STATE_CONTEXT), type=LoginState)
        except (ValueError, Refusal):
            raise LoginRejected("the state was not issued by this cluster: log in again") from None


def build_login_refusal(why: LoginRejected) -> Refusal:
    """Return the refusal for a rejected login."""
    return Refusal(RefusalCode.UNAUTHENTICATED, f"{LOGIN_REJECTED_PREFIX}{why}")


def _require_config(method: AuthMethod) -> AuthMethodConfig:
    """Return the configuration of the auth method. Raises `Refusal` if it has none."""
    if method.config is None:
        raise invalid_request(f'auth-method "{method.name}" has no configuration')
    return method.config


def _check_redirect(config: AuthMethodConfig, redirect_uri: str) -> None:
    """Raise `Refusal` unless the auth method allows the redirect URI."""
    if not is_allowed_redirect(config, redirect_uri):
        raise invalid_request(f"unauthorized redirect_uri: {redirect_uri}")


def is_allowed_redirect(config: AuthMethodConfig, redirect_uri: str) -> bool:
    """Return whether the auth method allows the redirect URI.

    It must equal an allowed one; for `http` URIs of the local machine, the port may differ.
    """
    allowed = config.allowed_redirect_uris or ()
    if redirect_uri in allowed:
        return True
    requested = _split_url(redirect_uri)
    if requested is None:
        return False
    return (requested.scheme, requested.hostname, requested.path) in _list_local_uris(allowed)


def leads_to_path(uri: str, paths: Sequence[str]) -> bool:
    """Return whether the path of a URI is one of these."""
    parts = _split_url(uri)
    return parts is not None and parts.path in paths


@lru_cache(maxsize=MAX_CACHED_URI_LISTS)
def _list_local_uris(uris: tuple[str, ...]) -> frozenset[tuple[str, str | None, str]]:
    """Return scheme, host and path of those URIs that name the local machine by `http`."""
    split = [parts for uri in uris if uri.startswith("http:") and (parts := _split_url(uri)) is not None]
    return frozenset(
        (parts.scheme, parts.hostname, parts.path)
        for parts in split
        if parts.hostname in ("localhost", "127.0.0.1", "::1")
    )


def _split_url(url: str) -> SplitResult | None:
    """Split a URL; `None` if it is invalid."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


async def _verify_signature(text: str, keys: KeySet, allowed: list[str]) -> None:
    """Verify the signature of a token. Raises `JoseError`, `ValueError` or `TypeError` if no key fits.

    If the token names one of the keys, only this key is tried; otherwise all keys are. Other tasks run after each key.
    """
    key_id = read_key_id(text)
    named = [key for key in keys.keys if key.kid and key.kid == key_id]
    error: Exception = ValueError("no key matches")
    for key in named or keys.keys:
        try:
            jwt.decode(text, key, algorithms=allowed)
            return
        except (JoseError, ValueError, TypeError) as failed:
            error = failed
        await asyncio.sleep(0)
    raise error


def _names_known_key(text: str, keys: KeySet) -> bool:
    """Whether the header of the token names one of these keys. Also true if the header is unreadable."""
    try:
        return read_key_id(text) in {key.kid for key in keys.keys if key.kid}
    except ValueError:
        return True


def _load_method_keys(texts: tuple[str, ...]) -> KeySet:
    """Return the public keys of an auth method, from PEM texts. Raises `LoginRejected` if one cannot be used."""
    try:
        return load_pem_keys(texts)
    except UnusableKeys as error:
        raise LoginRejected(str(error)) from None


def _make_fixed_source(keys: KeySet) -> KeySource:
    """Return the source of keys that the auth method contains."""

    async def load_keys(_must_refresh: bool) -> KeySet:
        return keys

    return load_keys


def _decode_json(body: bytes, reply_type: type[T], *, what: str) -> T:
    """Return the JSON reply of an identity provider as a value of the type.

    Raises `LoginRejected`, with `what` in its text.
    """
    try:
        return msgspec.json.decode(body, type=reply_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LoginRejected(f"cannot decode the reply of the identity provider: {what}") from None


def _read_seconds(claims: Mapping[str, object], name: str) -> int | None:
    """Return a time claim in whole seconds, or `None` if the token lacks it. Raises `LoginRejected` for another type."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > MAX_TIME_CLAIM_S:
        raise LoginRejected(f"the claim {name} is not a time: expected the seconds since 1970 as a number")
    return int(value)


def _check_claim_types(claims: Mapping[str, object]) -> None:
    """Raise `LoginRejected` if an issuer, a subject or an audience is not a text."""
    for name in ("iss", "sub"):
        if name in claims and not isinstance(claims[name], str):
            raise LoginRejected(f"the claim {name} is not a text")
    audience = claims.get("aud", "")
    texts = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(text, str) for text in texts):
        raise LoginRejected("the claim aud is neither a text nor a list of texts")


def _resolve_leeway_s(leeway_ns: int, default_s: int) -> int:
    """Return a configured leeway in seconds: 0 selects `default_s`, a negative value disables it."""
    if leeway_ns == 0:
        return default_s
    return max(0, leeway_ns // SECOND)


def _quote_form(text: str) -> str:
    return urlencode({"": text})[1:]
