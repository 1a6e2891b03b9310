"""The pages of logs: last lines, search, positions, download, following, and hostile output."""

import asyncio
import base64
import html
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.cluster.api.test_node_channels import RUNS, OpenNode, with_node
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.web.browsing import Browser, ShownPage, a_browser
from tests.web.strict_html import find_problems
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.logs import pack_log_tails
from wharf.contract.model.allocations.task_states import TaskState, TaskStateView, TaskStatus
from wharf.contract.model.refusal import not_found
from wharf.contract.wire.allocations.log_search import LineSearch
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply
from wharf.web.log_reader import LinePosition, LogLine, LogPart, SearchResult, TaskLog
from wharf.web.views.logs import (
    build_source_view,
    count_problems,
    describe_problems,
    describe_search,
    select_sources,
    share_lines,
)
from wharf.web.views.styled_text import StyledText, style_line

LOGS = f"/ui/allocations/{RUNS}/logs"
CHUNK_BYTES = 10_000


class LogNode:
    """A node whose task has printed the files of `stdout` (several if they were rotated) and of `stderr`."""

    def __init__(self, files: dict[str, list[bytes]]) -> None:
        self.files = files
        self.stopped = ""
        """Why searches end early."""
        self.may_search = asyncio.Event()
        self.may_search.set()
        self.open_searches = 0
        self.appended: list[bytes] = []
        """What the task prints while its log is followed."""

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:  # noqa: ARG002
        stream = request.parameters["type"]
        if stream not in self.files:
            raise not_found(f'no {stream} log of task "server" yet')
        if request.verb == "fs_search":
            self.open_searches += 1
            try:
                await self.may_search.wait()
            finally:
                self.open_searches -= 1
            search = LineSearch(str(request.parameters["text"]).encode(), max_lines=int(request.parameters["limit"]))
            for number, data in reversed([*enumerate(self.files[stream])]):
                search.search_block(data, f"alloc/logs/server.{stream}.{number}", 0, is_last=True)
            return ChannelReply("application/json", msgspec.json.encode(search.build_reply(self.stopped)))
        return ChannelReply("application/json", chunks=self._send(stream, request.parameters))

    async def _send(self, stream: str, parameters: Mapping[str, str | bool | int]) -> AsyncGenerator[bytes, None]:
        files = self.files[stream]
        offset = int(str(parameters.get("offset") or 0))
        number = int(str(parameters.get("file") or "0").rpartition(".")[2])
        if parameters.get("origin") == "end":
            number, offset = 0, max(0, sum(map(len, files)) - offset)
            while number + 1 < len(files) and offset >= len(files[number]):
                offset -= len(files[number])
                number += 1
        for current in range(number, len(files)):
            data = files[current]
            for start in range(offset if current == number else 0, len(data), CHUNK_BYTES):
                part = data[start : start + CHUNK_BYTES]
                yield build_frame(stream, current, start + len(part), part)
        end = len(files[-1])
        for part in self.appended if parameters.get("follow") else ():
            await pass_time(1)
            end += len(part)
            yield build_frame(stream, len(files) - 1, end, part)


def build_frame(stream: str, number: int, offset: int, data: bytes) -> bytes:
    file = f"alloc/logs/server.{stream}.{number}"
    return msgspec.json.encode({"Offset": offset, "File": file, "Data": base64.b64encode(data).decode()})


@asynccontextmanager
async def printed(**files: list[bytes]) -> AsyncGenerator[tuple[Browser, LogNode], None]:
    """Yield a browser, and the node of a job whose only task has printed these files."""
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await set_allocation(server, task_states={"server": TaskState(state=TaskStatus.RUNNING)})
        handler = LogNode(files)
        node = OpenNode(cluster, server, handler=handler)  # type: ignore[arg-type]
        await node.open()
        try:
            yield a_browser(server), handler
        finally:
            await node.close()


async def set_allocation(server: OneServer, **fields: object) -> None:
    allocation = server.replica.get(ALLOCATIONS, RUNS)
    assert allocation is not None
    await commit(server, ALLOCATIONS.build_put(msgspec.structs.replace(allocation, **fields)))


