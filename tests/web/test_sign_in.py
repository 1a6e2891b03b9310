"""Signing in at the pages: sessions, their cookies, and what they are not good for."""

import json

import pytest

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import SESSION_TTL_NS, Browser, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from wharf.contract.model.times import SECOND
from wharf.web.pages.sign_in import check_next_url


async def sign_in(browser: Browser, token: str, next_url: str = "/ui/jobs") -> None:
    page = await browser.post("/ui/sign-in", {"token": token, "next": next_url})
    assert (page.status, page.get_header("location")) == (303, next_url), page.text


def test_without_a_session_a_page_that_needs_one_leads_to_the_sign_in_and_back() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server)

            refused = await browser.get("/ui/jobs?rows=50")
            assert (refused.status, refused.get_header("location")) == (
                303,
                "/ui/sign-in?next=%2Fui%2Fjobs%3Frows%3D50",
            )
            await sign_in(browser, token)
            shown = await browser.get("/ui/jobs")

            assert (shown.status, "<h1>Jobs</h1>" in shown.text, "Sign out" in shown.text) == (200, True, True)

    visit()


def test_the_secret_of_a_session_is_neither_the_token_nor_good_for_the_api() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server)
            await sign_in(browser, token)

            (secret,) = browser.cookies.values()
            as_token = await browser.send("GET", "/v1/jobs", headers={"x-cluster-token": secret})
            as_cookie = await browser.send("GET", "/v1/jobs")

            assert secret != token
            assert (as_token.status, as_cookie.status) == (403, 403)

    visit()


def test_signing_out_ends_the_session_also_for_who_copied_the_cookie() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server)
            await sign_in(browser, token)
            copied = dict(browser.cookies)

            await browser.post("/ui/sign-out")
            assert "wharf-session" not in browser.cookies
            browser.cookies = copied

            assert (await browser.get("/ui/jobs")).status == 303

    visit()


def test_a_session_ends_by_time_and_with_its_token() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            operator = a_browser(server)
            await sign_in(operator, token)
            created = await operator.send(
                "PUT", "/v1/acl/token", headers={"x-cluster-token": token}, body=b'{"Name": "b", "Type": "management"}'
            )
            other = a_browser(server)
            record = json.loads(created.text)
            await sign_in(other, record["SecretID"])
            assert (await other.get("/ui/jobs")).status == 200

            await operator.send("DELETE", f"/v1/acl/token/{record['AccessorID']}", headers={"x-cluster-token": token})
            assert (await other.get("/ui/jobs")).status == 303
            cluster.advance_clocks(SESSION_TTL_NS / SECOND + 1)
            assert (await operator.get("/ui/jobs")).status == 303

    visit()


def test_a_one_time_link_signs_in_once() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            first, second = a_browser(server), a_browser(server)
            reply = await first.send("PUT", "/v1/acl/token/onetime", headers={"x-cluster-token": token})
            once = json.loads(reply.text)["OneTimeToken"]["OneTimeSecretID"]

            opened = await first.get(f"/ui/sign-in?once={once}&next=/ui/nodes")
            again = await second.get(f"/ui/sign-in?once={once}&next=/ui/nodes")

            assert (opened.status, opened.get_header("location")) == (303, "/ui/nodes")
            assert (await first.get("/ui/nodes")).status == 200
            assert (again.status, "used already" in again.text, second.cookies) == (400, True, {})

    visit()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_one_time_link_of_a_page_of_another_site_signs_in_only_after_a_confirmation(site: str) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server)
            reply = await browser.send("PUT", "/v1/acl/token/onetime", headers={"x-cluster-token": token})
            once = json.loads(reply.text)["OneTimeToken"]["OneTimeSecretID"]

            asked = await browser.get(f"/ui/sign-in?once={once}&next=/ui/nodes", **{"sec-fetch-site": site})
            cookies = dict(browser.cookies)
            confirmed = await browser.post("/ui/sign-in", {"once": once, "next": "/ui/nodes"})

            assert (asked.status, "A page of another site led you here" in asked.text, cookies) == (200, True, {})
            assert find_problems(asked.text) == []
            assert (confirmed.status, confirmed.get_header("location")) == (303, "/ui/nodes")
            assert (await browser.get("/ui/nodes")).status == 200

    visit()


