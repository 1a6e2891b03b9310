"""Logins by OIDC and JWT over HTTP, with a provider that signs real tokens (reference 5.2, 5.3)."""

import asyncio
import base64
import json
from collections.abc import Mapping
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from joserfc.jwk import RSAKey
from msgspec.structs import replace
from starlette.types import Message

from tests.cluster.api.access import ApiCaller, an_operator
from tests.cluster.api.login_provider import CLIENT_ID, CLIENT_SECRET, LoginProvider
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.loop_holds import MeasuredCluster, measure_holds
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.server.cpu_budget import ReadLimits
from wharf.cluster.server.security.login_keys import MAX_LOGIN_KEYS
from wharf.cluster.server.security.login_providers import ProviderReply, ProviderRequest, ProviderUnreachable
from wharf.cluster.server.security.logins import MAX_LOGIN_TOKEN_CHARS
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES, ACL_TOKENS
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.times import SECOND

HERE = "http://localhost:4649/oidc/callback"
NONCE = "a nonce of the client"


class InMemoryProviders:
    """Sends requests to the application of the provider, in memory."""

    def __init__(self, provider: LoginProvider) -> None:
        self.provider = provider
        self.is_away = False

    async def send(self, request: ProviderRequest) -> ProviderReply:
        if self.is_away:
            raise ProviderUnreachable(f"{request.url} does not answer")
        body = urlencode(request.form).encode() if request.form is not None else b""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET" if request.form is None else "POST",
            "path": urlsplit(request.url).path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in request.headers.items()],
        }
        await self.provider.app(scope, receive, send)
        return ProviderReply(sent[0]["status"], sent[1]["body"])


