"""The pages of a node and an allocation: what nodes measure, drains, signals, and files with hostile names and content."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.cluster.api.test_node_channels import RUNS, OpenNode, with_node
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import CONFIRMED, Browser, a_browser
from tests.web.strict_html import find_problems
from tests.web.test_logs import set_allocation
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.refusal import not_found
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply
from wharf.web.views.charts import HEIGHT, build_chart
from wharf.web.views.files import read_path, show_text
from wharf.web.views.people import name_author

EVIL = b"<script>alert(1)</script>\x1b[31m\xe2\x80\xae"
FILES = {"/local/evil.html": EVIL, '/local/a"<b>.txt': b"x", "/local/core": b"\0\1\2" * 50_000}
SAMPLES = [{"Timestamp": n, "Percent": 10.0 * n, "TotalTicks": 50.0 * n, "Memory": n << 20} for n in range(1, 6)]


class FileNode:
    """A node that has files and measures use. `requests` has what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.history: Any = SAMPLES
        self.is_breaking_off = False
        """Whether a reply with a file ends with an error after its first part."""

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:  # noqa: ARG002
        self.requests.append((request.verb, dict(request.parameters)))
        if request.verb in ("stats", "alloc_stats"):
            reply = {
                "History": self.history,
                "Memory": {"Total": 100 << 20},
                "Tasks": {"server": {"History": self.history}},
            }
            return reply_with(reply)
        path = str(request.parameters.get("path", ""))
        if request.verb == "fs_stat" and path == "/local":
            return reply_with({"Name": "local", "IsDir": True})
        if request.verb == "fs_list":
            return reply_with([{"Name": name.rpartition("/")[2], "Size": len(data)} for name, data in FILES.items()])
        if path not in FILES:
            raise not_found(f"no such file: {path}")
        if request.verb == "fs_stat":
            return reply_with({"Name": path, "Size": len(FILES[path])})
        return ChannelReply(
            "text/html", chunks=self._send(FILES[path][: int(request.parameters.get("limit") or len(FILES[path]))])
        )

    async def _send(self, data: bytes) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(data), 10_000):
            yield data[start : start + 10_000]
            if self.is_breaking_off:
                raise not_found("the file was deleted")


def reply_with(value: object) -> ChannelReply:
    return ChannelReply("application/json", msgspec.json.encode(value))


@asynccontextmanager
async def a_node_with_files() -> AsyncGenerator[tuple[Browser, FileNode, OneServer], None]:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await set_allocation(server, task_states={"server": TaskState(state=TaskStatus.RUNNING)})
        handler = FileNode()
        node = OpenNode(cluster, server, handler=handler)  # type: ignore[arg-type]
        await node.open()
        try:
            yield a_browser(server), handler, server
        finally:
            await node.close()


def find_node_id(server: OneServer) -> str:
    allocation = server.replica.get(ALLOCATIONS, RUNS)
    assert allocation is not None
    return allocation.node_id


@in_virtual_time
async def test_pages_show_what_nodes_measure_in_ten_minutes() -> None:
    async with a_node_with_files() as (browser, _, server):
        node = await browser.get(f"/ui/nodes/{find_node_id(server)}")
        allocation = await browser.get(f"/ui/allocations/{RUNS}")

        assert [find_problems(page.text) for page in (node, allocation)] == [[], []]
        assert "CPU in use: 50 % now, at most 50 %" in node.text
        assert "Memory: 5.0 MB now, at most 5.0 MB" in allocation.text


@pytest.mark.parametrize("history", [None, 7, [], [{}], [{"Percent": "<b>"}, 3, None, {"Percent": 1e400}]])
@in_virtual_time
async def test_a_page_survives_whatever_a_node_measures(history: object) -> None:
    async with a_node_with_files() as (browser, handler, server):
        handler.history = history

        page = await browser.get(f"/ui/nodes/{find_node_id(server)}")

        assert (page.status, find_problems(page.text)) == (200, [])


@pytest.mark.parametrize(
    ("accessor_id", "text"),
    [
        ("token:f0e2749c-e7dc-4505-b350-ddaf7fcd6693", "token f0e2749c"),
        ("token:acls-disabled", ""),
        ("", ""),
        ("f0e2749c-e7dc-4505-b350-ddaf7fcd6693", "token f0e2749c"),
        ("token:0a1b2c3d-e7dc-4505-b350-ddaf7fcd6693", "ci"),
    ],
)
def test_the_caller_who_drains_a_node_is_named_if_known(accessor_id: str, text: str) -> None:
    author = name_author(accessor_id, {"0a1b2c3d-e7dc-4505-b350-ddaf7fcd6693": "ci"})

    assert (author.text if author else "") == text


def test_a_chart_marks_what_is_requested() -> None:
    chart = build_chart("CPU", SAMPLES, "Percent", unit="%", requested=25, full=100)

    assert chart is not None
    assert chart.text == "50 % now, at most 50 %, 25 % requested"
    assert (chart.line, chart.mark_y) == ("M0 58L80 52L160 45L240 39L320 33", round(HEIGHT - 0.25 * (HEIGHT - 2)))


