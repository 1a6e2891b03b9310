"""What the gateway counts as CPU time: from forwarding a request to the first byte of the reply, and no more."""

from pathlib import Path

import pytest

from tests.limits.gateway.exchange import OK, SWITCH, WEBSOCKET, Exchange, run
from tests.waiting import wait_on_loop_until
from wharf.limits.decisions import AdmittedRequest

WAITING_EVENTS = '[[endpoint]]\nmatch = ["GET /events"]\nwaiting = true\n'


def get_running(exchange: Exchange) -> AdmittedRequest:
    (admitted,) = exchange.service.running_requests.values()
    return admitted


def test_the_time_until_the_first_byte_of_the_reply_is_charged(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> int:
        exchange.send()
        exchange.world.advance(2)
        exchange.reply()
        await exchange.settle()
        return exchange.count_used("cpu")

    assert run(tmp_path, scenario) == 2_000


@pytest.mark.parametrize("is_local", [True, False])
def test_an_idle_stream_is_not_charged(tmp_path: Path, is_local: bool) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, int]:
        exchange.send("GET /events")
        await exchange.settle_until_forwarded()
        exchange.world.advance(1)
        exchange.reply(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        for _ in range(20):
            exchange.world.advance(30)
            await exchange.service.run_maintenance(should_renew=True)
        charged_while_open = exchange.count_used("cpu")
        exchange.reply(b"0\r\n\r\n")
        await exchange.settle_until_ended()
        return charged_while_open, exchange.count_used("cpu")

    assert run(tmp_path, scenario, is_local=is_local) == (0, 1_000)


def test_a_user_with_an_idle_stream_is_not_locked_out(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> bytes:
        exchange.send("GET /events")
        exchange.reply(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        for _ in range(10):
            exchange.world.advance(60)
            await exchange.service.run_maintenance(should_renew=True)
        second = exchange.open_second_connection()
        second.send("GET /rate_limit")
        await exchange.settle()
        return second.socket.written[:12]

    assert run(tmp_path, scenario) == b"HTTP/1.1 200"


def test_the_time_until_a_connection_to_the_service_is_free_is_not_charged(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> int:
        occupied = exchange.occupy_connection()
        exchange.send()
        exchange.world.advance(2)
        exchange.environment.pool.return_connection(occupied)
        exchange.world.advance(1)
        return round(get_running(exchange).compute_work_ms(exchange.world.monotonic_s()))

    assert run(tmp_path, scenario) == 1_000


def test_bytes_that_the_caller_reads_late_start_no_new_charge(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> int:
        exchange.send()
        exchange.world.advance(1)
        exchange.reply(OK + b"Content-Length: 9\r\n\r\nhello")
        exchange.connection.pause_writing()
        exchange.connection.resume_writing()
        exchange.world.advance(5)
        return round(get_running(exchange).compute_work_ms(exchange.world.monotonic_s()))

    assert run(tmp_path, scenario) == 1_000


def test_a_websocket_is_charged_until_it_opens(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> int:
        exchange.send("GET /live", WEBSOCKET)
        exchange.world.advance(1)
        exchange.reply(SWITCH)
        exchange.world.advance(5)
        exchange.connection.pause_writing()
        exchange.connection.resume_writing()
        exchange.world.advance(5)
        return round(get_running(exchange).compute_work_ms(exchange.world.monotonic_s()))

    assert run(tmp_path, scenario) == 1_000


def test_a_waiting_route_is_charged_only_what_the_service_reports(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[int]:
        charged = []
        for mark in (b"", b"X-Wharf-Cpu-Ms: 42\r\n"):
            exchange.send("GET /events")
            exchange.world.advance(30)
            await exchange.service.run_maintenance(should_renew=True)
            exchange.reply(OK + mark + b"Content-Length: 0\r\n\r\n")
            await exchange.settle()
            charged.append(exchange.count_used("cpu"))
        return charged

    assert run(tmp_path, scenario, rules=WAITING_EVENTS) == [0, 42]


def test_a_waiting_route_holds_a_slot_of_its_own_class(tmp_path: Path) -> None:
    rules = '[[rule]]\nname = "streams"\ncounts = "connections"\nconnection = "waiting"\nceiling = 2\n' + WAITING_EVENTS

    async def scenario(exchange: Exchange) -> tuple[int, int]:
        exchange.send("GET /events")
        return exchange.count_used("concurrent"), exchange.count_used("streams")

    assert run(tmp_path, scenario, rules=rules) == (0, 1)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_report_of_the_service_replaces_what_was_charged_while_the_request_ran(
    tmp_path: Path, is_local: bool
) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, int]:
        exchange.send()
        await exchange.settle_until_forwarded()
        for _ in range(4):
            exchange.world.advance(5)
            await exchange.service.run_maintenance(should_renew=True)
        charged_while_running = exchange.count_used("cpu")
        exchange.reply(OK + b"X-Wharf-Cpu-Ms: 40\r\nContent-Length: 0\r\n\r\n")
        await exchange.settle_until_ended()
        await wait_on_loop_until(lambda: exchange.count_used("cpu") < 20_000, what="the excess is taken back")
        return charged_while_running, exchange.count_used("cpu")

    assert run(tmp_path, scenario, is_local=is_local) == (20_000, 40)


def test_a_report_with_the_reply_that_opens_a_websocket_is_charged(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> int:
        exchange.send("GET /live", WEBSOCKET)
        exchange.world.advance(1)
        exchange.reply(SWITCH.replace(b"\r\n\r\n", b"\r\nX-Wharf-Cpu-Ms: 40\r\n\r\n"))
        exchange.connection.connection_lost(None)
        await exchange.settle()
        return exchange.count_used("cpu")

    assert run(tmp_path, scenario) == 40