class LoginSetup:
    """An operator, a provider, and a caller without a token."""

    def __init__(self, operator: ApiCaller) -> None:
        world = operator.server.world
        self.operator = operator
        self.anonymous = ApiCaller(operator.server)
        self.provider = LoginProvider(lambda: world.now_ns() // SECOND)
        self.providers = InMemoryProviders(self.provider)

    async def method(self, kind: str, *, name: str = "sso", config: Mapping[str, Any], **fields: Any) -> Any:
        """Store an auth method, and return it."""
        mappings = {"ClaimMappings": {"email": "email", "team": "team"}, "ListClaimMappings": {"groups": "groups"}}
        body = {
            "Name": name,
            "Type": kind,
            "TokenLocality": "local",
            "MaxTokenTTL": "1h",
            "Config": {**mappings, **config},
            **fields,
        }
        status, result = await self.operator.put("/v1/acl/auth-method", body)
        assert status == 200, result
        return result

    async def oidc(self, **config: Any) -> Any:
        return await self.method("OIDC", config={**OIDC, **config})

    async def jwt(self, **config: Any) -> Any:
        keys = {"JWTValidationPubKeys": [self.provider.public_pem], "BoundAudiences": [CLIENT_ID]}
        return await self.method("JWT", config={**keys, **config})

    async def rule(self, selector: str = "", *, bind: str = "policy", to: str = "reader") -> None:
        body = {"AuthMethod": "sso", "Selector": selector, "BindType": bind, "BindName": to}
        status, result = await self.operator.put("/v1/acl/binding-rule", body)
        assert status == 200, result

    async def begin(self, redirect_uri: str = HERE) -> tuple[int, Any]:
        body = {"AuthMethodName": "sso", "RedirectURI": redirect_uri, "ClientNonce": NONCE}
        return await self.anonymous.put("/v1/acl/oidc/auth-url", body)

    async def complete(self, **changed: str) -> tuple[int, Any]:
        status, result = await self.begin()
        assert status == 200, result
        back = self.provider.visit(result["AuthURL"])
        return await self.finish(back, **changed)

    async def finish(self, back: Mapping[str, str], **changed: str) -> tuple[int, Any]:
        """Send the second step of a login with the parameters that the provider returned."""
        body = {
            "AuthMethodName": "sso",
            "ClientNonce": NONCE,
            "State": back["state"],
            "Code": back["code"],
            "Iss": back["iss"],
            "RedirectURI": HERE,
        }
        return await self.anonymous.put("/v1/acl/oidc/complete-auth", {**body, **changed})

    async def log_in(self, token: str, method: str = "sso") -> tuple[int, Any]:
        return await self.anonymous.put("/v1/acl/login", {"AuthMethodName": method, "LoginToken": token})


OIDC = {
    "OIDCDiscoveryURL": "https://login.example",
    "OIDCClientID": CLIENT_ID,
    "OIDCClientSecret": CLIENT_SECRET,
    "AllowedRedirectURIs": [HERE],
}


async def a_login(cluster: ACluster) -> LoginSetup:
    operator = await an_operator(cluster)
    await operator.policy("reader", 'namespace "*" { policy = "read" }')
    login = LoginSetup(operator)
    operator.server.server.access.providers = login.providers
    return login


# -- OIDC


@in_virtual_time
async def test_a_login_at_the_provider_creates_a_token_that_expires() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule('"web" in list.groups')

        status, token = await login.complete()
        guest = ApiCaller(login.operator.server, token["SecretID"])
        before = await guest.get("/v1/jobs")
        await pass_time(3_601)

        result = (token["Name"], token["Type"], token["Policies"], token["Global"], token["ExpirationTTL"])
        assert (status, result) == (200, ("OIDC-sso", "client", ["reader"], False, "1h0m0s"))
        assert (before, (await guest.get("/v1/jobs"))[0]) == ((200, []), 403)


@in_virtual_time
async def test_the_auth_url_has_nonce_state_scopes_and_a_challenge() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc(OIDCScopes=["groups"])

        status, result = await login.begin()

        requests = {name: values[0] for name, values in parse_qs(urlsplit(result["AuthURL"]).query).items()}
        assert (status, result["AuthURL"].partition("?")[0]) == (200, "https://login.example/page")
        assert (requests["nonce"], requests["scope"], requests["client_id"]) == (NONCE, "openid groups", CLIENT_ID)
        assert (requests["response_type"], requests["code_challenge_method"]) == ("code", "S256")
        assert {"state", "code_challenge"} <= requests.keys()


@in_virtual_time
async def test_two_logins_never_share_a_state_or_a_challenge() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()

        requests = [parse_qs(urlsplit((await login.begin())[1]["AuthURL"]).query) for _ in range(2)]

        assert requests[0]["state"] != requests[1]["state"]
        assert requests[0]["code_challenge"] != requests[1]["code_challenge"]


@in_virtual_time
async def test_a_redirect_address_that_the_method_does_not_allow_is_refused() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc(AllowedRedirectURIs=["http://[", HERE])

        responses = [
            await login.begin(uri) for uri in ("http://evil.example/oidc/callback", HERE + "/more", "http://]")
        ]

        assert [status for status, _ in responses] == [400, 400, 400]
        assert responses[0][1] == "unauthorized redirect_uri: http://evil.example/oidc/callback"


@in_virtual_time
async def test_on_loopback_any_redirect_port_is_allowed() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()

        assert (await login.begin("http://localhost:9/oidc/callback"))[0] == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"State": "none of ours"},
        {"ClientNonce": "another"},
        {"RedirectURI": "http://localhost:9/oidc/callback"},
        {"Code": "guessed"},
        {"Iss": "https://evil.example"},
    ],
)
def test_a_second_login_step_that_does_not_match_the_first_is_refused(changed: dict[str, str]) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            await login.oidc()
            await login.rule()
            count = login.operator.server.replica.count_records(ACL_TOKENS)

            status, text = await login.complete(**changed)

            assert (status, text.startswith("unable to validate provided token: ")) == (401, True)
            assert login.operator.server.replica.count_records(ACL_TOKENS) == count

    refuse()


@in_virtual_time
async def test_a_code_can_be_used_once() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule()
        back = login.provider.visit((await login.begin())[1]["AuthURL"])

        first = await login.finish(back)

        assert (first[0], (await login.finish(back))[0]) == (200, 401)


@in_virtual_time
async def test_a_login_that_takes_too_long_must_start_again() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        back = login.provider.visit((await login.begin())[1]["AuthURL"])

        await pass_time(301)

        assert await login.finish(back) == (
            401,
            "unable to validate provided token: the login took too long: log in again",
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": "of another"},
        {"aud": "another client"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"exp": None},
    ],
)
def test_an_identity_token_for_another_login_is_refused(changed: dict[str, object]) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            await login.oidc()
            await login.rule()
            login.provider.changed = changed

            assert (await login.complete())[0] == 401

    refuse()


