"""Several servers, used in turn."""

import asyncio
from collections.abc import Callable

import pytest

from wharf.client.exchange import Opened, Reply, Request, Unreachable
from wharf.client.turns import ServersInTurn

Answer = Callable[[], Reply]


class Played:
    """A server that answers as it is told, and counts."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked = 0
        self.is_closed = False

    async def send(self, _: Request) -> Reply:
        self.asked += 1
        return self.answer()

    async def open(self, _: Request) -> Opened:
        raise AssertionError("nothing here is streamed")

    async def close(self) -> None:
        self.is_closed = True


def well() -> Reply:
    return Reply(200, {}, b"well")


def unable() -> Reply:
    return Reply(503, {}, b"the log is out of reach")


def nobody() -> Reply:
    raise Unreachable("nobody listens", sent=False)


def silent() -> Reply:
    raise Unreachable("no reply", sent=True)


def ask(turns: ServersInTurn) -> Reply:
    return asyncio.run(turns.send(Request("GET", "/v1/jobs")))


def test_one_server_is_used_for_as_long_as_it_serves() -> None:
    first, second = Played(well), Played(well)
    turns = ServersInTurn([first, second])

    for _ in range(3):
        assert ask(turns).status == 200
    assert (first.asked, second.asked) == (3, 0)


def test_a_request_that_reached_nobody_goes_to_the_next_server_which_is_kept() -> None:
    first, second = Played(nobody), Played(well)
    turns = ServersInTurn([first, second])

    assert (ask(turns).body, ask(turns).body) == (b"well", b"well")
    assert (first.asked, second.asked) == (1, 2)


def test_a_request_that_may_have_been_heard_is_not_sent_again_and_the_next_one_goes_elsewhere() -> None:
    first, second = Played(silent), Played(well)
    turns = ServersInTurn([first, second])

    with pytest.raises(Unreachable, match="no reply"):
        ask(turns)
    assert second.asked == 0
    assert ask(turns).status == 200


def test_a_server_without_its_log_is_answered_for_and_then_left() -> None:
    first, second = Played(unable), Played(well)
    turns = ServersInTurn([first, second])

    assert [ask(turns).status for _ in range(2)] == [503, 200]


def test_where_nobody_is_there_each_is_asked_once() -> None:
    servers = [Played(nobody), Played(nobody), Played(nobody)]

    with pytest.raises(Unreachable, match="nobody listens"):
        ask(ServersInTurn(servers))
    assert [server.asked for server in servers] == [1, 1, 1]


def test_closing_closes_all() -> None:
    servers = [Played(well), Played(well)]

    asyncio.run(ServersInTurn(servers).close())

    assert all(server.is_closed for server in servers)
