"""Health checks: the result of one probe, and the status after several."""

import asyncio
import contextlib
import gzip
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # the library ships no types
import grpc.aio  # type: ignore[import-untyped]
import pytest

from wharf.agent.tls.certificates import create_certificates
from wharf.cli.alloc.group import format_check_output
from wharf.node.open_files import FairSlots
from wharf.node.services import CheckSpec, CheckStatus, ProbeResult, apply_probe_result, probe_service, should_restart
from wharf.node.services.check_runner import CheckRunner
from wharf.node.services.checks import MAX_OUTPUT_BYTES, CheckState, create_check_state, find_input_problem
from wharf.node.services.http_probe import build_request
from wharf.node.services.registrations import AllocationCheck
from wharf.world import RealWorld

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


def test_a_compressed_reply_is_shown_as_it_was_sent() -> None:
    async def scenario() -> None:
        requests: list[bytes] = []
        body = gzip.compress(b"x" * 20_000_000, 1)
        async with run_service(build_http_reply("500 Error", body, "Content-Encoding: gzip\r\n"), requests) as port:
            result = await probe_service(create_check("http", port=port), refuse_script)

        assert body[:3].decode(errors="replace") == result.output[:3]
        assert b"accept-encoding: identity" in requests[0].lower()

    asyncio.run(scenario())


def test_a_reply_without_an_end_is_read_up_to_the_limit_and_the_connection_is_closed() -> None:
    async def scenario() -> None:
        is_closed = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Error\r\n\r\n")
            with contextlib.suppress(OSError):
                while True:
                    writer.write(b"z" * 4_096)
                    await writer.drain()
            is_closed.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            check = create_check("http", port=server.sockets[0].getsockname()[1])
            assert ProbeResult(False, "z" * MAX_OUTPUT_BYTES, 500) == await probe_service(check, refuse_script)
            await asyncio.wait_for(is_closed.wait(), 10)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + build_http_reply("404 No", b"x"), ProbeResult(False, "x", 404)),
        (b"HTTP/1.1 101 Switching\r\n\r\n", ProbeResult(True, "", 101)),
        (b"HTTP/1.0 500 No\r\n\r\nto the end", ProbeResult(False, "to the end", 500)),
        (b"HTTP/1.1 500\r\nContent-Length: 2\r\n\r\nabc", ProbeResult(False, "ab", 500)),
        (
            b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            ProbeResult(False, "abcde", 500),
        ),
        (
            b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n",
            ProbeResult(False, "http: the reply has a chunk of the size b'-3'"),
        ),
        (
            b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n" + b"q" * 0x2000 + b"\r\n0\r\n\r\n",
            ProbeResult(False, "q" * MAX_OUTPUT_BYTES, 500),
        ),
        (
            b"HTTP/1.1 100 A\r\n\r\n" * 5_000,
            ProbeResult(False, "http: the service sent more than 10 informational replies"),
        ),
        (
            b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
            ProbeResult(False, "http: a line of the reply or its head has more than 65536 bytes"),
        ),
        (
            b"HTTP/1.1 200 OK\r\nx: y",
            ProbeResult(False, "http: the service closed the connection before its reply was complete"),
        ),
        (
            b"220 mail\r\n\r\n",
            ProbeResult(False, "http: the service does not speak HTTP: its reply begins with '220 mail'"),
        ),
        (
            "HTTP/1.1 ²²² x\r\n\r\n".encode("latin-1"),
            ProbeResult(False, "http: the service does not speak HTTP: its reply begins with 'HTTP/1.1 ²²² x'"),
        ),
    ],
)
def test_a_reply_is_read_up_to_its_limits(reply: bytes, expected: ProbeResult) -> None:
    async def scenario() -> None:
        async with run_service(reply) as port:
            assert expected == await probe_service(create_check("http", port=port), refuse_script)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {},
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: wharf\r\nAccept: */*\r\nAccept-Encoding: identity"
            b"\r\nConnection: close\r\n\r\n",
        ),
        (
            {"method": "POST", "path": "ä b?q=%20&x=1#part", "headers": (("host", "web"), ("Accept-Encoding", "gzip"))},
            b"POST /%C3%A4%20b?q=%20&x=1 HTTP/1.1\r\nUser-Agent: wharf\r\nAccept: */*\r\nhost: web\r\nAccept-Encoding: gzip"
            b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (
            {"body": "ü", "headers": (("Content-Length", "9"), ("Connection", "keep-alive"), ("User-Agent", "u"))},
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: u\r\n"
            b"Content-Length: 2\r\nConnection: close\r\n\r\n\xc3\xbc",
        ),
    ],
)
def test_the_request_of_a_check_is_exact(more: dict[str, Any], expected: bytes) -> None:
    assert expected == build_request(create_check("http", port=8_000, **more))