@in_virtual_time
async def test_claims_of_the_user_info_endpoint_are_used_unless_disabled() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule('value.team == "engines"')

        with_it = await login.complete()
        await login.oidc(OIDCDisableUserInfo=True)
        without = await login.complete()

        assert (with_it[0], without) == (200, (400, "no role or policy bindings matched"))


@in_virtual_time
async def test_user_info_of_another_user_is_refused() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule()
        login.provider.user_info = {"sub": "eve", "team": "engines"}

        assert (await login.complete())[0] == 401


@in_virtual_time
async def test_an_unreachable_provider_is_named_in_the_error() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        login.providers.is_away = True

        status, text = await login.begin()

        assert (status, "https://login.example/.well-known/openid-configuration does not answer" in text) == (401, True)


# -- JWT


@in_virtual_time
async def test_a_signed_token_of_another_issuer_is_exchanged_for_a_token() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt()
        await login.rule('value.email == "ada@example.com"')

        status, token = await login.log_in(login.provider.identity())

        assert (status, token["Name"], token["Policies"]) == (200, "JWT-sso", ["reader"])


@pytest.mark.parametrize("source", ["JWKSURL", "OIDCDiscoveryURL"])
def test_keys_are_read_from_the_configured_source(source: str) -> None:
    @in_virtual_time
    async def log_in() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            url = {"JWKSURL": "https://login.example/keys", "OIDCDiscoveryURL": "https://login.example"}[source]
            await login.method("JWT", config={source: url, "BoundAudiences": [CLIENT_ID]})
            await login.rule()

            first = await login.log_in(login.provider.identity())
            await login.log_in(login.provider.identity())

            assert first[0] == 200
            assert login.provider.requested_paths.count("keys") == 1  # Keys are cached for a few minutes.

    log_in()


async def a_login_by_jwks(cluster: ACluster) -> LoginSetup:
    """Return a login whose keys come from the provider and are in the cache."""
    login = await a_login(cluster)
    await login.method("JWT", config={"JWKSURL": "https://login.example/keys", "BoundAudiences": [CLIENT_ID]})
    await login.rule()
    assert (await login.log_in(login.provider.identity()))[0] == 200
    return login


def count_key_requests(login: LoginSetup) -> int:
    return login.provider.requested_paths.count("keys")


@pytest.mark.parametrize("names_keys", [True, False])
def test_a_token_with_a_new_key_of_the_provider_is_accepted_at_once(*, names_keys: bool) -> None:
    @in_virtual_time
    async def log_in() -> None:
        async with ACluster() as cluster:
            login = await a_login_by_jwks(cluster)
            login.provider.names_keys = names_keys
            await pass_time(60)
            login.provider.rotate("two")

            logins = await asyncio.gather(*(login.log_in(login.provider.identity()) for _ in range(5)))

            assert ([status for status, _ in logins], count_key_requests(login)) == ([200] * 5, 2)

    log_in()


@in_virtual_time
async def test_a_token_above_the_limit_of_characters_is_refused() -> None:
    async with ACluster() as cluster:
        login = await a_login_by_jwks(cluster)
        within = login.provider.identity(padding="x" * 11_500)
        above = login.provider.identity(padding="x" * 12_000)
        assert len(within) <= MAX_LOGIN_TOKEN_CHARS < len(above)

        accepted, refused = await login.log_in(within), await login.log_in(above)

        assert accepted[0] == 200
        assert (refused[0], "the token is longer than 16,384 characters" in refused[1]) == (401, True)


@pytest.mark.parametrize(("key_count", "status"), [(MAX_LOGIN_KEYS, 200), (MAX_LOGIN_KEYS + 1, 401)])
def test_a_provider_with_too_many_keys_is_refused(key_count: int, status: int) -> None:
    @in_virtual_time
    async def log_in() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            login.provider.key_count = key_count
            await login.method("JWT", config={"JWKSURL": "https://login.example/keys", "BoundAudiences": [CLIENT_ID]})
            await login.rule()

            reply = await login.log_in(login.provider.identity())

            assert reply[0] == status
            assert status == 200 or "https://login.example/keys has 101 keys, more than 100" in reply[1]

    log_in()