def number_lines(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, start + count))


def list_lines(page: ShownPage) -> list[str]:
    lines = re.findall(r'<div class="line[^>]*>(.*?)</div>', page.text, re.DOTALL)
    return [html.unescape(re.sub(r"<a .*?</a> |<[^>]*>", "", line)) for line in lines]


def find_link(page: ShownPage, text: str) -> str:
    found = re.search(rf'<a href="([^"]*)"[^>]*>{text}</a>', page.text)
    assert found is not None, text
    return html.unescape(found[1])


@in_virtual_time
async def test_the_last_thousand_lines_come_first() -> None:
    async with printed(stdout=[number_lines(3_000)], stderr=[b"oops\n"]) as (browser, _):
        page = await browser.get("/ui/jobs/shop/logs")

        assert (page.status, find_problems(page.text)) == (200, [])
        assert list_lines(page) == [*[f"line {number}" for number in range(2_001, 3_000)], "oops"]


@in_virtual_time
async def test_only_stderr_is_shown_if_the_address_says_so() -> None:
    async with printed(stdout=[b"fine\n"], stderr=[b"oops\n"]) as (browser, _):
        page = await browser.get(f"{LOGS}?stream=stderr")

        assert list_lines(page) == ["oops"]


@in_virtual_time
async def test_a_search_counts_all_lines_and_shows_the_last_ones() -> None:
    text = b"".join(b"Error %d\nfine\n" % number for number in range(1_500))
    async with printed(stdout=[text[:5_000], text[5_000:]]) as (browser, _):
        page = await browser.get("/ui/jobs/shop/logs?q=eRROR")

        assert "1\u202f500 lines contain the text; the last 1\u202f000 are shown" in page.text
        assert list_lines(page)[-1] == "Error 1499"


@in_virtual_time
async def test_a_search_finds_a_text_with_a_color_in_it() -> None:
    async with printed(stdout=[b"fine\n\x1b[31mError\x1b[0m 7\nError 8\n"]) as (browser, _):
        page = await browser.get(f"{LOGS}?q=error+7")
        shown = await browser.get(find_line_link(page).partition("#")[0])

        assert list_lines(page) == ["Error 7"]
        assert "Error 7" in list_lines(shown)


def find_line_link(page: ShownPage) -> str:
    return html.unescape(re.findall(r'<div class="line" id="[^"]*"><a class="[^"]*" href="([^"]*)"', page.text)[0])


@in_virtual_time
async def test_a_search_says_if_a_node_did_not_search_everything() -> None:
    async with printed(stdout=[b"one\n"]) as (browser, node):
        node.stopped = "the search read only the last 256 MB"
        page = await browser.get(f"{LOGS}?q=one&stream=stdout")

        assert re.search("This count is not complete: .* server: the search read only the last 256 MB", page.text)


@in_virtual_time
async def test_a_search_ends_when_its_browser_leaves() -> None:
    async with printed(stdout=[b"one\n"]) as (browser, node):
        node.may_search.clear()
        searching = asyncio.ensure_future(browser.get(f"{LOGS}?q=one&stream=stdout"))
        await until(lambda: node.open_searches, what="the node searches")

        browser.leaves.set()
        await searching
        await until(lambda: not node.open_searches, what="the node searches no more")


@in_virtual_time
async def test_a_search_that_finds_nothing_says_so() -> None:
    async with printed(stdout=[b"fine\n"]) as (browser, _):
        page = await browser.get(f"{LOGS}?q=bad%0Afine")

        assert "0 lines contain the text. Searched: all." in page.text


@in_virtual_time
async def test_the_link_of_a_line_shows_it_with_the_lines_around_it() -> None:
    async with printed(stdout=[number_lines(30_000)]) as (browser, _):
        page = await browser.get(f"{LOGS}?q=line+15000")
        url = re.findall(r'<div class="line" id="([^"]*)"><a class="[^"]*" href="([^"]*)"', page.text)[0]

        shown = await browser.get(html.unescape(url[1]).partition("#")[0])

        assert url[1].endswith(f"#{url[0]}")
        assert f'id="{url[0]}"' in shown.text
        lines = list_lines(shown)
        assert (len(lines), "line 15000" in lines, "line 14999" in lines) == (1_000, True, True)


