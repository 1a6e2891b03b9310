"""Logins by OIDC and JWT: what is asked of a provider, and whether what it says is proven (reference 5.2, 5.3).

It ends with claims; which token they give is decided by `operations.logins`. What a login must remember between its two
steps goes out with it, sealed in its `state`: any process of any server can finish it.
"""

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from wharf.cluster.operations.keyring import make_auth_method_context
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.server.security.login_providers import (
    LoginProviders,
    ProviderReply,
    ProviderRequest,
    ProviderUnreachable,
)
from wharf.cluster.state import Replica
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodConfig
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import SECOND
from wharf.world import World

T = TypeVar("T")

STATE_TTL_S: Final = 300
"""So long may somebody take at the provider's page."""

DEFAULT_LEEWAY_S: Final = 150
"""For expiry and not-before, where the method does not say; and a minute for clocks that differ."""

DEFAULT_CLOCK_SKEW_S: Final = 60
CACHE_TTL_S: Final = 600.0
MAX_CACHED_DOCUMENTS: Final = 100
SUPPORTED_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
)
DEFAULT_ALGORITHMS: Final = ("RS256",)
VERIFIER_BYTES: Final = 48
STATE_CONTEXT: Final = "login state"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class LoginRejected(Exception):
    """What somebody shows proves nothing. The message says why."""


class MethodSecrets(msgspec.Struct, frozen=True):
    """What is kept sealed of a method's configuration."""

    client_secret: str = ""
    assertion_key: str = ""


class LoginState(msgspec.Struct, frozen=True, array_like=True):
    """What the second step must know of the first."""

    method: str
    redirect_uri: str
    nonce: str
    verifier: str
    expires_at_s: int


