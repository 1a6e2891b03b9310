"""What people read and can do when the server refuses them: limits and bans, missing pages, forms, and the sign-in."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.cluster.api.limited_server import LimitedServer
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import CONFIRMED, Browser, ShownPage, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from tests.web.test_sign_in import sign_in
from wharf.cluster.api.handlers.acl.sessions import SessionFinder
from wharf.cluster.state.tables import NODES
from wharf.contract.client.errors import Forbidden, NotFound, RateLimited, build_error
from wharf.contract.client.transport import ClientReply
from wharf.contract.model.refusal import RefusalCode, RefusalReason
from wharf.web.app import PageServer, describe_refusal
from wharf.web.refusals import explain_refusal

LIMIT_TEXT = "API rate limit exceeded"
MESSAGE = "API rate limit exceeded. Wait 60 seconds before you try again."


class LimitedPages:
    """A server with access control and rate limits, a reader who is signed in, and an operator."""

    def __init__(self, operator: Browser, management: str, pages: PageServer, limited: LimitedServer) -> None:
        self.operator = operator
        self._management = management
        self._pages = pages
        self.reader = Browser(pages)
        self.limited = limited
        self.accessor = ""
        self.secret = ""

    async def sign_in_reader(self) -> None:
        """Sign the reader in, with the token `ann`."""
        created = await self._create_token("ann")
        self.accessor, self.secret = created["AccessorID"], created["SecretID"]
        await sign_in(self.reader, self.secret)

    async def add_reader(self, name: str) -> Browser:
        """Return the browser of another person with the rights of the reader."""
        browser = Browser(self._pages)
        await sign_in(browser, (await self._create_token(name))["SecretID"])
        return browser

    async def _create_token(self, name: str) -> dict[str, str]:
        body = json.dumps({"Name": name, "Type": "client", "Policies": ["reader"]}).encode()
        headers = {"x-cluster-token": self._management}
        created: dict[str, str] = json.loads(
            (await self.operator.send("PUT", "/v1/acl/token", headers=headers, body=body)).text
        )
        return created


async def limited_pages(cluster: ACluster, folder: Path, *, rules: str = "") -> LimitedPages:
    server, management = await a_server_with_access(cluster)
    limited = LimitedServer(server, folder, **({"rules": rules} if rules else {}))
    operator = a_browser(server)
    await operator.send(
        "PUT", "/v1/acl/policy/reader", headers={"x-cluster-token": management},
        body=json.dumps({"Name": "reader", "Rules": 'namespace "default" { policy = "read" }'}).encode(),
    )  # fmt: skip
    await sign_in(operator, management)
    served = PageServer(server.world, limited.wrap(server.api), SessionFinder(server.server))
    pages = LimitedPages(operator, management, served, limited)
    await pages.sign_in_reader()
    return pages


async def refresh(browser: Browser, path: str) -> ShownPage:
    return await browser.get(path, **{"wharf-refresh": "1000"})


@pytest.mark.parametrize(("status", "type_"), [(429, RateLimited), (403, Forbidden)])
def test_the_refusal_of_a_limiter_is_its_message_and_not_its_json(status: int, type_: type[Exception]) -> None:
    body = json.dumps({"message": MESSAGE, "status": str(status)}).encode()

    error = build_error(ClientReply(status, {"x-cluster-limits-id": "1"}, body))

    assert (type(error), error.text, error.is_by_limiter) == (type_, MESSAGE, True)


@pytest.mark.parametrize("body", [b'{"a": 1}', b"{", b'{"message": 5}', b"plain"])
def test_any_other_text_of_a_refusal_stays_as_it_is(body: bytes) -> None:
    error = build_error(ClientReply(403, {"x-cluster-code": "forbidden"}, body))

    assert error.text == body.decode()


def test_a_node_without_a_connection_is_described_in_words() -> None:
    refusal = NotFound(RefusalCode.NOT_FOUND, "No path to node", 404, reason=RefusalReason.NO_NODE_PATH)

    assert explain_refusal(refusal) == "the node cannot be reached, because it is down or out of contact"
    assert describe_refusal(refusal) == "The node cannot be reached"


def test_a_missing_right_is_named() -> None:
    refusal = Forbidden(
        RefusalCode.FORBIDDEN, "Permission denied", 403, detail='token "lee" lacks the capability read-logs'
    )

    assert explain_refusal(refusal) == 'Permission denied: token "lee" lacks the capability read-logs'


def test_a_banned_person_reads_the_message_and_can_sign_out(tmp_path: Path) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path)
            ban = {"subject": "ann", "duration": "1h", "reason": "a flood", "message": "call us"}
            banned = await pages.operator.post("/ui/limits/bans", {**ban, **CONFIRMED})

            shown = await pages.reader.get("/ui")
            again = await pages.reader.post("/ui/sign-in", {"token": pages.secret, "next": "/ui"})
            signed_out = await pages.reader.post("/ui/sign-out")
            after = await pages.reader.get("/ui/sign-in")

            assert banned.status == 303, banned.text
            assert (shown.status, "Your requests are refused for now" in shown.text) == (403, True)
            assert "call us" in shown.text
            assert "{" not in shown.text.partition("<main")[2].partition("</main")[0]
            assert "The server refuses your requests for now." in again.text
            assert "No token has this secret" not in again.text
            assert (signed_out.status, "wharf-session" in pages.reader.cookies) == (303, False)
            assert "This browser is signed out." in after.text

    visit()


def test_the_overview_shows_what_it_could_read_while_a_limit_refuses_the_rest(tmp_path: Path) -> None:
    rules = 'profile = "cluster"\n[[rule]]\nname = "core"\nceiling = { user = 6, machine = "unlimited", none = 100 }\n'

    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path, rules=rules)

            shown = await pages.reader.get("/ui")

            assert (shown.status, "Not shown: " in shown.text) == (200, True)
            assert "All is well" not in shown.text
            assert "No job yet" not in shown.text
            assert find_problems(shown.text) == []

    visit()


def test_nobody_else_gets_an_update_that_shows_what_a_limit_refused_to_one_person(tmp_path: Path) -> None:
    rules = 'profile = "cluster"\n[[rule]]\nname = "core"\nceiling = { user = 60, machine = "unlimited", none = 100 }\n'

    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path, rules=rules)
            other = await pages.add_reader("bob")
            await other.get("/ui/access")  # Shows the notice of the sign-in, which is not shared.
            while LIMIT_TEXT not in (await pages.reader.get("/ui")).text:
                pass  # Uses up the limit.

            shown = await asyncio.gather(refresh(pages.reader, "/ui"), refresh(other, "/ui"))
            later = await refresh(other, "/ui")

            assert [LIMIT_TEXT in each.text for each in (*shown, later)] == [True, False, False]

    visit()


def test_nobody_else_gets_the_refusal_of_a_person_who_is_banned(tmp_path: Path) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path)
            other = await pages.add_reader("bob")
            await other.get("/ui/jobs")
            await pages.reader.get("/ui/jobs")
            await pages.operator.post(
                "/ui/limits/bans", {"subject": "ann", "duration": "1h", "reason": "a flood", **CONFIRMED}
            )

            shown = await asyncio.gather(refresh(pages.reader, "/ui/jobs"), refresh(other, "/ui/jobs"))
            later = await refresh(other, "/ui/jobs")

            assert [each.status for each in (*shown, later)] == [403, 200, 200]

    visit()


def test_a_person_reads_the_own_rights_and_limits_in_words(tmp_path: Path) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path)

            shown = (await pages.reader.get("/ui/access")).text

            assert "<strong>In the namespace default</strong> you may see jobs." in shown
            assert "You may not: read logs, open terminals, submit and change jobs" in shown
            assert "Your rate limits" in shown
            assert find_problems(shown) == []

    visit()


def test_the_page_of_a_caller_says_how_it_is_related_to_the_person(tmp_path: Path) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path)
            own = (await pages.operator.get("/ui/access")).text.partition("Token <code>")[2][:36]

            address = (await pages.operator.get("/ui/limits/callers/address%3A127.0.0.1")).text
            token = (await pages.operator.get(f"/ui/limits/callers/user%3A{own}")).text

            assert ("This is you" in address, "your requests are counted by your token" in address) == (False, True)
            assert "This is you" in token

    visit()


def test_the_question_before_a_ban_names_the_caller_and_warns_who_would_ban_themselves(tmp_path: Path) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            pages = await limited_pages(cluster, tmp_path)
            ban = {"duration": "1h", "reason": "a flood", "message": "<b>"}
            own = (await pages.operator.get("/ui/access")).text.partition("Token <code>")[2][:36]

            other = await pages.operator.post("/ui/limits/bans", {"subject": f"user:{pages.accessor}", **ban})
            themselves = await pages.operator.post("/ui/limits/bans", {"subject": own, **ban})
            address = await pages.operator.post("/ui/limits/bans", {"subject": "address:127.0.0.1", **ban})
            unknown = await pages.operator.post("/ui/limits/bans", {"subject": "nobody", **ban})

            assert ("Ban ann?" in other.text, "This is you" in other.text) == (True, False)
            assert (other.status, find_problems(other.text)) == (200, [])
            assert 'name="message" value="&lt;b&gt;"' in other.text
            assert "This is you" in themselves.text
            assert "This is you" in address.text
            assert (unknown.status, "no token has the name" in unknown.text) == (404, True)
            assert 'value="a flood"' in unknown.text  # Nothing is to be entered again.
            assert "No operator has banned a caller." in (await pages.operator.get("/ui/limits")).text

    visit()


@pytest.mark.parametrize(
    ("path", "question", "button"),
    [("/ui/jobs/shop/stop", "Stop shop?", "Stop shop"), ("/ui/nodes/{node}/drain", "Drain node-1?", "Drain node-1")],
)
def test_a_form_that_no_script_has_confirmed_asks_on_a_page_of_its_own(path: str, question: str, button: str) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            (node,) = await cluster.ready_nodes(server, 1)
            browser = a_browser(server)
            target = path.format(node=node.id)

            asked = await browser.post(f"{target}?namespace=default", {"deadline": "1h", "note": 'a "disk"'})

            assert (asked.status, f"<h1>{question}</h1>" in asked.text) == (200, True)
            assert f'action="{target}?namespace=default"' in asked.text
            assert 'name="note" value="a &#34;disk&#34;"' in asked.text
            assert f'<button class="danger">{button}</button>' in asked.text
            assert find_problems(asked.text) == []
            assert not server.replica.get(NODES, node.id).drain_strategy  # type: ignore[union-attr]

    visit()


@pytest.mark.parametrize(("path", "title"), [("/ui/jobs/%00", ""), ("/ui/jobs/missing", "Not found")])
def test_a_missing_object_has_a_title_that_says_so(path: str, title: str) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            page = await a_browser(await cluster.a_server()).get(path)

            assert f"<h1>{title}" in page.text
            assert "The server refused</h1>" not in page.text
            assert '{"' not in page.text.partition("<main")[2].partition("</main")[0]

    visit()


def test_who_must_sign_in_during_a_form_comes_back_to_its_page_and_reads_why() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, _ = await a_server_with_access(cluster)
            browser = a_browser(server)
            referer = f"http://{browser.host}/ui/jobs/shop/actions?namespace=team"

            own = await browser.post("/ui/jobs/shop/scale", {"count": "2", "index": "1"}, headers={"referer": referer})
            shown = await browser.get(own.get_header("location"))
            foreign = await browser.post(
                "/ui/jobs/shop/scale", {"count": "2", "index": "1"}, headers={"referer": "http://evil.example/ui/x"}
            )

            assert own.get_header("location") == "/ui/sign-in?next=%2Fui%2Fjobs%2Fshop%2Factions%3Fnamespace%3Dteam"
            assert "so nothing was changed" in shown.text
            assert foreign.get_header("location") == "/ui/sign-in?next=%2Fui"

    visit()


def test_the_sign_in_has_no_search_and_no_menu() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, _ = await a_server_with_access(cluster)

            page = (await a_browser(server).get("/ui/sign-in")).text

            assert ('role="search"' in page, 'aria-label="Main"' in page, 'type="password"' in page) == (
                False,
                False,
                True,
            )

    visit()


def test_the_command_in_the_footer_has_the_token_and_the_filter_of_the_page() -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            browser = a_browser(server)
            await sign_in(browser, token)

            page = (await browser.get("/ui/jobs?filter=Type+%3D%3D+%22batch%22&namespace=team")).text
            footer = page.partition("<footer")[2]

            assert "-H &#34;x-cluster-token: $WHARF_TOKEN&#34;" in footer
            assert "/v1/jobs?namespace=team&amp;filter=Type+%3D%3D+%22batch%22&#39;" in footer
            assert "wharf job status -namespace team --filter &#39;Type == &#34;batch&#34;&#39;" in footer

    visit()