@in_virtual_time
async def test_earlier_and_later_lines_follow_without_a_gap_over_rotated_files() -> None:
    files = [number_lines(600), number_lines(1_500, start=600)]
    async with printed(stdout=files) as (browser, _):
        last = await browser.get(f"{LOGS}?stream=stdout")
        middle = await browser.get(find_link(last, "Earlier lines"))
        first = await browser.get(find_link(middle, "Earlier lines"))
        later = await browser.get(find_link(first, "Later lines"))

        assert [list_lines(page)[:: len(list_lines(page)) - 1] for page in (last, middle, first)] == [
            ["line 1100", "line 2099"], ["line 600", "line 1099"], ["line 0", "line 599"],
        ]  # fmt: skip
        assert list_lines(later)[0] == "line 600"


@in_virtual_time
async def test_a_download_is_the_whole_log_unchanged_as_a_file() -> None:
    text = number_lines(4_000) + b"\x1b[31mred\x1b[0m <script>"
    async with printed(stdout=[text]) as (browser, _):
        page = await browser.get(f"{LOGS}/raw?task=server&stream=stdout")
        missing = await browser.get(f"{LOGS}/raw?task=server&stream=stderr")

        assert (page.status, page.text.encode()) == (200, text)
        assert page.get_header("content-disposition").startswith("attachment;")
        assert page.get_header("x-content-type-options") == "nosniff"
        assert missing.status == 404


@in_virtual_time
async def test_the_lines_that_servers_store_are_shown_when_the_node_is_gone() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await set_allocation(
            server,
            client_status=ClientStatus.FAILED,
            task_states={"server": TaskState(state=TaskStatus.DEAD, failed=True)},
            log_tails=pack_log_tails({"server": {"stdout": b"first\nlast words\n"}}),
        )

        page = await a_browser(server).get("/ui/jobs/shop/logs")

        assert list_lines(page) == ["first", "last words"]
        assert "the last lines, which the servers store" in page.text
        assert 'data-follow=""' in page.text


@in_virtual_time
async def test_followed_logs_continue_after_the_lines_of_the_page() -> None:
    async with printed(stdout=[b"old\n"], stderr=[]) as (browser, node):
        node.appended = [b"ne", b"w\nnewer\n", b"unfinished"]
        shown = await browser.get(LOGS)
        address = html.unescape(re.search('data-follow="([^"]*)"', shown.text)[1])  # type: ignore[index]
        after = re.search('data-after="([^"]*)"', shown.text)[1]  # type: ignore[index]

        stream = await browser.get(f"{address}?after={after.replace(' ', '+')}&stream=stdout")

        events = [json.loads(data) for data in re.findall("event: lines\ndata: (.*)\n", stream.text)]
        assert stream.get_header("content-type") == "text/event-stream"
        assert [line for event in events for line in re.findall("</a> (.*?)</div>", event["html"])] == [
            "new", "newer", "unfinished",
        ]  # fmt: skip
        assert stream.text.endswith("event: end\ndata: {}\n\n")


@in_virtual_time
async def test_output_of_a_task_adds_no_element_to_the_page() -> None:
    text = b'</div><script>alert(1)</script><a href="javascript:x">\x1b]8;;http://evil\x07link\x1b]8;;\x07 \xe2\x80\xaeevil\n'
    async with printed(stdout=[text]) as (browser, _):
        page = await browser.get("/ui/jobs/shop/logs")

        assert find_problems(page.text) == []
        assert list_lines(page) == ['</div><script>alert(1)</script><a href="javascript:x">link \\u202eevil']