class ProviderMetadata(msgspec.Struct, frozen=True):
    """Where a provider's doors are, as it says itself."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    userinfo_endpoint: str = ""
    jwks_uri: str = ""


class ProviderTokens(msgspec.Struct, frozen=True):
    id_token: str = ""
    access_token: str = ""


class LoginVerifier:
    def __init__(self, world: World, ring: Keyring, providers: LoginProviders) -> None:
        self._world = world
        self._ring = ring
        self._providers = providers
        self._kept: OrderedDict[tuple[str, ...], tuple[float, bytes]] = OrderedDict()

    # -- OIDC --------------------------------------------------------------------------------------------------------

    async def build_auth_url(self, snapshot: Replica, method: AuthMethod, *, redirect_uri: str, nonce: str) -> str:
        """The provider's page where somebody says who they are."""
        config = _config_of(method)
        _check_redirect(config, redirect_uri)
        if not nonce:
            raise invalid_request("missing client nonce")
        discovered = await self._discover(config)
        verifier = _text_of(self._world.token_bytes(VERIFIER_BYTES)) if config.oidc_enable_pkce is not False else ""
        expires_at_s = self._world.now_ns() // SECOND + STATE_TTL_S
        state = LoginState(method.name, redirect_uri, nonce, verifier, expires_at_s)
        asked = {
            "response_type": "code",
            "client_id": config.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *(config.oidc_scopes or ())))),
            "state": self._seal_state(snapshot, state),
            "nonce": nonce,
        }
        if verifier:
            challenge = hashlib.sha256(verifier.encode()).digest()
            asked |= {"code_challenge": _text_of(challenge), "code_challenge_method": "S256"}
        joiner = "&" if "?" in discovered.authorization_endpoint else "?"
        return f"{discovered.authorization_endpoint}{joiner}{urlencode(asked)}"

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
        """The claims of whoever came back from the provider with this code."""
        config = _config_of(method)
        begun = self._open_state(snapshot, state)
        if begun.method != method.name or begun.nonce != nonce or begun.redirect_uri != redirect_uri:
            raise LoginRejected("the state is of another login: begin again")
        if begun.expires_at_s <= self._world.now_ns() // SECOND:
            raise LoginRejected("the login took too long: begin again")
        if not code:
            raise invalid_request("missing code")
        discovered = await self._discover(config)
        if issuer and issuer != discovered.issuer:
            raise LoginRejected(f"the answer comes from {issuer}, the login was begun with {discovered.issuer}")
        tokens = await self._tokens(snapshot, method, discovered, code=code, begun=begun)
        keys = await self._keys_at(discovered.jwks_uri, config.discovery_ca_pem or ())
        audiences = config.bound_audiences or (config.oidc_client_id,)
        claims = self._proven(
            config, tokens.id_token, keys, issuers=(discovered.issuer,), audiences=audiences, must_expire=True
        )
        if claims.get("nonce") != nonce:
            raise LoginRejected("the identity was made for another login: its nonce differs")
        if config.oidc_disable_user_info or not discovered.userinfo_endpoint or not tokens.access_token:
            return claims
        return {**await self._user_info(config, discovered, tokens.access_token, claims), **claims}

    async def _tokens(
        self, snapshot: Replica, method: AuthMethod, discovered: ProviderMetadata, *, code: str, begun: LoginState
    ) -> ProviderTokens:
        config = _config_of(method)
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": begun.redirect_uri}
        if begun.verifier:
            form["code_verifier"] = begun.verifier
        headers = {}
        secrets = self.open_secrets(snapshot, method)
        if config.oidc_client_assertion is not None:
            form |= {
                "client_id": config.oidc_client_id,
                "client_assertion_type": ASSERTION_TYPE,
                "client_assertion": self._assertion(config, secrets, discovered),
            }
        else:
            pair = f"{_quoted(config.oidc_client_id)}:{_quoted(secrets.client_secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            reply = await self._providers.send(
                ProviderRequest(discovered.token_endpoint, form, headers, config.discovery_ca_pem or ())
            )
        except ProviderUnreachable as away:
            raise LoginRejected(str(away)) from away
        if reply.status != 200:
            raise LoginRejected(f"the provider takes the code for none of its own (status {reply.status})")
        return _decoded(reply.body, ProviderTokens, what="tokens")

    def _assertion(self, config: AuthMethodConfig, secrets: MethodSecrets, discovered: ProviderMetadata) -> str:
        """Proof of ourselves to the provider, signed by the method's private key."""
        wanted = config.oidc_client_assertion
        assert wanted is not None, "asked for only where the method has one"
        now_s = self._world.now_ns() // SECOND
        claims = {
            "iss": config.oidc_client_id,
            "sub": config.oidc_client_id,
            "aud": list(wanted.audience or (discovered.issuer,)),
            "iat": now_s,
            "exp": now_s + STATE_TTL_S,
            "jti": self._world.new_id(),
        }
        header = {**(wanted.extra_headers or {}), "alg": wanted.key_algorithm or "RS256"}
        if wanted.private_key is not None and wanted.private_key.key_id:
            header[wanted.private_key.key_id_header or "kid"] = wanted.private_key.key_id
        try:
            key = RSAKey.import_key(secrets.assertion_key)
            return jwt.encode(header, claims, key, algorithms=[header["alg"]])
        except (JoseError, ValueError) as error:
            raise LoginRejected(f"the method's private key cannot sign: {error}") from error

    async def _user_info(
        self, config: AuthMethodConfig, discovered: ProviderMetadata, access_token: str, claims: Mapping[str, object]
    ) -> dict[str, object]:
        """More that the provider says of the same person."""
        headers = {"authorization": f"Bearer {access_token}"}
        reply = await self._fetched(discovered.userinfo_endpoint, config.discovery_ca_pem or (), headers=headers)
        told = _decoded(reply.body, dict[str, object], what="what it says of the person")
        if told.get("sub") != claims.get("sub"):
            raise LoginRejected("what the provider says is of another person")
        return told

    # -- JWT ---------------------------------------------------------------------------------------------------------

    async def verify_token(self, method: AuthMethod, login_token: str) -> dict[str, object]:
        """The claims of a signed token that somebody brings along."""
        config = _config_of(method)
        ca_pem = (config.jwks_ca_cert,) if config.jwks_ca_cert else config.discovery_ca_pem or ()
        issuers = config.bound_issuer or ()
        if config.jwt_validation_pub_keys:
            keys = _pem_keys(config.jwt_validation_pub_keys)
        elif config.jwks_url:
            keys = await self._keys_at(config.jwks_url, ca_pem)
        else:
            discovered = await self._discover(config)
            issuers = issuers or (discovered.issuer,)
            keys = await self._keys_at(discovered.jwks_uri, ca_pem)
        return self._proven(
            config, login_token, keys, issuers=issuers, audiences=config.bound_audiences or (), must_expire=False
        )

    # -- proof -------------------------------------------------------------------------------------------------------

    def _proven(
        self,
        config: AuthMethodConfig,
        text: str,
        keys: KeySet,
        *,
        issuers: tuple[str, ...],
        audiences: tuple[str, ...],
        must_expire: bool,
    ) -> dict[str, object]:
        """The claims, if a key of the provider signed them, for us, and they hold now."""
        allowed = [name for name in config.signing_algs or DEFAULT_ALGORITHMS if name in SUPPORTED_ALGORITHMS]
        try:
            claims: dict[str, object] = dict(_decode_by_any(text, keys, allowed))
        except (JoseError, ValueError, TypeError) as error:
            raise LoginRejected(f"its signature does not hold: {_said(error)}") from None
        self._check_times(config, claims, must_expire=must_expire)
        if issuers and claims.get("iss") not in issuers:
            raise LoginRejected(f"its issuer {claims.get('iss')!r} is not one that this method takes")
        given = claims.get("aud", [])
        told = given if isinstance(given, list) else [given]
        if audiences and not any(audience in told for audience in audiences):
            raise LoginRejected("it was made for another audience")
        if not audiences and told and not must_expire:
            raise LoginRejected("it names an audience, and the method has none: set BoundAudiences")
        return claims

    def _check_times(self, config: AuthMethodConfig, claims: Mapping[str, object], *, must_expire: bool) -> None:
        now_s = self._world.now_ns() // SECOND
        skew_s = _leeway_s(config.clock_skew_leeway, DEFAULT_CLOCK_SKEW_S)
        issued, starts, ends = (_seconds(claims.get(name)) for name in ("iat", "nbf", "exp"))
        if issued is None and starts is None and ends is None:
            raise LoginRejected("it says neither when it was made nor how long it holds")
        if ends is None and must_expire:
            raise LoginRejected("it has no end")
        ends = (
            ends
            if ends is not None
            else (starts or issued or 0) + _leeway_s(config.expiration_leeway, DEFAULT_LEEWAY_S)
        )
        starts = (
            starts if starts is not None else (issued or ends) - _leeway_s(config.not_before_leeway, DEFAULT_LEEWAY_S)
        )
        if ends + skew_s <= now_s:
            raise LoginRejected("it has expired")
        if starts - skew_s > now_s:
            raise LoginRejected("it does not hold yet")

    # -- what providers say of themselves ------------------------------------------------------------------------------

    async def _discover(self, config: AuthMethodConfig) -> ProviderMetadata:
        base = config.oidc_discovery_url.rstrip("/")
        url = f"{base}/.well-known/openid-configuration"
        found = _decoded(
            await self._known(url, config.discovery_ca_pem or ()), ProviderMetadata, what="its configuration"
        )
        if found.issuer.rstrip("/") != base:
            raise LoginRejected(f"the provider at {base} calls itself {found.issuer}")
        return found

    async def _keys_at(self, url: str, ca_pem: tuple[str, ...]) -> KeySet:
        found = _decoded(await self._known(url, ca_pem), dict[str, Any], what="its keys")
        try:
            return KeySet.import_key_set(found)  # type: ignore[arg-type]  # what is no set of keys it refuses itself
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise LoginRejected(f"the keys at {url} cannot be read: {_said(error)}") from None

    async def _known(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """What is at the address, as it was a few minutes ago at most."""
        key = (url, *ca_pem)
        now_s = self._world.monotonic_s()
        kept = self._kept.get(key)
        if kept is not None and now_s - kept[0] < CACHE_TTL_S:
            return kept[1]
        body = (await self._fetched(url, ca_pem)).body
        self._kept[key] = (now_s, body)
        while len(self._kept) > MAX_CACHED_DOCUMENTS:
            self._kept.popitem(last=False)
        return body

    async def _fetched(
        self, url: str, ca_pem: tuple[str, ...], *, headers: Mapping[str, str] | None = None
    ) -> ProviderReply:
        try:
            reply = await self._providers.send(ProviderRequest(url, None, headers or {}, ca_pem))
        except ProviderUnreachable as away:
            raise LoginRejected(str(away)) from away
        if reply.status != 200:
            raise LoginRejected(f"{url} answers with status {reply.status}")
        return reply

    # -- sealed --------------------------------------------------------------------------------------------------------

    def open_secrets(self, snapshot: Replica, method: AuthMethod) -> MethodSecrets:
        if not method.secrets_sealed:
            return MethodSecrets()
        sealed = SealedData(method.secrets_sealed, method.sealed_with)
        return msgspec.json.decode(
            self._ring.open(snapshot, sealed, context=make_auth_method_context(method.name)), type=MethodSecrets
        )

    def _seal_state(self, snapshot: Replica, state: LoginState) -> str:
        sealed = self._ring.seal(snapshot, msgspec.msgpack.encode(state), context=STATE_CONTEXT)
        return f"{sealed.key_id}.{_text_of(sealed.data)}"

    def _open_state(self, snapshot: Replica, text: str) -> LoginState:
        key_id, _, data = text.partition(".")
        try:
            sealed = SealedData(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)), key_id)
            return msgspec.msgpack.decode(self._ring.open(snapshot, sealed, context=STATE_CONTEXT), type=LoginState)
        except (ValueError, Refusal):
            raise LoginRejected("the state is none of ours: begin again") from None