def test_large_numbers_of_a_chart_have_separators() -> None:
    chart = build_chart("Memory", SAMPLES, "Percent", unit="MB", divisor=0.01, requested=23_000)

    assert chart is not None
    assert chart.text == "5\u202f000 MB now, at most 5\u202f000 MB, 23\u202f000 MB requested"


@in_virtual_time
async def test_a_folder_and_a_text_are_shown_without_what_tasks_could_smuggle_in() -> None:
    async with a_node_with_files() as (browser, _, _server):
        folder = await browser.get(f"/ui/allocations/{RUNS}/files?path=/local")
        text = await browser.get(f"/ui/allocations/{RUNS}/files?path=/local/evil.html")
        binary = await browser.get(f"/ui/allocations/{RUNS}/files?path=/local/core")

        for page in (folder, text, binary):
            assert (page.status, find_problems(page.text), "<script>alert" in page.text) == (200, [], False)
        assert "path=%2Flocal%2Fa%22%3Cb%3E.txt" in folder.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd[31m\ufffd" in text.text
        assert "not a text" in binary.text


@in_virtual_time
async def test_a_download_is_never_a_page_in_the_browser() -> None:
    async with a_node_with_files() as (browser, _, _server):
        page = await browser.get(f"/ui/allocations/{RUNS}/files/download?path=/local/a%22%3Cb%3E.txt")
        whole = await browser.get(f"/ui/allocations/{RUNS}/files/download?path=/local/core")
        missing = await browser.get(f"/ui/allocations/{RUNS}/files/download?path=/local/none")

        assert page.get_header("content-type") == "application/octet-stream"
        assert page.get_header("x-content-type-options") == "nosniff"
        assert page.get_header("content-disposition") == "attachment; filename*=UTF-8''a%22%3Cb%3E.txt"
        assert (b"content-security-policy", b"default-src 'none'; sandbox") in page.headers
        assert (len(whole.text), missing.status) == (150_000, 404)


@in_virtual_time
async def test_a_download_that_breaks_off_does_not_look_complete() -> None:
    async with a_node_with_files() as (browser, handler, _server):
        whole = await browser.get(f"/ui/allocations/{RUNS}/files/download?path=/local/core")
        handler.is_breaking_off = True
        broken = await browser.get(f"/ui/allocations/{RUNS}/files/download?path=/local/core")

        assert (whole.is_complete, broken.is_complete) == (True, False)
        assert len(broken.text) < len(whole.text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "/"),
        ("local", "/local"),
        ("/local/../../../etc", "/etc"),
        ("//etc", "/etc"),
        ("../..", "/"),
        ("/a/./b/", "/a/b"),
    ],
)
def test_the_path_of_an_address_stays_within_the_allocation(text: str, path: str) -> None:
    assert read_path(text) == path


@pytest.mark.parametrize("path", ["%00", "a" * 5_000])
@in_virtual_time
async def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    async with a_node_with_files() as (browser, _, _server):
        assert (await browser.get(f"/ui/allocations/{RUNS}/files?path={path}")).status == 400


def test_characters_that_hide_or_reorder_text_are_replaced() -> None:
    assert show_text("a\u202eb\x1b\u200bc\n") == "a\ufffdb\ufffd\ufffdc\ufffd"


@in_virtual_time
async def test_a_signal_goes_to_the_chosen_task() -> None:
    async with a_node_with_files() as (browser, handler, _server):
        await browser.post(f"/ui/allocations/{RUNS}/signal", {"signal": "sighup", "task": "server"})

        assert [name for name, _ in handler.requests] == ["signal"]


@in_virtual_time
async def test_a_drain_has_a_deadline_a_note_and_can_be_canceled() -> None:
    async with a_node_with_files() as (browser, _, server):
        node_id = find_node_id(server)
        address = f"/ui/nodes/{node_id}"

        drained = await browser.post(
            f"{address}/drain", {"deadline": "6h", "note": "new <disk>", "ignore_system_jobs": "yes", **CONFIRMED}
        )
        shown = await browser.get(address)
        strategy = server.replica.get(NODES, node_id).drain_strategy  # type: ignore[union-attr]
        await browser.post(f"{address}/drain", {"cancel": "yes", "eligible": "yes"})
        node = server.replica.get(NODES, node_id)

        assert (drained.status, drained.get_header("location")) == (303, address)
        assert strategy is not None
        assert (strategy.deadline // 3_600_000_000_000, strategy.ignore_system_jobs) == (6, True)
        assert "note: new &lt;disk&gt;" in shown.text
        assert node is not None
        assert (node.drain, node.is_ready_for_placements) == (False, True)


@in_virtual_time
async def test_a_drain_with_another_deadline_is_refused() -> None:
    async with a_node_with_files() as (browser, _, server):
        page = await browser.post(f"/ui/nodes/{find_node_id(server)}/drain", {"deadline": "5x"})

        assert (page.status, "not 5x" in page.text) == (400, True)
