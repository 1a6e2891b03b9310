"""The typed client: what it sends, what it makes of replies."""

from typing import Any

import pytest

from tests.kit.virtual_time import in_virtual_time
from wharf.client import Client, Reply, Request, Unreachable
from wharf.client.exchange import Opened
from wharf.model.refusal import Code, Refusal


class Scripted:
    """The other side of the port, saying what the test tells it."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[dict[str, Any]] = []

    async def send(self, request: Request) -> Reply:
        self.asked.append(
            {
                "method": request.method,
                "path": request.path,
                "query": dict(request.query),
                "headers": dict(request.headers),
                "body": request.body,
                "timeout_s": request.timeout_s,
            }
        )
        return self.replies.pop(0)

    async def open(self, _: Request) -> Opened:
        raise AssertionError("nothing here is streamed")

    async def close(self) -> None:
        return


def ok(body: bytes, **headers: str) -> Reply:
    return Reply(200, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@in_virtual_time
async def test_an_answer_carries_value_index_leader_and_contact() -> None:
    exchange = Scripted(ok(b"[]", x_cluster_index="9", x_cluster_knownleader="false", x_cluster_lastcontact="12"))

    answer = await Client(exchange).jobs()

    assert (answer.value, answer.index, answer.known_leader, answer.last_contact_ms) == ([], 9, False, 12)


@in_virtual_time
async def test_an_answer_without_headers_has_index_0() -> None:
    answer = await Client(Scripted(ok(b"[]", x_cluster_index="x"))).jobs()

    assert (answer.index, answer.known_leader, answer.last_contact_ms) == (0, True, 0)


@pytest.mark.parametrize(
    ("job_id", "path"),
    [
        ("web", "/v1/job/web"),
        ("a/b", "/v1/job/a%2Fb"),
        ("a/summary", "/v1/job/a%2Fsummary"),
        ("a?b#c", "/v1/job/a%3Fb%23c"),
        ("é", "/v1/job/%C3%A9"),
    ],
)
def test_an_id_is_one_part_of_the_path_whatever_it_holds(job_id: str, path: str) -> None:
    @in_virtual_time
    async def story() -> None:
        exchange = Scripted(ok(b'{"ID": "x"}'))

        await Client(exchange).job(job_id)

        assert exchange.asked[0]["path"] == path

    story()


@in_virtual_time
async def test_a_blocking_read_has_time_for_the_longest_wait() -> None:
    exchange = Scripted(ok(b"[]"), ok(b"[]"), ok(b"[]"))
    client = Client(exchange)

    await client.jobs(index=7, wait_s=160.0)
    await client.jobs(index=7)
    await client.jobs(stale=True)

    assert exchange.asked[0]["query"] == {"namespace": "default", "index": "7", "wait": "160000ms"}
    assert exchange.asked[0]["timeout_s"] > 170.0
    assert "wait" not in exchange.asked[1]["query"]
    assert exchange.asked[1]["timeout_s"] > 300.0 * 17 / 16
    assert exchange.asked[2]["query"] == {"namespace": "default", "stale": ""}
    assert exchange.asked[2]["timeout_s"] <= 60.0


@in_virtual_time
async def test_a_refusal_comes_back_as_it_was_said() -> None:
    refused = Reply(500, {"x-cluster-error": "no-leader"}, b"No cluster leader")

    with pytest.raises(Refusal) as told:
        await Client(Scripted(refused)).jobs()

    assert (told.value.code, told.value.text) == (Code.NO_LEADER, "No cluster leader")


@in_virtual_time
async def test_a_refusal_without_a_word_names_its_status() -> None:
    with pytest.raises(Refusal, match="status 404 without a word"):
        await Client(Scripted(Reply(404, {}, b""))).jobs()


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"", b'[{"ID": 3}]'])
def test_a_reply_that_makes_no_sense_is_no_error_of_a_library(body: bytes) -> None:
    @in_virtual_time
    async def story() -> None:
        with pytest.raises(Unreachable) as told:
            await Client(Scripted(ok(body))).jobs()

        assert told.value.sent

    story()


@in_virtual_time
async def test_what_a_node_says_carries_its_secret() -> None:
    exchange = Scripted(ok(b"{}"), ok(b"{}"), ok(b"[]"))
    client = Client(exchange)

    await client.heartbeat("n1", "geheim")
    await client.desired("n1", "geheim")
    await client.fetch("n1", "geheim", ["a"])

    assert [asked["headers"] for asked in exchange.asked] == [{"x-cluster-node-secret": "geheim"}] * 3
