"""Health checks: the result of one probe, and the status after several."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]  # the library ships no types
import grpc.aio  # type: ignore[import-untyped]
import pytest

from wharf.cli.alloc.group import format_check_output
from wharf.node.services import CheckSpec, CheckStatus, ProbeResult, apply_probe_result, probe_service, should_restart
from wharf.node.services.checks import MAX_OUTPUT_BYTES, CheckState, create_check_state

PASSED, FAILED, WARNED = ProbeResult(True, "ok"), ProbeResult(False, "no"), ProbeResult(False, "hm", is_warning=True)


def create_check(kind: str = "tcp", **more: Any) -> CheckSpec:
    return CheckSpec("c1", "a check", kind, 1.0, more.pop("timeout_s", 5.0), host="127.0.0.1", **more)


async def refuse_script(_: tuple[str, ...]) -> tuple[int, str]:
    raise AssertionError("no script is run")


@contextlib.asynccontextmanager
async def run_service(reply: bytes | None, requests: list[bytes] | None = None) -> AsyncIterator[int]:
    """Run a server that sends these bytes to each connection, or nothing for `None`."""
    served, accepted_count = asyncio.Semaphore(0), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted_count
        accepted_count += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if reply is None:
                await reader.read()
            else:
                head = await reader.readuntil(b"\r\n\r\n")
                if requests is not None:
                    requests.append(head)
                writer.write(reply)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        served.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        # A client may disconnect before its connection is accepted. Wait until the server has accepted it.
        await served.acquire()
        for _ in range(accepted_count - 1):
            await served.acquire()


def build_http_reply(status: str, body: bytes = b"", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (build_http_reply("200 OK", b"hello"), ProbeResult(True, "wharf: http ok", 200)),
        (build_http_reply("204 No Content"), ProbeResult(True, "", 204)),
        (
            build_http_reply("302 Found", b"over there", "Location: http://127.0.0.1:1/\r\n"),
            ProbeResult(True, "over there", 302),
        ),
        (build_http_reply("404 Not Found", b"nothing"), ProbeResult(False, "nothing", 404)),
        (build_http_reply("500 Error", b"\xff"), ProbeResult(False, "\ufffd", 500)),
    ],
)
def test_a_service_is_healthy_when_its_status_is_below_400(reply: bytes, expected: ProbeResult) -> None:
    async def scenario() -> None:
        async with run_service(reply) as port:
            assert expected == await probe_service(create_check("http", port=port), refuse_script)

    asyncio.run(scenario())


def test_method_path_headers_and_body_come_from_the_check() -> None:
    async def scenario() -> None:
        requests: list[bytes] = []
        async with run_service(build_http_reply("200 OK"), requests) as port:
            check = create_check(
                "http", port=port, method="PUT", path="health", headers=(("X-A", "1"), ("X-A", "2")), body="{}"
            )
            await probe_service(check, refuse_script)

        head = requests[0].lower()
        assert head.startswith(b"put /health http/1.1\r\n")
        assert 2 == head.count(b"x-a: ")
        assert b"content-length: 2" in head

    asyncio.run(scenario())


def test_a_long_reply_is_truncated() -> None:
    async def scenario() -> None:
        async with run_service(build_http_reply("500 Error", "é".encode() * MAX_OUTPUT_BYTES)) as port:
            result = await probe_service(create_check("http", port=port), refuse_script)

        assert "é" * (MAX_OUTPUT_BYTES // 2) == result.output

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["http", "tcp", "grpc"])
def test_an_unreachable_service_is_unhealthy(kind: str) -> None:
    async def scenario() -> None:
        result = await probe_service(create_check(kind, port=1), refuse_script)

        assert not result.is_healthy
        assert result.output.startswith(f"{kind}: ")

    asyncio.run(scenario())


def test_a_service_that_does_not_reply_is_unhealthy() -> None:
    async def scenario() -> None:
        async with run_service(None) as port:
            result = await probe_service(create_check("http", port=port, timeout_s=0.1), refuse_script)

        assert ProbeResult(False, "http: no reply within 0.1 s") == result

    asyncio.run(scenario())


def test_a_port_that_accepts_connections_is_healthy() -> None:
    async def scenario() -> None:
        async with run_service(None) as port:
            assert ProbeResult(True, "wharf: tcp ok") == await probe_service(
                create_check("tcp", port=port), refuse_script
            )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("service_name", "expected"),
    [("", ProbeResult(True, "grpc: SERVING")), ("shop", ProbeResult(False, "grpc: NOT_SERVING"))],
)
def test_a_grpc_service_reports_its_own_health(service_name: str, expected: ProbeResult) -> None:
    async def check(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return b"\x08\x02" if b"shop" in request else b"\x08\x01"

    async def scenario() -> None:
        server = grpc.aio.server()
        methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            assert expected == await probe_service(
                create_check("grpc", port=port, grpc_service=service_name), refuse_script
            )
        finally:
            await server.stop(None)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, ProbeResult(True, "x")), (1, ProbeResult(False, "x", is_warning=True)), (2, ProbeResult(False, "x"))],
)
def test_the_exit_code_of_a_script_is_the_result(code: int, expected: ProbeResult) -> None:
    commands: list[tuple[str, ...]] = []

    async def run_in_task(command: tuple[str, ...]) -> tuple[int, str]:
        commands.append(command)
        return code, "x"

    async def scenario() -> None:
        assert expected == await probe_service(create_check("script", command=("/bin/check", "-a")), run_in_task)

    asyncio.run(scenario())
    assert [("/bin/check", "-a")] == commands


def test_a_script_that_takes_too_long_is_unhealthy() -> None:
    async def hang(_: tuple[str, ...]) -> tuple[int, str]:
        await asyncio.Event().wait()
        return 0, ""

    async def scenario() -> None:
        assert ProbeResult(False, "script: no reply within 0.05 s") == await probe_service(
            create_check("script", timeout_s=0.05), hang
        )

    asyncio.run(scenario())


# -- the status after several results


def apply_results(check: CheckSpec, *results: ProbeResult, runs_for_s: float = 100.0) -> CheckState:
    state = create_check_state(check)
    for at_ns, result in enumerate(results):
        state = apply_probe_result(state, check, result, at_ns=at_ns, running_for_s=runs_for_s)
    return state


@pytest.mark.parametrize(
    ("check", "results", "status"),
    [
        (create_check(), [], CheckStatus.PENDING),
        (create_check(is_initially_passing=True), [], CheckStatus.SUCCESS),
        (create_check(), [PASSED], CheckStatus.SUCCESS),
        (create_check(), [PASSED, FAILED], CheckStatus.FAILURE),
        (create_check(successes_needed=2), [PASSED], CheckStatus.PENDING),
        (create_check(successes_needed=2), [PASSED, FAILED, PASSED], CheckStatus.FAILURE),
        (create_check(successes_needed=2), [FAILED, PASSED, PASSED], CheckStatus.SUCCESS),
        (create_check(failures_needed=3), [PASSED, FAILED, FAILED], CheckStatus.SUCCESS),
        (create_check(failures_needed=3), [PASSED, FAILED, FAILED, FAILED], CheckStatus.FAILURE),
        (create_check(), [WARNED], CheckStatus.FAILURE),
        (create_check(should_ignore_warnings=True), [WARNED], CheckStatus.SUCCESS),
    ],
)
def test_a_status_changes_after_enough_equal_results_in_a_row(
    check: CheckSpec, results: list[ProbeResult], status: CheckStatus
) -> None:
    assert status == apply_results(check, *results).status


@pytest.mark.parametrize(
    ("check", "results", "runs_for_s", "expected"),
    [
        (create_check(), [FAILED] * 9, 100, False),
        (create_check(restart_limit=3), [FAILED, FAILED], 100, False),
        (create_check(restart_limit=3), [FAILED, FAILED, FAILED], 100, True),
        (create_check(restart_limit=3), [FAILED, FAILED, PASSED, FAILED], 100, False),
        (create_check(restart_limit=1, restart_grace_s=10), [FAILED, FAILED], 9, False),
        (create_check(restart_limit=1, restart_grace_s=10), [FAILED], 10, True),
        (create_check(restart_limit=1), [WARNED], 100, True),
        (create_check(restart_limit=1, should_ignore_warnings_for_restart=True), [WARNED], 100, False),
    ],
)
def test_a_task_is_restarted_after_the_configured_number_of_failures(
    check: CheckSpec, results: list[ProbeResult], runs_for_s: float, expected: bool
) -> None:
    assert expected is should_restart(apply_results(check, *results, runs_for_s=runs_for_s), check)


def test_the_output_of_a_check_is_one_line_with_its_status() -> None:
    page = {"Status": "failure", "StatusCode": 404, "Output": "<html>\n  <p>not   here\n" + "x" * 200}

    assert f"404: <html> <p>not here {'x' * 81}…" == format_check_output(page)
    assert "wharf: http ok" == format_check_output({"Status": "success", "StatusCode": 200, "Output": "wharf: http ok"})