def build_login_refusal(why: LoginRejected) -> Refusal:
    """The answer to whoever shows what proves nothing."""
    return Refusal(RefusalCode.UNAUTHENTICATED, f"unable to validate provided token: {why}")


def _config_of(method: AuthMethod) -> AuthMethodConfig:
    if method.config is None:
        raise invalid_request(f'auth-method "{method.name}" has no configuration')
    return method.config


def _check_redirect(config: AuthMethodConfig, redirect_uri: str) -> None:
    """Exactly one of those allowed; on the own machine of whoever logs in, any port."""
    for allowed in config.allowed_redirect_uris or ():
        if redirect_uri == allowed:
            return
        given, known = _split(redirect_uri), _split(allowed)
        if given is None or known is None:
            continue
        is_own_machine = known.hostname in ("localhost", "127.0.0.1", "::1") and known.scheme == "http"
        if is_own_machine and (given.scheme, given.hostname, given.path) == (known.scheme, known.hostname, known.path):
            return
    raise invalid_request(f"unauthorized redirect_uri: {redirect_uri}")


def _split(url: str) -> SplitResult | None:
    """None for what is no address at all."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _decode_by_any(text: str, keys: KeySet, allowed: list[str]) -> dict[str, Any]:
    """By the key that the token names; where it names none, by the one that fits."""
    try:
        return jwt.decode(text, keys, algorithms=allowed).claims
    except JoseError:
        if _names_a_key(text, keys):
            raise
    error: Exception = ValueError("no key fits")
    for key in keys.keys:
        try:
            return jwt.decode(text, key, algorithms=allowed).claims
        except (JoseError, ValueError) as failed:
            error = failed
    raise error


def _names_a_key(text: str, keys: KeySet) -> bool:
    head = text.partition(".")[0]
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, msgspec.DecodeError):
        return True
    return isinstance(header, dict) and header.get("kid") in {key.kid for key in keys.keys if key.kid}


def _pem_keys(texts: tuple[str, ...]) -> KeySet:
    found: list[RSAKey | ECKey | OKPKey] = []
    for text in texts:
        key = _pem_key(text)
        if key is None:
            raise LoginRejected("a public key of the method cannot be read: PEM is expected")
        found.append(key)
    return KeySet(found)  # type: ignore[arg-type]  # a list of one kind each is asked for, and any kind is taken


def _pem_key(text: str) -> RSAKey | ECKey | OKPKey | None:
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return None
    match key:
        case RSAPublicKey():
            return RSAKey.import_key(key)
        case EllipticCurvePublicKey():
            return ECKey.import_key(key)
        case Ed25519PublicKey():
            return OKPKey.import_key(key)
    return None


def _decoded(body: bytes, kind: type[T], *, what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LoginRejected(f"the provider's answer cannot be read: {what}") from None


def _seconds(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _leeway_s(leeway_ns: int, usual_s: int) -> int:
    """Zero stands for the usual one, and less than zero for none."""
    if leeway_ns == 0:
        return usual_s
    return max(0, leeway_ns // SECOND)


def _text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _quoted(text: str) -> str:
    return urlencode({"": text})[1:]


def _said(error: Exception) -> str:
    return str(getattr(error, "description", "") or error).strip().rstrip(":") or "wrong key"