@pytest.mark.parametrize("query", ["at=x", "before=-1", "file=abc&at=1", "at=99999999999999999999"])
def test_a_position_that_is_not_one_is_refused(query: str) -> None:
    @in_virtual_time
    async def look() -> None:
        async with printed(stdout=[b"fine\n"]) as (browser, _):
            page = await browser.get(f"{LOGS}?stream=stdout&{query}")

            assert (page.status, find_problems(page.text)) == (400, [])

    look()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"plain", [("plain", "")]),
        (b"\x1b[1;31mred\x1b[0m plain", [("red", "t-red t-bold"), (" plain", "")]),
        (b"\x1b[38;5;196mred\x1b[39m\x1b[38;2;0;200;0mgreen", [("red", "t-red"), ("green", "t-green")]),
        (b"\x1b[38:2::0:0:255mblue\x1b[m.", [("blue", "t-blue"), (".", "")]),
        (b"\x1b[44;37mon blue\x1b[2Kend\x07", [("on blueend", "")]),
        (b"\x1b[48;5;1;32mgreen", [("green", "t-green")]),
        (b"\x1b[38mlost", [("lost", "")]),
        (b"10 %\r20 %\r", [("10 %\n20 %", "")]),
        (b"\xff", [("\ufffd", "")]),
    ],
)
def test_colors_become_classes_and_other_sequences_are_removed(line: bytes, expected: list[tuple[str, str]]) -> None:
    assert style_line(line) == tuple(StyledText(text, classes) for text, classes in expected)


def test_long_logs_share_the_lines_that_short_ones_leave() -> None:
    source = TaskLog("a", "t", "stdout", "web[0] t")
    parts = [
        LogPart(source, tuple(LogLine(source, LinePosition(0, number), b"") for number in range(size)))
        for size in (2, 500, 300)
    ]

    shared = share_lines(parts, 102)

    assert [(len(part.lines), part.has_more) for part in shared] == [(2, False), (50, True), (50, True)]


def list_chosen(count: int, *, failed: int) -> list[str]:
    """Return the names of the allocations whose logs a page shows, of an array with one failed element."""
    states = {"main": TaskStateView(state=TaskStatus.DEAD)}
    made = [
        AllocationStub(
            id=f"a{at}", name=f"sweep.train[{at}]", task_group="train", create_index=at, task_states=states,
            desired_status=DesiredStatus.RUN,
            client_status=ClientStatus.FAILED if at == failed else ClientStatus.COMPLETE,
        )
        for at in range(count)
    ]  # fmt: skip
    return list(dict.fromkeys(source.name for source in select_sources(made, {})[0]))


def test_the_logs_of_a_large_array_show_the_failed_element_and_the_newest_ones_by_their_number() -> None:
    names = list_chosen(300, failed=42)

    assert names == ["train[42] main", *(f"train[{at}] main" for at in range(281, 300))]


def test_elements_are_ordered_by_their_number() -> None:
    assert list_chosen(12, failed=3)[1:4] == ["train[1] main", "train[2] main", "train[3] main"]


def make_source(number: int) -> TaskLog:
    return TaskLog(
        alloc_id=f"a{number}", task="main", stream="stdout", name=f"train[{number}] main", color="cyan", is_running=True
    )


def test_a_reason_why_many_logs_could_not_be_read_is_said_once() -> None:
    parts = [LogPart(make_source(number), problem="Permission denied" if number else "") for number in range(40)]

    counts = count_problems(part.problem for part in parts)
    notes = {build_source_view(part.source, part, counts).note for part in parts[1:]}

    assert describe_problems(counts, len(parts)) == ("39 of 40 logs could not be read: Permission denied",)
    assert describe_problems({"Permission denied": 40}, 40) == ("The logs could not be read: Permission denied",)
    assert notes == {"not read"}


def test_a_reason_why_many_logs_could_not_be_searched_is_said_once() -> None:
    problems = {f"train[{number}] main": "Permission denied" for number in range(5)} | {"web": "the node is down"}

    view = describe_search(SearchResult(problems=problems))

    assert view.problems == (
        "train[0] main, train[1] main, train[2] main and 2 more: Permission denied",
        "web: the node is down",
    )
