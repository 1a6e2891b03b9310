"""Signing in at an identity provider, with one that issues real codes and signs real tokens."""

import html
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import pytest

from tests.cluster.api.access import ApiCaller
from tests.cluster.api.test_logins import OIDC, LoginSetup
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import LOCAL_HOST, Browser, ShownPage, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from wharf.cluster.api.handlers.acl.tokens import TokenSecrets
from wharf.cluster.state.tables import ACL_TOKENS
from wharf.contract.model.refusal import Refusal

CALLBACK = f"http://{LOCAL_HOST}/ui/sign-in/callback"
RULES = 'namespace "*" { policy = "read" }'


class SignInSetup:
    """A server with an auth method for pages, a provider, and the browser of a person."""

    def __init__(self, server: OneServer, login: LoginSetup) -> None:
        self.server = server
        self.login = login
        self.browser = a_browser(server)

    async def begin(self, browser: Browser | None = None, next_url: str = "/ui/jobs") -> ShownPage:
        """Follow the link of the sign-in page."""
        return await (browser or self.browser).get(f"/ui/sign-in/with/sso?{urlencode({'next': next_url})}")

    def visit(self, begun: ShownPage) -> str:
        """Log in at the provider, and return the address to which it sends the browser back."""
        back = self.login.provider.visit(begun.get_header("location"))
        parameters = {name: back[name] for name in ("state", "code", "iss")}
        return f"{urlsplit(back['redirect_uri']).path}?{urlencode(parameters)}"


@asynccontextmanager
async def a_provider(redirect_uri: str = CALLBACK) -> AsyncGenerator[SignInSetup, None]:
    async with ACluster() as cluster:
        server, token = await a_server_with_access(cluster)
        login = LoginSetup(ApiCaller(server, token))
        server.server.access.providers = login.providers
        await login.operator.policy("reader", RULES)
        await login.method("OIDC", config={**OIDC, "AllowedRedirectURIs": [redirect_uri]})
        await login.rule()
        yield SignInSetup(server, login)


def is_signed_in(browser: Browser) -> bool:
    return any(name.endswith(("wharf", "wharf-session")) for name in browser.cookies)


async def read_notice(browser: Browser, reply: ShownPage) -> str:
    """Return what the sign-in page shows after a sign-in that failed."""
    location = reply.get_header("location")
    assert (reply.status, location.partition("?")[0], is_signed_in(browser)) == (303, "/ui/sign-in", False)
    page = await browser.get(location)
    assert find_problems(page.text) == []
    return html.unescape(page.text.split('role="status">')[1].partition("<")[0])


@pytest.mark.parametrize("path", ["/ui/sign-in/callback", "/ui/settings/tokens"])
@in_virtual_time
async def test_a_person_signs_in_at_the_provider_and_comes_back(path: str) -> None:
    async with a_provider(f"http://{LOCAL_HOST}{path}") as setup:
        browser = setup.browser
        form = await browser.get("/ui/sign-in?next=/ui/jobs")
        begun = await setup.begin()
        asked = {name: values[0] for name, values in parse_qs(urlsplit(begun.get_header("location")).query).items()}
        returned = await browser.get(setup.visit(begun))
        shown = await browser.get("/ui/access")

        assert 'href="/ui/sign-in/with/sso?next=%2Fui%2Fjobs"' in form.text
        assert (find_problems(form.text), begun.status, asked["redirect_uri"]) == (
            [],
            303,
            f"http://{LOCAL_HOST}{path}",
        )
        assert asked["code_challenge_method"] == "S256"
        assert (returned.status, returned.get_header("location")) == (303, "/ui/jobs")
        assert (list(browser.cookies), "reader" in shown.text) == (["wharf-session"], True)


@in_virtual_time
async def test_the_state_of_a_sign_in_is_bound_to_its_browser_and_good_once() -> None:
    async with a_provider() as setup:
        victim, attacker = a_browser(setup.server), setup.browser
        address = setup.visit(await setup.begin(attacker))
        pending = dict(attacker.cookies)
        assert "began in another browser" in await read_notice(victim, await victim.get(address))
        await setup.begin(victim)
        assert "the state belongs to another login" in await read_notice(victim, await victim.get(address))
        assert "wharf-sign-in" not in victim.cookies

        assert (await attacker.get(address)).get_header("location") == "/ui/jobs"
        victim.cookies = pending
        assert "The sign-in with sso failed" in await read_notice(victim, await victim.get(address))


