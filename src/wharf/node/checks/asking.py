"""One look at a service. Whatever goes wrong is what was found: asking never fails."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import httpx2

from wharf.node.checks.finding import OUTPUT_MAX_BYTES, Finding, cut
from wharf.node.checks.wanted import Wanted

# Of scripts, as monitors have had it for long.
WARNING_CODE: Final = 1
# grpc.health.v1.HealthCheckResponse.ServingStatus
SERVING: Final = 1
SERVING_NAMES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

RunInTask = Callable[[tuple[str, ...]], Awaitable[tuple[int, str]]]
"""Runs a command where the task runs; its exit code and output. Cancelled when it takes too long."""


async def ask(wanted: Wanted, run_in_task: RunInTask) -> Finding:
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
        return Finding(False, f"{wanted.kind}: no answer within {wanted.timeout_s:g} s")
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Finding(False, cut(f"{wanted.kind}: {error or type(error).__name__}"))


async def _ask_http(wanted: Wanted) -> Finding:
    host = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
    path = wanted.path if wanted.path.startswith("/") else f"/{wanted.path}"
    address = f"{'https' if wanted.is_tls else 'http'}://{host}:{wanted.port}{path}"
    extensions = {"sni_hostname": wanted.server_name} if wanted.server_name else {}
    # A service is asked itself: neither a proxy nor a place that it sends us to.
    async with (
        httpx2.AsyncClient(verify=not wanted.skips_verify, trust_env=False, timeout=None) as client,
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
            return Finding(True, "wharf: http ok", code)
        said = b""
        async for piece in answer.aiter_bytes():
            said += piece
            if len(said) >= OUTPUT_MAX_BYTES:
                break
        return Finding(code < 400, cut(said.decode(errors="replace")), code)


async def _ask_tcp(wanted: Wanted) -> Finding:
    context = ssl.create_default_context() if wanted.is_tls else None
    _, writer = await asyncio.open_connection(wanted.host, wanted.port, ssl=context)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Finding(True, "wharf: tcp ok")


async def _ask_grpc(wanted: Wanted) -> Finding:
    """The standard service of health. Its two messages are small enough to be written by hand."""
    import grpc.aio  # type: ignore[import-untyped]  # The library ships no types. Heavy, and rarely wanted.

    name = wanted.service.encode()
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
            return Finding(False, cut(f"grpc: {error.code().name}: {error.details()}"))
    serving = answer[1] if len(answer) >= 2 and answer[0] == 0x08 else 0
    return Finding(serving == SERVING, f"grpc: {SERVING_NAMES.get(serving, str(serving))}")


def _varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def _judged(code: int, output: str) -> Finding:
    return Finding(code == 0, cut(output), is_warning=code == WARNING_CODE)