EXPENSIVE_PATTERN = "a[ab]{150}N"
LONG_CLAIM = "".join(Random(7).choices("ab", k=10_000)) + "end"
"""A search for the pattern takes about 8 ms, because it needs too many states for a table."""


async def a_login_with_expensive_rules(cluster: ACluster) -> LoginSetup:
    """Return a login whose provider sends a long claim, and many rules that search it with regular expressions."""
    login = await a_login(cluster)
    await login.jwt()
    for number in range(25):
        await login.rule(f'value.email matches "{EXPENSIVE_PATTERN}{number}"')
    await login.rule('value.email matches "end$"')
    return login


@in_virtual_time
async def test_expensive_selectors_of_binding_rules_hold_the_event_loop_only_shortly() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login_with_expensive_rules(cluster)
        token = login.provider.identity(email=LONG_CLAIM)

        with measure_holds() as holds:
            status, reply = await login.log_in(token)

        assert (status, reply["Policies"]) == (200, ["reader"])
        holds.require_short("a login")


@in_virtual_time
async def test_selectors_beyond_their_cpu_time_refuse_the_login() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login_with_expensive_rules(cluster)
        login.anonymous.server.server.read_limits = ReadLimits(filter_cpu_s=0.001)

        status, reply = await login.log_in(login.provider.identity(email=LONG_CLAIM))

        assert status == 400
        assert 'the selectors of the binding rules of auth method "sso" used more than 0.001 s of CPU time' in reply


@in_virtual_time
async def test_a_rule_that_changes_while_selectors_are_evaluated_is_evaluated_again() -> None:
    async with MeasuredCluster() as cluster:
        login = await a_login_with_expensive_rules(cluster)
        world, replica = login.operator.server.world, login.operator.server.replica
        run_off_loop, has_changed = world.run_off_loop, False

        async def change_last_rule_first(work: Any) -> Any:
            nonlocal has_changed
            if not has_changed:
                has_changed = True
                rule = next(rule for rule in replica.iter_all(ACL_BINDING_RULES) if "end$" in rule.selector)
                change = ACL_BINDING_RULES.build_put(replace(rule, selector='value.email == "nobody"'))
                await login.operator.server.server.writer.commit(
                    Write("test", Cause(CauseKind.REQUEST, "test"), [change])
                )
                await login.operator.server.server.writer.catch_up()
            return await run_off_loop(work)

        world.run_off_loop = change_last_rule_first  # type: ignore[method-assign]
        status, reply = await login.log_in(login.provider.identity(email=LONG_CLAIM))

        assert (status, has_changed, "no role or policy bindings matched" in reply) == (400, True, True)


@in_virtual_time
async def test_oidc_accepts_a_new_key_of_the_provider_at_once() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule()
        assert (await login.complete())[0] == 200
        await pass_time(60)
        login.provider.rotate("two")

        assert (await login.complete())[0] == 200


@in_virtual_time
async def test_tokens_that_name_unknown_keys_cause_one_request_in_ten_seconds() -> None:
    async with ACluster() as cluster:
        login = await a_login_by_jwks(cluster)
        await pass_time(60)
        claims = {"aud": CLIENT_ID, "exp": 2**40}
        strange = login.provider.sign(claims, key=RSAKey.generate_key(2048, {"kid": "strange"}))
        before = count_key_requests(login)

        statuses = []
        for _ in range(40):
            statuses.append((await login.log_in(strange))[0])
            await pass_time(0.5)

        assert (statuses, count_key_requests(login) - before) == ([401] * 40, 2)


@in_virtual_time
async def test_a_wrong_signature_of_a_known_key_causes_no_request() -> None:
    async with ACluster() as cluster:
        login = await a_login_by_jwks(cluster)
        await pass_time(60)
        wrong = login.provider.sign({"aud": CLIENT_ID, "exp": 2**40}, key=RSAKey.generate_key(2048, {"kid": "one"}))

        status, _ = await login.log_in(wrong)

        assert (status, count_key_requests(login)) == (401, 1)