@in_virtual_time
async def test_over_tls_the_state_is_in_a_short_lived_cookie_of_this_host() -> None:
    async with a_provider("https://wharf.example/ui/sign-in/callback") as setup:
        browser = a_browser(setup.server, scheme="https", host="wharf.example", address="10.0.0.9")
        begun = await setup.begin(browser)
        (cookie,) = begun.cookies
        await browser.get(setup.visit(begun))

        assert cookie.startswith("__Host-wharf-sign-in=")
        assert all(word in cookie for word in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/;", "Max-Age=600"))
        assert list(browser.cookies) == ["__Host-wharf"]


@pytest.mark.parametrize("next_url", ["//evil.example", "https://evil.example", "/ui\\evil"])
@in_virtual_time
async def test_a_changed_cookie_leads_to_no_other_server(next_url: str) -> None:
    async with a_provider() as setup:
        address = setup.visit(await setup.begin(next_url=next_url))
        stored = json.loads(unquote(setup.browser.cookies["wharf-sign-in"]))
        setup.browser.cookies["wharf-sign-in"] = quote(json.dumps([*stored[:2], next_url]))

        assert (await setup.browser.get(address)).get_header("location") == "/ui"


@in_virtual_time
async def test_an_address_that_the_method_does_not_allow_is_named() -> None:
    async with a_provider("https://wharf.example/ui/sign-in/callback") as setup:
        notice = await read_notice(setup.browser, await setup.begin())

        assert f"Add {CALLBACK} to its AllowedRedirectURIs" in notice


@in_virtual_time
async def test_a_provider_that_does_not_answer_is_named() -> None:
    async with a_provider() as setup:
        setup.login.providers.is_away = True
        before = await read_notice(setup.browser, await setup.begin())
    async with a_provider() as setup:
        address = setup.visit(await setup.begin())
        setup.login.providers.is_away = True
        after = await read_notice(setup.browser, await setup.browser.get(address))

        assert before == (
            "The sign-in with sso could not begin: https://login.example/.well-known/openid-configuration does not answer."
        )
        assert after.startswith("The sign-in with sso failed: https://login.example/")


@in_virtual_time
async def test_who_matches_no_binding_rule_is_told_so() -> None:
    async with a_provider() as setup:
        for rule in (await setup.login.operator.get("/v1/acl/binding-rules"))[1]:
            await setup.login.operator.delete(f"/v1/acl/binding-rule/{rule['ID']}")
        reply = await setup.browser.get(setup.visit(await setup.begin()))

        assert "no binding rule of the login method sso gives you" in await read_notice(setup.browser, reply)


@in_virtual_time
async def test_the_refusal_of_a_provider_is_shown_as_text() -> None:
    async with a_provider() as setup:
        await setup.begin()
        query = urlencode({"error": "access_denied", "error_description": "<img src=x> " * 900})
        reply = await setup.browser.get(f"/ui/sign-in/callback?{query}")

        notice = await read_notice(setup.browser, reply)
        assert notice.startswith("The identity provider refused the sign-in: <img src=x>")
        assert len(notice) < 400


@in_virtual_time
async def test_only_auth_methods_for_pages_have_a_button() -> None:
    async with a_provider("http://localhost:4649/oidc/callback") as setup:
        form = await setup.browser.get("/ui/sign-in")
        begun = await setup.begin()

        assert "Sign in with" not in form.text
        assert await read_notice(setup.browser, begun) == "There is no sign-in with sso."


@in_virtual_time
async def test_a_token_of_a_provider_signs_in_by_a_form() -> None:
    async with a_provider() as setup:
        await setup.login.operator.delete("/v1/acl/auth-method/sso")
        await setup.login.jwt()
        await setup.login.rule()
        form = await setup.browser.get("/ui/sign-in")
        fields = {"method": "sso", "next": "/ui/jobs"}
        refused = await setup.browser.post("/ui/sign-in", {**fields, "token": "a.b.c"})
        accepted = await setup.browser.post("/ui/sign-in", {**fields, "token": setup.login.provider.identity()})

        assert (find_problems(form.text), "<option>sso</option>" in form.text) == ([], True)
        assert (refused.status, "The token was not accepted" in refused.text) == (400, True)
        assert (accepted.status, accepted.get_header("location")) == (303, "/ui/jobs")


@in_virtual_time
async def test_a_sign_in_leaves_no_secret_in_addresses_pages_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with a_provider() as setup:
        browser = setup.browser
        begun = await setup.begin()
        callback = setup.visit(begun)
        returned = await browser.get(callback)
        await setup.browser.get("/ui/sign-in/callback?code=another-code&state=x")
        pages = [await browser.get(path) for path in ("/ui", "/ui/jobs", "/ui/access", "/ui/activity")]
        secrets = find_secrets(setup.server)
        code = parse_qs(urlsplit(callback).query)["code"][0]
        session = browser.cookies["wharf-session"]

        seen = "\n".join((returned.get_header("location"), *(page.text for page in pages)))
        assert [secret for secret in (*secrets, session, code) if secret in seen] == []
        logged = "\n".join(record.getMessage() for record in caplog.records)
        assert [secret for secret in (*secrets, session, f"code={code}", "another-code") if secret in logged] == []


def find_secrets(server: OneServer) -> list[str]:
    """Return the secrets of all tokens."""
    secrets: list[str] = []
    opener = TokenSecrets(server.server)
    for token in server.replica.iter_all(ACL_TOKENS):
        try:
            secrets.append(opener.open_secret(server.replica, token))
        except Refusal:
            continue
    assert secrets
    return secrets
