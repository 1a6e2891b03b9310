"""One look at a service. Whatever goes wrong is what was found: asking never fails."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import httpx2

from wharf.node.services.checks import MAX_OUTPUT_BYTES, CheckSpec, ProbeResult, truncate_output

# Of scripts, as monitors have had it for long.
WARNING_EXIT_CODE: Final = 1
# grpc.health.v1.HealthCheckResponse.ServingStatus
SERVING_STATUS: Final = 1
SERVING_STATUS_NAMES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

ScriptRunner = Callable[[tuple[str, ...]], Awaitable[tuple[int, str]]]
"""Runs a command where the task runs; its exit code and output. Cancelled when it takes too long."""


async def probe_service(wanted: CheckSpec, run_in_task: ScriptRunner) -> ProbeResult:
    try:
        async with asyncio.timeout(wanted.timeout_s):
            match wanted.kind:
                case "http":
                    return await _ask_http(wanted)
                case "tcp":
                    return await _ask_tcp(wanted)
                case "grpc":
                    return await _ask_grpc(wanted)
                case _:
                    return _judged(*await run_in_task(wanted.command))
    except TimeoutError:
        return ProbeResult(False, f"{wanted.kind}: no answer within {wanted.timeout_s:g} s")
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return ProbeResult(False, truncate_output(f"{wanted.kind}: {error or type(error).__name__}"))


async def _ask_http(wanted: CheckSpec) -> ProbeResult:
    host = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
    path = wanted.path if wanted.path.startswith("/") else f"/{wanted.path}"
    address = f"{'https' if wanted.is_tls else 'http'}://{host}:{wanted.port}{path}"
    extensions = {"sni_hostname": wanted.server_name} if wanted.server_name else {}
    # A service is asked itself: neither a proxy nor a place that it sends us to.
    async with (
        httpx2.AsyncClient(verify=not wanted.should_skip_tls_verify, trust_env=False, timeout=None) as client,
        client.stream(
            wanted.method or "GET",
            address,
            headers=list(wanted.headers),
            content=wanted.body or None,
            extensions=extensions,
        ) as answer,
    ):
        code = answer.status_code
        if code == 200:
            return ProbeResult(True, "wharf: http ok", code)
        said = b""
        async for piece in answer.aiter_bytes():
            said += piece
            if len(said) >= MAX_OUTPUT_BYTES:
                break
        return ProbeResult(code < 400, truncate_output(said.decode(errors="replace")), code)


async def _ask_tcp(wanted: CheckSpec) -> ProbeResult:
    context = ssl.create_default_context() if wanted.is_tls else None
    _, writer = await asyncio.open_connection(wanted.host, wanted.port, ssl=context)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeResult(True, "wharf: tcp ok")


async def _ask_grpc(wanted: CheckSpec) -> ProbeResult:
    """The standard service of health. Its two messages are small enough to be written by hand."""
    import grpc.aio  # type: ignore[import-untyped]  # The library ships no types. Heavy, and rarely wanted.

    name = wanted.grpc_service.encode()
    request = b"\x0a" + _varint(len(name)) + name if name else b""
    target = f"{wanted.host}:{wanted.port}"
    channel = (
        grpc.aio.secure_channel(target, grpc.ssl_channel_credentials())
        if wanted.is_tls
        else grpc.aio.insecure_channel(target)
    )
    async with channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            answer: bytes = await check(request, timeout=wanted.timeout_s)
        except grpc.aio.AioRpcError as error:
            return ProbeResult(False, truncate_output(f"grpc: {error.code().name}: {error.details()}"))
    serving = answer[1] if len(answer) >= 2 and answer[0] == 0x08 else 0
    return ProbeResult(serving == SERVING_STATUS, f"grpc: {SERVING_STATUS_NAMES.get(serving, str(serving))}")


def _varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def _judged(code: int, output: str) -> ProbeResult:
    return ProbeResult(code == 0, truncate_output(output), is_warning=code == WARNING_EXIT_CODE)