@in_virtual_time
async def test_known_keys_are_used_while_the_provider_cannot_be_reached() -> None:
    async with ACluster() as cluster:
        login = await a_login_by_jwks(cluster)
        await pass_time(60)
        old = login.provider.identity()
        login.provider.rotate("two")
        login.providers.is_away = True

        refused, accepted = await login.log_in(login.provider.identity()), await login.log_in(old)

        assert (refused[0], "does not answer" in refused[1], accepted[0]) == (401, True, 200)


@pytest.mark.parametrize(
    "changed",
    [{"exp": 1}, {"aud": "another"}, {"nbf": 2**40}, {"aud": None}, {"exp": None, "iat": None}],
)
def test_an_invalid_jwt_is_refused(changed: dict[str, object]) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            await login.jwt()
            await login.rule()

            status, text = await login.log_in(login.provider.identity(**changed))

            assert (status, text.startswith("unable to validate provided token: ")) == (401, True), text

    refuse()


def sign_text(key: RSAKey, payload: str) -> str:
    """Return a token whose signature is valid, also if its payload is not JSON."""
    parts = [base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in ('{"alg":"RS256"}', payload)]
    private_key = key.private_key
    assert isinstance(private_key, RSAPrivateKey)
    signature = private_key.sign(".".join(parts).encode(), PKCS1v15(), SHA256())
    return ".".join([*parts, base64.urlsafe_b64encode(signature).decode().rstrip("=")])


@in_virtual_time
async def test_a_claim_of_a_wrong_type_does_not_count_as_missing() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt()
        await login.rule()
        now_s = login.provider.now_s()

        async def log_in(claims: str) -> tuple[int, Any]:
            base = {"aud": f'"{CLIENT_ID}"', "iat": str(now_s), "exp": str(now_s + 60), "email": '"ada"'}
            name, _, value = claims.partition("=")
            texts = {**base, name: value} if name else base
            payload = ",".join(f'"{key}":{text}' for key, text in texts.items())
            return await login.log_in(sign_text(login.provider.key, "{" + payload + "}"))

        valid = await log_in("")
        times = [f"{name}={value}" for name in ("exp", "nbf", "iat") for value in ("{}", "true", '"5"', "[]", "null")]
        texts = ["aud={}", 'aud=["wharf",{}]', "aud=5", "iss=[]", "iss=5", "sub=5", "sub=null"]
        numbers = ["exp=1e999", "iat=1e999", "exp=NaN", "exp=Infinity", "exp=" + "9" * 400, "nbf=-1e999"]
        unusual = ["email=" + "[" * 2_500 + "]" * 2_500, 'email="\\ud800"', "email=" + "[" * 40 + "]" * 40]
        refused = {claim[:40]: await log_in(claim) for claim in (*times, *texts, *numbers, *unusual)}

        assert valid[0] == 200, valid
        assert {claim: reply for claim, reply in refused.items() if reply[0] != 401} == {}
        assert refused["exp={}"][1] == (
            "unable to validate provided token: the claim exp is not a time: expected the seconds since 1970 as a number"
        )


@in_virtual_time
async def test_a_header_that_is_no_json_of_a_token_is_refused_with_a_text() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt()
        headers = (
            '{"alg":"\\ud800"}', '{"alg":"RS256","kid":"\\ud800"}', '{"alg":"RS256","kid":NaN}', "[]", "[" * 5_000,
            '{"alg":"RS256","x":' + "[" * 900 + "]" * 900 + "}", '{"alg":5}', '{"alg":["RS256"]}', '{"alg":{}}',
        )  # fmt: skip

        for header in headers:
            token = base64.urlsafe_b64encode(header.encode()).decode().rstrip("=") + ".e30.eHh4"
            status, text = await login.log_in(token)
            reply = await ApiCaller(login.operator.server, token).send_raw("GET", "/v1/jobs")

            assert (status, text.startswith("unable to validate provided token: ")) == (401, True), header
            assert reply.status == 403, header


@in_virtual_time
async def test_a_stored_method_with_unsupported_algorithms_only_permits_no_login() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt()
        await login.rule()
        server = login.operator.server.server
        method = server.replica.get(ACL_AUTH_METHODS, "sso")
        assert method is not None
        assert method.config is not None
        old = replace(method, config=replace(method.config, signing_algs=("HS256", "none")))
        change = ACL_AUTH_METHODS.build_put(old)
        await server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), [change]))
        await server.writer.catch_up()

        status, text = await login.log_in(login.provider.identity())

        assert (status, "allows no supported signing algorithm" in text) == (401, True), text


