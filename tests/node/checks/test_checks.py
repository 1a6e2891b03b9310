"""Health checks: the result of one probe, and the status after several."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc  # type: ignore[import-untyped]  # the library ships no types
import grpc.aio  # type: ignore[import-untyped]
import pytest

from wharf.cli.alloc.group import format_check_output
from wharf.node.services import CheckSpec, CheckStatus, ProbeResult, apply_probe_result, probe_service, should_restart
from wharf.node.services.checks import MAX_OUTPUT_BYTES, CheckState, create_check_state

WELL, ILL, WARNED = ProbeResult(True, "ok"), ProbeResult(False, "no"), ProbeResult(False, "hm", is_warning=True)


def wanted(kind: str = "tcp", **more: Any) -> CheckSpec:
    return CheckSpec("c1", "a check", kind, 1.0, more.pop("timeout_s", 5.0), host="127.0.0.1", **more)


async def no_task(_: tuple[str, ...]) -> tuple[int, str]:
    raise AssertionError("no script is run")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@contextlib.asynccontextmanager
async def service(answer: bytes | None, heard: list[bytes] | None = None) -> AsyncIterator[int]:
    """Answers each connection with these bytes; None: with silence."""
    served, begun = asyncio.Semaphore(0), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal begun
        begun += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if answer is None:
                await reader.read()
            else:
                head = await reader.readuntil(b"\r\n\r\n")
                if heard is not None:
                    heard.append(head)
                writer.write(answer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        served.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        # Whoever asked may be gone before it is taken in: its connection is waited for all the same.
        await served.acquire()
        for _ in range(begun - 1):
            await served.acquire()


def http(status: str, body: bytes = b"", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (http("200 OK", b"hello"), ProbeResult(True, "wharf: http ok", 200)),
        (http("204 No Content"), ProbeResult(True, "", 204)),
        (http("302 Found", b"over there", "Location: http://127.0.0.1:1/\r\n"), ProbeResult(True, "over there", 302)),
        (http("404 Not Found", b"nothing"), ProbeResult(False, "nothing", 404)),
        (http("500 Error", b"\xff"), ProbeResult(False, "\ufffd", 500)),
    ],
)
def test_a_service_is_healthy_when_its_status_is_below_400(answer: bytes, finding: ProbeResult) -> None:
    async def work() -> None:
        async with service(answer) as port:
            assert finding == await probe_service(wanted("http", port=port), no_task)

    run(work())


def test_method_path_headers_and_body_come_from_the_check() -> None:
    async def work() -> None:
        heard: list[bytes] = []
        async with service(http("200 OK"), heard) as port:
            check = wanted(
                "http", port=port, method="PUT", path="health", headers=(("X-A", "1"), ("X-A", "2")), body="{}"
            )
            await probe_service(check, no_task)

        head = heard[0].lower()
        assert head.startswith(b"put /health http/1.1\r\n")
        assert 2 == head.count(b"x-a: ")
        assert b"content-length: 2" in head

    run(work())


def test_a_long_reply_is_truncated() -> None:
    async def work() -> None:
        async with service(http("500 Error", "é".encode() * MAX_OUTPUT_BYTES)) as port:
            found = await probe_service(wanted("http", port=port), no_task)

        assert "é" * (MAX_OUTPUT_BYTES // 2) == found.output

    run(work())


@pytest.mark.parametrize("kind", ["http", "tcp", "grpc"])
def test_an_unreachable_service_is_unhealthy(kind: str) -> None:
    async def work() -> None:
        found = await probe_service(wanted(kind, port=1), no_task)

        assert not found.is_healthy
        assert found.output.startswith(f"{kind}: ")

    run(work())


def test_a_service_that_does_not_reply_is_unhealthy() -> None:
    async def work() -> None:
        async with service(None) as port:
            found = await probe_service(wanted("http", port=port, timeout_s=0.1), no_task)

        assert ProbeResult(False, "http: no reply within 0.1 s") == found

    run(work())


def test_a_port_that_accepts_connections_is_healthy() -> None:
    async def work() -> None:
        async with service(None) as port:
            assert ProbeResult(True, "wharf: tcp ok") == await probe_service(wanted("tcp", port=port), no_task)

    run(work())


@pytest.mark.parametrize(
    ("service_name", "finding"),
    [("", ProbeResult(True, "grpc: SERVING")), ("shop", ProbeResult(False, "grpc: NOT_SERVING"))],
)
def test_a_grpc_service_reports_its_own_health(service_name: str, finding: ProbeResult) -> None:
    async def check(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return b"\x08\x02" if b"shop" in request else b"\x08\x01"

    async def work() -> None:
        server = grpc.aio.server()
        methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            assert finding == await probe_service(wanted("grpc", port=port, grpc_service=service_name), no_task)
        finally:
            await server.stop(None)

    run(work())


@pytest.mark.parametrize(
    ("code", "finding"),
    [(0, ProbeResult(True, "x")), (1, ProbeResult(False, "x", is_warning=True)), (2, ProbeResult(False, "x"))],
)
def test_the_exit_code_of_a_script_is_the_result(code: int, finding: ProbeResult) -> None:
    ran: list[tuple[str, ...]] = []

    async def run_in_task(command: tuple[str, ...]) -> tuple[int, str]:
        ran.append(command)
        return code, "x"

    async def work() -> None:
        assert finding == await probe_service(wanted("script", command=("/bin/check", "-a")), run_in_task)

    run(work())
    assert [("/bin/check", "-a")] == ran


def test_a_script_that_takes_too_long_is_unhealthy() -> None:
    async def hang(_: tuple[str, ...]) -> tuple[int, str]:
        await asyncio.Event().wait()
        return 0, ""

    async def work() -> None:
        assert ProbeResult(False, "script: no reply within 0.05 s") == await probe_service(
            wanted("script", timeout_s=0.05), hang
        )

    run(work())


# -- what a row of findings means


def row(check: CheckSpec, *findings: ProbeResult, runs_for_s: float = 100.0) -> CheckState:
    standing = create_check_state(check)
    for at_ns, finding in enumerate(findings):
        standing = apply_probe_result(standing, check, finding, at_ns=at_ns, running_for_s=runs_for_s)
    return standing


@pytest.mark.parametrize(
    ("check", "findings", "status"),
    [
        (wanted(), [], CheckStatus.PENDING),
        (wanted(is_initially_passing=True), [], CheckStatus.SUCCESS),
        (wanted(), [WELL], CheckStatus.SUCCESS),
        (wanted(), [WELL, ILL], CheckStatus.FAILURE),
        (wanted(successes_needed=2), [WELL], CheckStatus.PENDING),
        (wanted(successes_needed=2), [WELL, ILL, WELL], CheckStatus.FAILURE),
        (wanted(successes_needed=2), [ILL, WELL, WELL], CheckStatus.SUCCESS),
        (wanted(failures_needed=3), [WELL, ILL, ILL], CheckStatus.SUCCESS),
        (wanted(failures_needed=3), [WELL, ILL, ILL, ILL], CheckStatus.FAILURE),
        (wanted(), [WARNED], CheckStatus.FAILURE),
        (wanted(should_ignore_warnings=True), [WARNED], CheckStatus.SUCCESS),
    ],
)
def test_a_status_changes_after_enough_equal_results_in_a_row(
    check: CheckSpec, findings: list[ProbeResult], status: CheckStatus
) -> None:
    assert status == row(check, *findings).status


@pytest.mark.parametrize(
    ("check", "findings", "runs_for_s", "wants"),
    [
        (wanted(), [ILL] * 9, 100, False),
        (wanted(restart_limit=3), [ILL, ILL], 100, False),
        (wanted(restart_limit=3), [ILL, ILL, ILL], 100, True),
        (wanted(restart_limit=3), [ILL, ILL, WELL, ILL], 100, False),
        (wanted(restart_limit=1, restart_grace_s=10), [ILL, ILL], 9, False),
        (wanted(restart_limit=1, restart_grace_s=10), [ILL], 10, True),
        (wanted(restart_limit=1), [WARNED], 100, True),
        (wanted(restart_limit=1, should_ignore_warnings_for_restart=True), [WARNED], 100, False),
    ],
)
def test_a_task_is_restarted_after_the_configured_number_of_failures(
    check: CheckSpec, findings: list[ProbeResult], runs_for_s: float, wants: bool
) -> None:
    assert wants is should_restart(row(check, *findings, runs_for_s=runs_for_s), check)


def test_the_output_of_a_check_is_one_line_with_its_status() -> None:
    page = {"Status": "failure", "StatusCode": 404, "Output": "<html>\n  <p>not   here\n" + "x" * 200}

    assert f"404: <html> <p>not here {'x' * 81}…" == format_check_output(page)
    assert "wharf: http ok" == format_check_output({"Status": "success", "StatusCode": 200, "Output": "wharf: http ok"})
