"""JSON Web Tokens that the gateway verifies with the public keys of their issuer."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from tests.limits.decision_services import AdvancingWorld
from tests.limits.gateway.code_host import CodeHost
from tests.limits.gateway.running_gateway import ReceivedRequest, RunningGateway, ScriptedService, run_gateway
from tests.limits.gateway.test_opaque_credentials import RULES, get_limit
from wharf.limits.config.credential_settings import TokenSettings
from wharf.limits.credentials.tokens import TokenVerifier
from wharf.world.key_sets import read_public_keys

ISSUER = "https://id.example"
FIRST_KEY = RSAKey.generate_key(2_048, {"kid": "first"})
SECOND_KEY = ECKey.generate_key("P-256", {"kid": "second"})
OTHER_KEY = RSAKey.generate_key(2_048, {"kid": "first"})
KEY_SET = msgspec.json.encode({"keys": [key.as_dict(private=False) for key in (FIRST_KEY, SECOND_KEY)]})
SECRET_KEY = OctKey.import_key("a shared secret of some length..")
FAR = 4_000_000_000


def sign(claims: dict[str, Any] | None = None, *, key: Any = FIRST_KEY, algorithm: str = "RS256") -> str:
    """Return the `Authorization` header with a token of the issuer for Bob; `claims` replace its claims."""
    header = {"alg": algorithm, "kid": key.kid or "first"}
    content = {"iss": ISSUER, "sub": "bob", "aud": "host", "exp": FAR, "iat": 1, **(claims or {})}
    content = {name: value for name, value in content.items() if value is not None}
    token = jwt.encode(header, content, key, algorithms=["RS256", "ES256", "HS256", "PS256"])
    return f"Authorization: Bearer {token}"


class Issuer:
    """Serves its public keys, and counts how often they are fetched."""

    def __init__(self) -> None:
        self.service = ScriptedService()
        self.service.handler = self.reply
        self.keys: list[Any] = [FIRST_KEY]
        self.status = 200

    async def reply(self, _request: ReceivedRequest, _reader: object, writer: asyncio.StreamWriter) -> None:
        body = msgspec.json.encode({"keys": [key.as_dict(private=False) for key in self.keys]})
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (self.status, len(body), body))

    @property
    def fetches(self) -> int:
        return len(self.service.requests)


def run(
    folder: Path,
    scenario: Callable[[RunningGateway, Issuer], Awaitable[None]],
    *,
    settings: str = "",
    mode: str = "opaque",
) -> None:
    async def run_both() -> None:
        issuer = Issuer()
        await issuer.service.open()
        more = (
            f'credentials = "{mode}"\n[jwt]\nissuer = "{ISSUER}"\naudience = "host"\n'
            f'keys_url = "http://127.0.0.1:{issuer.service.port}/keys"\n{settings}\n'
        )
        try:
            async with run_gateway(folder, rules=RULES, more=more) as running:
                running.service.handler = CodeHost().handle
                await scenario(running, issuer)
        finally:
            issuer.service.close()

    asyncio.run(run_both())


def test_all_tokens_of_a_user_count_together_and_the_keys_are_fetched_once(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, issuer: Issuer) -> None:
        replies = [await running.request("/page", sign({"jti": str(number)})) for number in range(3)]
        replies.append(await running.request("/page", sign({"sub": "eve", "aud": ["other", "host"]})))

        assert [get_limit(reply)[1:] for reply in replies] == [("100", "1"), ("100", "2"), ("100", "3"), ("100", "1")]
        assert issuer.fetches == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "header",
    [
        sign({"exp": 1}),
        sign({"exp": None}),
        sign({"exp": "soon"}),
        sign({"nbf": FAR}),
        sign({"aud": "another"}),
        sign({"aud": None}),
        sign({"sub": None, "client_id": None}),
        sign(key=OTHER_KEY),
        sign(key=SECRET_KEY, algorithm="HS256"),
        sign(algorithm="PS256"),
        sign()[:-4] + "AAAA",
    ],
)
def test_a_token_that_is_not_valid_counts_by_address_whatever_the_service_replies(tmp_path: Path, header: str) -> None:
    async def scenario(running: RunningGateway, _issuer: Issuer) -> None:
        replies = [await running.request("/page", header) for _ in range(3)]

        assert [get_limit(reply) for reply in replies] == [(200, "30", str(number)) for number in (1, 2, 3)]

    run(tmp_path, scenario)


def test_a_token_of_another_issuer_is_opaque(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, issuer: Issuer) -> None:
        replies = [await running.request("/page", sign({"iss": "https://else.example"})) for _ in range(2)]

        assert [get_limit(reply)[1] for reply in replies] == ["30", "100"]
        assert issuer.fetches == 0

    run(tmp_path, scenario)


def test_claims_are_mapped_to_user_app_and_organization(tmp_path: Path) -> None:
    settings = 'user = "account.login"\napp = "azp"\norganization = "org"\nuser_id = "account.number"\n'

    async def scenario(running: RunningGateway, _issuer: Issuer) -> None:
        for claims in (
            {"account": {"login": "Ada", "number": 5}, "azp": "web"},
            {"azp": "robot"},
            {"org": "acme"},
        ):
            await running.request("/page", sign(claims))
        running.decision_service.activity.add_admissions_to_rows(running.decision_service.now_ms())
        callers = running.decision_service.activity.last_callers

        assert set(callers) == {"user:ada", "app:robot", "organization:acme"}
        assert (callers["user:ada"].display_name, callers["user:ada"].app) == ("user ID 5", "app:web")

    run(tmp_path, scenario, settings=settings)


def test_a_new_key_of_the_issuer_is_fetched_when_a_token_names_it_but_not_for_each_invented_name(
    tmp_path: Path,
) -> None:
    file, world = tmp_path / "keys.json", AdvancingWorld()
    first, second = (header.rpartition(" ")[2] for header in (sign(), sign(key=SECOND_KEY, algorithm="ES256")))

    def write_keys(*keys: Any) -> None:
        file.write_bytes(msgspec.json.encode({"keys": [key.as_dict(private=False) for key in keys]}))

    async def scenario() -> list[bool]:
        world.advance(100)
        verifier = TokenVerifier(TokenSettings(issuer=ISSUER, keys_file=file), world)
        needs = []

        def check(token: str) -> None:
            now_ms = world.now_ns() // 1_000_000
            needs.append(verifier.needs_keys(token, now_ms))

        check(first)
        await verifier.fetch_keys()
        check(first)
        write_keys(FIRST_KEY, SECOND_KEY)
        for seconds in (29, 1):
            world.advance(seconds)
            check(second)
        await verifier.fetch_keys()
        check(second)
        assert verifier.verify(second, world.now_ns() // 1_000_000).owner is not None
        world.advance(3_600)
        check(first)
        return needs

    write_keys(FIRST_KEY)
    assert asyncio.run(scenario()) == [True, False, False, True, False, True]


def test_without_the_keys_of_the_issuer_tokens_are_opaque(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, issuer: Issuer) -> None:
        issuer.status = 500
        replies = [await running.request("/page", sign()) for _ in range(3)]

        assert [get_limit(reply)[1] for reply in replies] == ["30", "100", "100"]
        assert issuer.fetches == 1

    run(tmp_path, scenario)


def test_a_revocation_of_a_user_ends_the_tokens_that_were_issued_before(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _issuer: Issuer) -> None:
        service = running.decision_service
        assert service.revoker is not None
        await running.request("/page", sign())
        await service.revoker.revoke(["user:bob"])
        headers = [sign(), sign({"iat": service.now_ms() // 1_000 + 1})]

        assert [get_limit(await running.request("/page", header))[1] for header in headers] == ["30", "100"]

    run(tmp_path, scenario)


def test_keys_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(msgspec.json.encode({"keys": [FIRST_KEY.as_dict(private=False)]}))

    async def run_one() -> None:
        more = f'credentials = "resolved"\n[jwt]\nissuer = "{ISSUER}"\nkeys_file = "keys.json"\n'
        async with run_gateway(tmp_path, rules=RULES, more=more) as running:
            assert get_limit(await running.request("/page", sign()))[1] == "100"

    asyncio.run(run_one())


def test_a_key_for_another_use_verifies_no_token(tmp_path: Path) -> None:
    key = {**FIRST_KEY.as_dict(private=False), "use": "enc"}
    (tmp_path / "keys.json").write_bytes(msgspec.json.encode({"keys": [key]}))

    async def run_one() -> None:
        more = f'credentials = "resolved"\n[jwt]\nissuer = "{ISSUER}"\nkeys_file = "keys.json"\n'
        async with run_gateway(tmp_path, rules=RULES, more=more) as running:
            assert get_limit(await running.request("/page", sign()))[1] == "30"

    asyncio.run(run_one())


def encode(value: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "crit", "b64", "typ", "jwk", "x5c", "zip"]),
    st.one_of(
        st.sampled_from(["RS256", "ES256", "HS256", "none", "PS256", "first", "second", "EdDSA", "DEF"]),
        st.integers(),
        st.booleans(),
        st.none(),
        st.lists(st.sampled_from(["b64", "exp", "alg"]), max_size=2),
    ),
    max_size=4,
)


@given(HEADERS, st.one_of(st.binary(max_size=80), st.just(b"x" * 64), st.just(b"x" * 256)), st.text(max_size=3))
def test_any_token_of_the_issuer_is_verified_or_invalid(header: dict[str, Any], signature: bytes, end: str) -> None:
    verifier = TokenVerifier(TokenSettings(issuer=ISSUER, algorithms=("RS256", "ES256")), AdvancingWorld())
    verifier._keys = read_public_keys(KEY_SET, "keys")
    claims = encode({"iss": ISSUER, "sub": "bob", "exp": FAR})
    token = f"{encode(header)}.{claims}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}{end}"

    verifier.needs_keys(token, 0)
    assert verifier.verify(token, 0).owner is None