@in_virtual_time
async def test_a_login_ends_when_its_client_disconnects() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        waiting, ended, disconnected = asyncio.Event(), asyncio.Event(), asyncio.Event()

        class SilentProviders:
            async def send(self, _request: ProviderRequest) -> ProviderReply:
                waiting.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()
                raise AssertionError

        login.operator.server.server.access.providers = SilentProviders()
        body = json.dumps({"AuthMethodName": "sso", "RedirectURI": HERE, "ClientNonce": NONCE}).encode()
        api = login.operator.server.api
        request = asyncio.create_task(
            send_raw(api, "PUT", "/v1/acl/oidc/auth-url", body=body, disconnected=disconnected)
        )
        await waiting.wait()
        is_early = ended.is_set()

        disconnected.set()
        await ended.wait()
        await request

        assert not is_early


@in_virtual_time
async def test_a_login_gives_up_a_provider_that_takes_too_long_in_all() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()

        class SlowProviders:
            async def send(self, _request: ProviderRequest) -> ProviderReply:
                await asyncio.Event().wait()
                raise AssertionError

        login.operator.server.server.access.providers = SlowProviders()

        status, text = await login.begin()

        assert (status, "did not answer all requests within 25 s" in text) == (401, True), text


@in_virtual_time
async def test_a_jwt_signed_by_another_key_or_algorithm_or_unsigned_is_refused() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt()
        await login.rule()
        claims = {"aud": CLIENT_ID, "exp": 2**40, "email": "ada@example.com"}
        second = RSAKey.generate_key(2048, {"kid": "one"})
        unsigned = login.provider.sign(claims).rpartition(".")[0] + "."
        views = (
            login.provider.sign(claims, key=second),
            login.provider.sign(claims, algorithm="RS512"),
            unsigned,
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.",
            "no token",
            "",
        )

        assert [(await login.log_in(token))[0] for token in views] == [401] * len(views)


@in_virtual_time
async def test_an_unknown_method_or_one_of_another_type_is_refused() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()

        assert await login.log_in("x", "ghost") == (400, 'auth-method "ghost" not found')
        assert await login.log_in("x") == (400, 'auth-method "sso" is of type OIDC, not JWT')


@in_virtual_time
async def test_a_login_without_a_method_name_uses_the_default_method() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        keys = {"JWTValidationPubKeys": [login.provider.public_pem], "BoundAudiences": [CLIENT_ID]}
        await login.method("JWT", config=keys, Default=True)
        await login.rule()

        assert (await login.log_in(login.provider.identity(), ""))[0] == 200


@in_virtual_time
async def test_all_matching_binding_rules_apply_and_names_can_use_claims() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.method(
            "JWT",
            config={"JWTValidationPubKeys": [login.provider.public_pem], "BoundAudiences": [CLIENT_ID]},
            TokenNameFormat="${auth_method_name}/${value.email}",
        )
        await login.operator.policy("ops", "")
        await login.operator.put("/v1/acl/role", {"Name": "team-x", "Policies": [{"Name": "ops"}]})
        await login.rule()
        await login.rule('"ops" in list.groups', to="ops")
        await login.rule('"nobody" in list.groups', to="ghost")
        await login.rule(bind="role", to="team-${value.team}")

        _, token = await login.log_in(login.provider.identity(team="x"))

        assert (token["Name"], token["Policies"]) == ("sso/ada@example.com", ["ops", "reader"])
        assert [role["Name"] for role in token["Roles"]] == ["team-x"]


@in_virtual_time
async def test_a_rule_can_grant_management_and_without_a_match_no_token_is_created() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.jwt()
        nothing = await login.log_in(login.provider.identity())
        await login.rule(bind="management", to="")

        status, token = await login.log_in(login.provider.identity())

        assert nothing == (400, "no role or policy bindings matched")
        assert (status, token["Type"], token["Policies"]) == (200, "management", None)


# -- methods and rules


