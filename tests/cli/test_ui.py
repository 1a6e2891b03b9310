"""`wharf ui`: which page it opens, and how the browser is signed in."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from tests.web.browsing import ShownPage, a_browser
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.state.tables import ONE_TIME_TOKENS
from wharf.contract.model.times import MINUTE, to_ns


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


@pytest.fixture
def signed_in(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal at a cluster with access control, with the first token."""
    with open_terminal(capsys, access=True) as terminal:
        monkeypatch.setenv("WHARF_TOKEN", terminal.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip())
        yield terminal


def test_without_an_id_the_overview_is_opened_and_its_address_printed(terminal: Terminal) -> None:
    assert terminal.run_ok("ui") == "opened http://127.0.0.1:4646/ui\n"
    assert terminal.opened_pages == ["http://127.0.0.1:4646/ui"]


def test_a_job_an_allocation_and_a_node_have_their_pages(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    allocation = terminal.run_ok("job", "allocs", "-t", "{{range .}}{{.ID}} {{end}}", "web").split()[0]
    node = terminal.run_ok("node", "status", "-t", "{{range .}}{{.ID}}{{end}}").strip()

    for query in ("web", allocation[:8], node[:8], "node-1"):
        terminal.run_ok("ui", query)

    assert [urlsplit(url).path for url in terminal.opened_pages] == [
        "/ui/jobs/web", f"/ui/allocations/{allocation}", f"/ui/nodes/{node}", f"/ui/nodes/{node}",
    ]  # fmt: skip


@pytest.mark.parametrize("namespace", ["shop", "*"])
def test_the_page_of_a_job_names_its_namespace(terminal: Terminal, tmp_path: Path, namespace: str) -> None:
    terminal.run_ok("namespace", "apply", "shop")
    terminal.run_ok("job", "run", "--namespace", "shop", "--detach", write_file(tmp_path, WEB))

    assert terminal.run_ok("ui", "--no-open", "--namespace", namespace, "web") == (
        "http://127.0.0.1:4646/ui/jobs/web?namespace=shop\n"
    )


def test_an_id_of_nothing_is_an_error(terminal: Terminal) -> None:
    result = terminal.run("ui", "missing")

    assert (result.code, result.err) == (1, "wharf: no job, node or allocation has an id that begins with missing\n")


def test_without_a_browser_the_address_is_printed_to_be_opened_elsewhere(terminal: Terminal) -> None:
    terminal.has_browser = False

    result = terminal.run("ui")

    assert (result.code, result.out) == (0, "http://127.0.0.1:4646/ui\n")
    assert "no browser could be started" in result.err


def test_the_link_of_a_token_signs_the_browser_in_once_and_is_not_printed(signed_in: Terminal) -> None:
    server = signed_in.server
    server.server.access.apply_settings(AccessSettings(is_enabled=True))
    browser = a_browser(server)

    printed = signed_in.run_ok("ui")
    (url,) = signed_in.opened_pages
    (once,) = server.replica.iter_all(ONE_TIME_TOKENS)
    path = url.removeprefix("http://127.0.0.1:4646")
    first: ShownPage = signed_in.loop.run_until_complete(browser.get(path))
    again: ShownPage = signed_in.loop.run_until_complete(a_browser(server).get(path))

    assert printed == "opened http://127.0.0.1:4646/ui\n"
    assert parse_qs(urlsplit(url).query)["next"] == ["/ui"]
    assert to_ns(once.expires_at) - server.world.now_ns() <= MINUTE
    assert (first.status, first.get_header("location"), again.status) == (303, "/ui", 400)


def test_over_an_unprotected_connection_no_link_that_signs_in_is_made(signed_in: Terminal) -> None:
    result = signed_in.run("ui", "--no-open", "--address", "http://wharf.example:4646")

    assert (result.code, result.out) == (0, "http://wharf.example:4646/ui\n")
    assert "nobody can sign in over http" in result.err


def test_a_token_that_the_server_does_not_know_is_an_error(
    signed_in: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHARF_TOKEN", "7c1d0c2e-0a6a-4a31-9c55-5b8f24a1de01")

    result = signed_in.run("ui")

    assert (result.code, signed_in.opened_pages) == (1, [])
    assert "the token does not exist" in result.err


def test_without_access_control_a_token_is_not_needed(terminal: Terminal) -> None:
    assert terminal.run_ok("ui", "--no-open", "--token", "x") == "http://127.0.0.1:4646/ui\n"