@pytest.mark.parametrize("kind", ["http", "tcp"])
@pytest.mark.parametrize(("skips", "name", "is_healthy"), [(True, "", True), (False, "", False), (True, "web", True)])
def test_tls_is_verified_unless_the_check_skips_that(
    tmp_path: Path, kind: str, skips: bool, name: str, is_healthy: bool
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(build_http_reply("200 OK"))
            await writer.drain()
        writer.close()

    async def scenario() -> ProbeResult:
        create_certificates(
            tmp_path,
            region="global",
            is_server=True,
            files_name=None,
            alternative_names=(),
            days=5,
            authority_days=10,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server-global.pem", tmp_path / "server-global-key.pem")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        async with server:
            check = create_check(
                kind,
                port=server.sockets[0].getsockname()[1],
                is_tls=True,
                should_skip_tls_verify=skips,
                server_name=name,
            )
            return await probe_service(check, refuse_script)

    result = asyncio.run(scenario())
    assert is_healthy is result.is_healthy
    assert is_healthy or "CERTIFICATE_VERIFY_FAILED" in result.output


def test_the_value_of_a_header_may_contain_letters_of_all_languages() -> None:
    async def scenario() -> None:
        requests: list[bytes] = []
        async with run_service(build_http_reply("200 OK"), requests) as port:
            check = create_check("http", port=port, headers=(("X-Name", "Grüße"),))
            assert ProbeResult(True, "wharf: http ok", 200) == await probe_service(check, refuse_script)

        assert "x-name: grüße".encode() in requests[0].lower().replace("Grüße".encode(), "grüße".encode())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (create_check("http", port=80, method="GE T"), "method 'GE T' is not an HTTP method"),
        (create_check("http", port=80, method="GRÜN"), "method 'GRÜN' is not an HTTP method"),
        (create_check("http", port=80, headers=(("X-Ä", "1"),)), "header 'X-Ä' is not a name of an HTTP header"),
        (create_check("http", port=80, headers=(("X-A", "1\r\nX-B: 2"),)), 'header "X-A" contains a control character'),
        (create_check("http", port=80, path="/a\nb"), "path contains the control character '\\n'"),
        (create_check("http", port=80, server_name="."), "TLS server name '.' is not a host name"),
        (create_check("http", port=0), "no address: port 0 is not between 1 and 65535"),
        (create_check("tcp", port=99_999), "no address: port 99999 is not between 1 and 65535"),
        (create_check("script", command=("/bin/check", "a\0b")), "the command has a zero byte"),
        (create_check(port=80)._replace(name="a\nb"), "the name of the check contains the character U+000A"),
        (create_check("http", port=80, headers=(("X-A", "Grüße\t1"),), path="/ä ö"), ""),
    ],
)
def test_inputs_that_no_probe_can_send_are_named(check: CheckSpec, problem: str) -> None:
    assert problem == find_input_problem(check)[: len(problem)]
    assert bool(problem) is bool(find_input_problem(check))


@pytest.mark.parametrize(
    "check",
    [
        create_check("http", port=1, method="G\0"),
        create_check("http", port=1, path="/\ud800"),
        create_check("http", port=1, headers=(("X", "\ud800"),)),
        create_check("http", port=1, body="\ud800"),
        create_check("http", port=99_999),
        create_check("http", port=1, is_tls=True, server_name="x" * 300),
        create_check("tcp", port=-1),
        create_check("tcp", port=2**64),
        create_check("grpc", port=2**64),
        create_check("grpc", port=1, grpc_service="\ud800"),
    ],
)
def test_any_other_wrong_input_is_a_failed_result_with_a_reason(check: CheckSpec) -> None:
    async def scenario() -> None:
        result = await probe_service(check, refuse_script)

        assert not result.is_healthy
        assert result.output.startswith(f"{check.kind}: ")

    asyncio.run(scenario())


def test_an_error_of_the_node_while_it_runs_a_check_is_shown_as_its_result(caplog: pytest.LogCaptureFixture) -> None:
    has_failed = asyncio.Event()

    def fail(_: str, __: object) -> None:
        has_failed.set()
        raise ZeroDivisionError

    async def succeed(_: str, __: str, ___: tuple[str, ...]) -> tuple[int, str]:
        return 0, "fine"

    async def scenario() -> None:
        runner = CheckRunner(RealWorld(), fail, succeed, FairSlots(8))
        check = AllocationCheck(create_check("script", command=("/bin/check",), restart_limit=0), "s", "t", "t")
        runner.set_checks("a", "a.g[0]", [check])
        with caplog.at_level(logging.ERROR):
            runner.update_running_checks("a", lambda _: 1.0)
            await has_failed.wait()
            for _ in range(5):  # The failed task ends, then its error is reported.
                await asyncio.sleep(0)
        results = await runner.build_results("a")

        assert "internal error of the node: ZeroDivisionError; its log has the details" == results["c1"].output
        assert "failure" == results["c1"].status

    asyncio.run(scenario())


def test_hanging_checks_of_one_namespace_do_not_delay_those_of_another() -> None:
    async def scenario() -> tuple[int, str]:
        is_hanging_count = 0

        async def run(allocation: str, _: str, __: tuple[str, ...]) -> tuple[int, str]:
            nonlocal is_hanging_count
            if allocation == "hog":
                is_hanging_count += 1
                await asyncio.Event().wait()
            return 0, "fine"

        has_passed = asyncio.Event()

        def on_event(allocation: str, _: object) -> None:
            if allocation == "other":
                has_passed.set()

        runner = CheckRunner(RealWorld(), on_event, run, FairSlots(8))
        script = create_check("script", command=("/bin/check",), restart_limit=0)
        runner.set_checks("hog", "hog.g[0]", [AllocationCheck(script, "s", "t", "t")] * 20, namespace="one")
        runner.set_checks("other", "other.g[0]", [AllocationCheck(script, "s", "t", "t")], namespace="two")
        for allocation in ("hog", "other"):
            runner.update_running_checks(allocation, lambda _: 1.0)
        await has_passed.wait()
        results = await runner.build_results("other")
        for allocation in ("hog", "other"):
            runner.remove_checks(allocation)
        return is_hanging_count, results["c1"].status

    assert asyncio.run(scenario()) == (4, "success")


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
