"""What callers without a token can cause with logins: requests to the provider, CPU time on the event loop, and slots."""

import asyncio
import base64
import json
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from tests.cluster.api.login_provider import CLIENT_ID
from tests.cluster.api.test_logins import HERE, LoginSetup, a_login
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.loop_holds import MeasuredCluster, measure_holds
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.admission import DEFAULT_LIMITS, AdmissionController, AdmissionLimit, RequestClass
from wharf.cluster.server.security.login_keys import MAX_LOGIN_KEYS
from wharf.cluster.server.security.login_providers import ProviderReply, ProviderRequest, ProviderUnreachable

JWKS = {"JWKSURL": "https://login.example/keys", "BoundAudiences": [CLIENT_ID]}
LONG_EXPONENT = {
    "kty": "RSA", "kid": "one", "e": "_" * 40, "n": RSAKey.generate_key(2048).as_dict(private=False)["n"],
}  # fmt: skip


class HeldProviders:
    """Sends requests to other providers, once they may be sent."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.may_reply = asyncio.Event()
        self.requested: list[str] = []

    async def send(self, request: ProviderRequest) -> ProviderReply:
        self.requested.append(request.url)
        await self.may_reply.wait()
        reply: ProviderReply = await self._inner.send(request)
        return reply


class FixedProvider:
    """A provider with a fixed document of keys, or without a reply."""

    def __init__(self, document: object = None) -> None:
        self.document = document
        self.request_count = 0

    async def send(self, request: ProviderRequest) -> ProviderReply:
        self.request_count += 1
        if self.document is None:
            raise ProviderUnreachable(f"{request.url} does not answer")
        return ProviderReply(200, json.dumps(self.document).encode())


def hold_provider(login: LoginSetup) -> HeldProviders:
    """Let no request to the provider get a reply yet. Call this before the first login."""
    held = HeldProviders(login.providers)
    login.operator.server.server.access.providers = held
    return held


async def a_login_with(cluster: ACluster, document: object = None) -> tuple[LoginSetup, FixedProvider]:
    """Return logins with a provider that has these keys."""
    login = await a_login(cluster)
    provider = FixedProvider(document)
    login.operator.server.server.access.providers = provider
    await login.method("JWT", config=JWKS)
    return login, provider


# -- requests to the provider ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_logins_at_the_same_time_fetch_each_document_once() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        held = hold_provider(login)
        await login.method("JWT", config={"OIDCDiscoveryURL": "https://login.example", "BoundAudiences": [CLIENT_ID]})
        await login.rule()
        token = login.provider.identity()
        logins = [cluster.start(login.log_in(token), name=f"logs in {n}") for n in range(20)]
        await pass_time(0.1)
        held.may_reply.set()

        statuses = {status for status, _ in await asyncio.gather(*logins)}

        assert statuses == {200}
        assert held.requested == [
            "https://login.example/.well-known/openid-configuration",
            "https://login.example/keys",
        ]


@in_virtual_time
async def test_a_provider_that_does_not_answer_gets_one_request_in_five_seconds() -> None:
    async with ACluster() as cluster:
        login, provider = await a_login_with(cluster)
        token = login.provider.identity()

        replies = [await login.log_in(token) for _ in range(50)]

        assert {status for status, _ in replies} == {401}
        assert "https://login.example/keys does not answer" in replies[-1][1]
        assert provider.request_count == 1


@in_virtual_time
async def test_keys_that_cannot_be_used_are_fetched_again_after_ten_seconds() -> None:
    async with ACluster() as cluster:
        login, provider = await a_login_with(cluster, {"keys": [LONG_EXPONENT]})
        await login.rule()
        token = login.provider.identity()
        refused = [await login.log_in(token) for _ in range(50)]
        fetch_count = provider.request_count

        provider.document = KeySet([login.provider.key]).as_dict(private=False)
        await pass_time(11)
        accepted, _ = await login.log_in(token)

        assert {status for status, _ in refused} == {401}
        assert (fetch_count, accepted) == (1, 200)


# -- slots -----------------------------------------------------------------------------------------------------------


def limit_logins(login: LoginSetup, max_in_flight: int) -> None:
    """Give the server an application that admits only some logins at a time."""
    server = login.operator.server
    limits = {
        **DEFAULT_LIMITS,
        RequestClass.LOGIN: AdmissionLimit(max_in_flight, returns_per_s=1.0, max_retry_after_s=30),
    }
    server.api = server.exchange.api = server.build_api(admission=AdmissionController(server.server, limits))


@in_virtual_time
async def test_a_flood_of_logins_refuses_further_logins_and_nothing_else() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        limit_logins(login, 3)
        held = hold_provider(login)
        await login.method("JWT", config=JWKS)
        token = login.provider.identity()
        logins = [cluster.start(login.log_in(token), name=f"logs in {n}") for n in range(3)]
        await pass_time(0.1)

        refused = await send_raw(login.operator.server.api, "PUT", "/v1/acl/login", body=b"{}")
        write = await login.operator.put("/v1/namespace/team", {"Name": "team"})
        held.may_reply.set()
        await asyncio.gather(*logins)

        assert (refused.status, "retry-after" in refused.headers, write[0]) == (503, True, 200)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/acl/login",
        "/v1/acl/oidc/auth-url",
        "/v1/acl/oidc/complete-auth",
        "/v1/acl/token/onetime/exchange",
        "/v1/acl/bootstrap",
    ],
)
def test_all_ways_to_get_a_token_without_one_count_as_logins(path: str) -> None:
    @in_virtual_time
    async def send() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            limit_logins(login, 0)

            assert (await login.anonymous.send_raw("PUT", path, {})).status == 503

    send()


# -- CPU time --------------------------------------------------------------------------------------------------------


def a_signed_token(login: LoginSetup, key: ECKey, algorithm: str) -> str:
    now_s = login.provider.now_s()
    claims = {"aud": CLIENT_ID, "iat": now_s, "exp": now_s + 300}
    return jwt.encode({"alg": algorithm}, claims, key, algorithms=[algorithm])


@in_virtual_time
async def test_many_expensive_keys_of_a_provider_hold_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login(cluster)
        keys = [ECKey.generate_key("P-521").as_dict(private=False) for _ in range(MAX_LOGIN_KEYS)]
        provider = FixedProvider({"keys": keys})
        login.operator.server.server.access.providers = provider
        await login.method("JWT", config={**JWKS, "SigningAlgs": ["ES512"]})
        token = a_signed_token(login, ECKey.generate_key("P-521"), "ES512")

        with measure_holds() as holds:
            status, _ = await login.log_in(token)

        assert status == 401
        holds.require_short("a token that no key fits")


@in_virtual_time
async def test_an_rsa_key_with_a_long_exponent_is_refused() -> None:
    async with ACluster() as cluster:
        login, _ = await a_login_with(cluster, {"keys": [LONG_EXPONENT]})

        status, text = await login.log_in(login.provider.identity())

        assert status == 401
        assert "cannot use the keys at https://login.example/keys: the exponent of an RSA key has 240 bits" in text


@in_virtual_time
async def test_an_rsa_key_that_is_too_long_is_refused() -> None:
    async with ACluster() as cluster:
        login, _ = await a_login_with(cluster, {"keys": [{"kty": "RSA", "kid": "one", "e": "AQAB", "n": "_" * 2_000}]})

        status, text = await login.log_in(login.provider.identity())

        assert status == 401
        assert "an RSA key has 12000 bits, more than 8192" in text


@in_virtual_time
async def test_a_private_key_of_a_provider_holds_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        number = base64.urlsafe_b64encode(Random(1).randbytes(1_024)).decode().rstrip("=")
        key = {"kty": "RSA", "kid": "one", "n": number, "e": "AQAB", "d": number}
        login, _ = await a_login_with(cluster, {"keys": [key]})

        with measure_holds() as holds:
            status, _ = await login.log_in(login.provider.identity())

        assert status == 401
        holds.require_short("a login with a private key of a provider")


@in_virtual_time
async def test_an_auth_method_with_too_many_public_keys_accepts_no_login() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt(JWTValidationPubKeys=[login.provider.public_pem] * (MAX_LOGIN_KEYS + 1))

        status, text = await login.log_in(login.provider.identity())

        assert (status, "the auth method has 101 public keys, more than 100" in text) == (401, True)


@in_virtual_time
async def test_the_key_of_a_client_assertion_holds_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login(cluster)
        key = generate_private_key(65_537, 4_096)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        assertion = {"PrivateKey": {"PemKey": pem}, "KeySource": "private_key"}
        await login.oidc(OIDCClientSecret="", OIDCClientAssertion=assertion)

        with measure_holds() as holds:
            status, text = await login.complete()

        assert (status, "rejected the authorization code" in text) == (401, True)
        holds.require_short("a login with a client assertion")


@in_virtual_time
async def test_many_redirect_addresses_hold_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login(cluster)
        uris = [f"http://localhost:{number}/callback/{number}" for number in range(999)]
        await login.oidc(AllowedRedirectURIs=[*uris, HERE])
        path = "x" * 20_000

        with measure_holds() as holds:
            refused, _ = await login.begin(f"http://localhost:9/{path}")
            accepted, _ = await login.begin("http://localhost:77/callback/4")

        assert (refused, accepted) == (400, 200)
        holds.require_short("a login with many redirect addresses")


@in_virtual_time
async def test_many_audiences_hold_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login(cluster)
        await login.jwt(BoundAudiences=[f"audience {number}" for number in range(5_000)])
        token = login.provider.identity(aud=[f"b{number}" for number in range(1_400)])

        with measure_holds() as holds:
            status, text = await login.log_in(token)

        assert (status, "for another audience" in text) == (401, True)
        holds.require_short("a login with many audiences")


@in_virtual_time
async def test_many_mapped_claims_hold_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login(cluster)
        paths = {f"/a{'/a' * 400}/{number}": f"n{number}" for number in range(1_000)}
        await login.jwt(ClaimMappings=paths)
        nested: dict[str, object] = {}
        for _ in range(25):
            nested = {"a": nested}

        with measure_holds() as holds:
            status, _ = await login.log_in(login.provider.identity(**nested))

        assert status == 400
        holds.require_short("a login with many mapped claims")
