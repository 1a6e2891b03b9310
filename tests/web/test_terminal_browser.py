"""The terminal in Chromium, with a shell in a real task: keys, sizes, hostile output, copying, pasting, and the end."""

from collections.abc import Iterator
from http.server import HTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.agent.processes import RunningAgent, running
from tests.http_servers import QuietHandler, serving
from tests.waiting import wait_until
from tests.web.chromium import running_browser, tabs_of

pytestmark = pytest.mark.needs_program("chromium")
HOSTILE = (
    r"printf '\033]0;evil\007\033]8;;javascript:alert(1)\007a link\033]8;;\007\033]52;c;ZXZpbA==\007<img src=x>\n'"
)
OBSERVE_COPY_SCRIPT = """
const button = document.activeElement;
new MutationObserver(() => { if (button.textContent === "Copied") button.dataset.wasCopied = ""; }).observe(button, {childList: true});
"""
"""Marks the focused button once it says "Copied", which it does for two seconds only."""
PASTE_SCRIPT = """(text) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
  document.querySelector("#terminal textarea").dispatchEvent(event);
}"""


def find_running_allocation(agent: RunningAgent) -> str:
    """Return the ID of the allocation whose task runs; empty if none does yet."""
    allocations: Any = agent.get("/v1/job/host/allocations")
    return next((each["ID"] for each in allocations if each["ClientStatus"] == "running"), "")


def run_line(page: Page, line: str) -> None:
    page.keyboard.type(line)
    page.keyboard.press("Enter")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running(tmp_path_factory.mktemp("agent") / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        yield agent


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


def test_a_shell_in_a_task_is_used_by_keyboard_and_its_end_is_shown(agent: RunningAgent, browser: Browser) -> None:
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["600"]}}
    agent.put("/v1/jobs", {"Job": {"ID": "host", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}})
    alloc_id: str = wait_until(lambda: find_running_allocation(agent), what="the task runs")
    permissions = ["clipboard-read", "clipboard-write"]
    with tabs_of(browser, agent.address, permissions=permissions) as tabs:
        page = tabs.open(f"/ui/allocations/{alloc_id}/terminal")
        state, rows = page.get_by_role("status"), page.locator("#terminal .xterm-rows")
        title = page.title()

        expect(page.get_by_role("button", name="Connect")).to_be_focused()
        page.keyboard.press("Enter")
        expect(state).to_have_text("Connected", timeout=30_000)

        run_line(page, "PS1='> '; echo $((6 * 7)) columns $(stty size)")
        expect(rows).to_contain_text("42 columns")
        page.set_viewport_size({"width": 400, "height": 700})
        run_line(page, "clear; echo now $(stty size)")
        columns = page.evaluate("document.querySelector('#terminal .xterm-rows').childElementCount")
        expect(rows).to_contain_text(f"now {columns} ")

        run_line(page, f"clear; {HOSTILE}")
        expect(rows).to_contain_text("a link<img src=x>")
        assert (page.title(), page.locator("#terminal img").count()) == (title, 0)

        run_line(page, "clear; yes 0123456789 | head -c 1500000; echo; echo all of it")
        expect(rows).to_contain_text("all of it", timeout=60_000)

        page.evaluate(PASTE_SCRIPT, "clear; echo pasted\x1b[201~\x03 text")
        page.keyboard.press("Enter")
        expect(rows).to_contain_text("pasted[201~ text")
        page.keyboard.press("Control+Shift+KeyL")
        expect(page.get_by_role("button", name="Disconnect")).to_be_focused()
        page.keyboard.press("Tab")
        page.evaluate(OBSERVE_COPY_SCRIPT)
        page.keyboard.press("Enter")
        expect(page.locator("button[data-was-copied]")).to_be_visible()
        assert "pasted[201~ text" in page.evaluate("navigator.clipboard.readText()")

        page.locator("#terminal textarea").focus()
        run_line(page, "exit 3")
        expect(state).to_have_text("The command ended with exit code 3.")
        expect(page.get_by_role("button", name="Connect again")).to_be_focused()

        page.keyboard.press("Enter")
        expect(state).to_have_text("Connected")
        page.get_by_role("button", name="Disconnect").click()
        expect(state).to_have_text("You ended the connection. The command was stopped.")


ATTACK = """async (address) => {
  const job = { Job: { ID: "foreign", TaskGroups: [{ Name: "g", Tasks: [{ Name: "t", Driver: "mock" }] }] } };
  await fetch(`${address}/v1/jobs`, { method: "POST", mode: "no-cors", body: JSON.stringify(job) });
  const readable = await fetch(`${address}/v1/vars`).then((reply) => reply.status, () => 0);
  const query = `task=t&command=${encodeURIComponent('["/bin/sh"]')}`;
  const socket = new WebSocket(`${address.replace("http", "ws")}/v1/client/allocation/x/exec?${query}`);
  const opened = await new Promise((resolve) => {
    socket.onopen = () => resolve(true);
    socket.onerror = () => resolve(false);
  });
  return [readable, opened];
}"""


class ForeignSite(QuietHandler):
    def do_GET(self) -> None:
        self.reply(200, b"<p>another site", ("content-type", "text/html"))


def test_a_page_of_another_site_cannot_use_the_api(agent: RunningAgent, browser: Browser) -> None:
    with serving(HTTPServer(("127.0.0.1", 0), ForeignSite)) as site:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{site.server_port}/")

        read_status, is_open = page.evaluate(ATTACK, agent.address)
        page.close()

    jobs: Any = agent.get("/v1/jobs")
    assert "foreign" not in [job["ID"] for job in jobs]
    assert (read_status, is_open) == (0, False)