@in_virtual_time
async def test_secrets_of_a_method_are_never_shown_and_survive_writing_back_redacted_values() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule()
        reply = await login.operator.send_raw("GET", "/v1/acl/auth-method/sso")
        _, views = await login.operator.get("/v1/acl/auth-method/sso")

        await login.operator.put("/v1/acl/auth-method/sso", {**views, "MaxTokenTTL": "2h"})
        stored = login.operator.server.replica.get(ACL_AUTH_METHODS, "sso")

        assert (views["Config"]["OIDCClientSecret"], CLIENT_SECRET in reply.body.decode()) == ("redacted", False)
        assert CLIENT_SECRET not in repr(stored)
        status, token = await login.complete()
        assert (status, token["ExpirationTTL"]) == (200, "2h0m0s")


@in_virtual_time
async def test_methods_are_listed_as_stubs_and_deleted_with_their_rules() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        await login.rule()

        _, listed = await login.anonymous.get("/v1/acl/auth-methods")
        deleted = await login.operator.delete("/v1/acl/auth-method/sso")

        assert [(item["Name"], item["Type"], "Config" in item) for item in listed] == [("sso", "OIDC", False)]
        assert (deleted, (await login.operator.get("/v1/acl/binding-rules"))[1]) == ((200, ""), [])
        assert await login.operator.get("/v1/acl/auth-method/sso") == (404, "ACL auth-method not found")
        assert await login.operator.delete("/v1/acl/auth-method/sso") == (404, "ACL auth method not found")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"Name": "a", "Type": "SAML"}, "invalid type 'SAML': must be OIDC or JWT"),
        ({"Name": "a", "Type": "JWT", "MaxTokenTTL": "48h"}, "invalid MaxTokenTTL value '48h0m0s'"),
        ({"Name": "a", "Type": "JWT", "MaxTokenTTL": "soon"}, "MaxTokenTTL: "),
        ({"Name": "a", "Type": "OIDC", "Config": {}}, "config: OIDCDiscoveryURL is missing"),
    ],
)
def test_an_invalid_method_is_refused_and_changes_nothing(body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            status, result = await login.operator.put("/v1/acl/auth-method", body)

            assert (status, text in result) == (400, True), result
            assert login.operator.server.replica.count_records(ACL_AUTH_METHODS) == 0

    refuse()


@in_virtual_time
async def test_only_one_method_of_a_type_is_the_default() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.method("OIDC", config=OIDC, Default=True)
        body = {
            "Name": "b", "Type": "OIDC", "TokenLocality": "local", "MaxTokenTTL": "1h", "Default": True, "Config": OIDC,
        }  # fmt: skip

        status, text = await login.operator.put("/v1/acl/auth-method", body)

        assert (status, text) == (400, "default auth method for type OIDC already exists: sso")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"AuthMethod": "ghost", "BindType": "management"}, "ACL auth method ghost not found"),
        ({"AuthMethod": "sso", "BindType": "king", "BindName": "x"}, "unsupported bind type: king"),
        ({"AuthMethod": "sso", "BindType": "policy"}, "bind name is missing"),
        ({"AuthMethod": "sso", "BindType": "management", "BindName": "x"}, "bind name should be empty"),
        ({"AuthMethod": "sso", "BindType": "management", "Selector": "value. =="}, "selector is invalid: "),
        ({"ID": "ghost", "AuthMethod": "sso", "BindType": "management"}, "cannot find binding rule ghost"),
    ],
)
def test_an_invalid_binding_rule_is_refused(body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            login = await a_login(cluster)
            await login.oidc()
            status, result = await login.operator.put("/v1/acl/binding-rule", body)

            assert (status, text in result) == (400, True), result

    refuse()


@in_virtual_time
async def test_a_binding_rule_is_created_read_changed_and_deleted() -> None:
    async with ACluster() as cluster:
        login = await a_login(cluster)
        await login.oidc()
        body = {"AuthMethod": "sso", "BindType": "policy", "BindName": "reader"}

        _, created = await login.operator.put("/v1/acl/binding-rule", body)
        path = f"/v1/acl/binding-rule/{created['ID']}"
        _, changed = await login.operator.put(path, {**created, "Description": "all"})

        assert await login.operator.get(path) == (200, changed)
        assert await login.operator.delete(path) == (200, "")
        assert await login.operator.get(path) == (404, "ACL binding rule not found")
        assert await login.operator.delete(path) == (404, "ACL binding rule not found")