def test_a_one_time_link_ends_with_the_time_for_which_it_was_made() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser, headers = a_browser(server), {"x-cluster-token": token}
            made = await browser.send("PUT", "/v1/acl/token/onetime?ttl=1m", headers=headers)
            too_long = await browser.send("PUT", "/v1/acl/token/onetime?ttl=11m", headers=headers)
            cluster.advance_clocks(61)

            page = await browser.get(f"/ui/sign-in?once={json.loads(made.text)['OneTimeToken']['OneTimeSecretID']}")

            assert (page.status, "too old" in page.text, browser.cookies) == (400, True, {})
            assert (too_long.status, too_long.text) == (400, "ttl: expected a duration from 1s to 10m")

    visit()


def test_a_wrong_secret_is_refused_without_a_cookie() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, _token = await a_server_with_access(cluster)
            browser = a_browser(server)

            for secret in ("", "x", "7c1d0c2e-0a6a-4a31-9c55-5b8f24a1de01", "ä" * 50):
                page = await browser.post("/ui/sign-in", {"token": secret})
                assert (page.status, browser.cookies) == (400, {}), page.text

    visit()


@pytest.mark.parametrize(
    ("options", "cookie"),
    [
        ({"scheme": "https", "host": "wharf.example", "address": "10.0.0.9"}, "__Host-wharf"),
        ({"host": "localhost:4646"}, "wharf-session"),
        ({"host": "[::1]:4646", "address": "::1"}, "wharf-session"),
        ({"host": "wharf.example", "address": "10.0.0.9"}, None),
        # A page of another site can name this machine: the address in the browser is not local.
        ({"host": "wharf.example"}, None),
    ],
)
def test_a_cookie_is_given_only_where_nobody_can_read_it_on_the_way(
    options: dict[str, str], cookie: str | None
) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server, **options)

            page = await browser.post("/ui/sign-in", {"token": token})

            assert list(browser.cookies) == ([] if cookie is None else [cookie])
            assert page.status == (400 if cookie is None else 303)
            if cookie == "__Host-wharf":
                assert all(word in page.cookies[0] for word in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/;"))
            if cookie is not None:
                assert "HttpOnly" in page.cookies[0]

    visit()


def test_a_session_that_was_set_by_somebody_else_is_replaced_at_the_sign_in() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server)
            browser.cookies["wharf-session"] = "11111111-2222-3333-4444-555555555555"

            await sign_in(browser, token)

            assert browser.cookies["wharf-session"] != "11111111-2222-3333-4444-555555555555"

    visit()


def test_more_sessions_of_a_token_than_the_limit_end_the_oldest() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browsers = [a_browser(server) for _ in range(21)]
            for browser in browsers:
                await sign_in(browser, token)

            statuses = [(await browser.get("/ui/jobs")).status for browser in (browsers[0], browsers[1], browsers[20])]

            assert statuses == [303, 200, 200]

    visit()


@pytest.mark.parametrize(
    "url",
    [
        "//evil.example", "https://evil.example", "/ui//../..//evil", "/v1/jobs", "/ui\\evil", "/ui/\\evil", "javascript:alert(1)",
        "/uix", "/ui/a\r\nset-cookie: a", "",
    ],
)  # fmt: skip
def test_the_address_after_the_sign_in_is_a_page_of_this_server(url: str) -> None:
    checked = check_next_url(url)

    assert checked == "/ui" or (checked == url and checked.startswith("/ui/"))


def test_without_access_control_nobody_signs_in() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            browser = a_browser(await cluster.a_server("m1"))

            shown = await browser.get("/ui/jobs")
            form = await browser.get("/ui/sign-in")

            assert (shown.status, "Sign" in shown.text) == (200, False)
            assert (form.status, form.get_header("location")) == (303, "/ui")

    visit()
