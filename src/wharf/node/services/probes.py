"""Probes a service once: by HTTP, TCP, gRPC or a script in the task.

Every error becomes a result, so probing never fails.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from wharf.node.services.checks import CheckSpec, ProbeResult, truncate_output
from wharf.node.services.http_probe import InvalidReply, load_check_context, send_request
from wharf.world.addresses import format_host_and_port

log = logging.getLogger(__name__)

# The exit code by which check scripts of monitoring systems report a warning.
WARNING_EXIT_CODE: Final = 1
# grpc.health.v1.HealthCheckResponse.ServingStatus
SERVING_STATUS: Final = 1
SERVING_STATUS_NAMES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

ScriptRunner = Callable[[tuple[str, ...]], Awaitable[tuple[int, str]]]
"""Runs a command in the task; returns its exit code and output. Canceled when it takes too long."""


async def probe_service(spec: CheckSpec, run_in_task: ScriptRunner) -> ProbeResult:
    """Probe the service once and return the result. An error or a timeout is a failed result.

    `run_in_task` runs the command of a script check in the task.
    """
    if spec.problem:
        return ProbeResult(False, truncate_output(f"{spec.kind}: {spec.problem}"))
    try:
        async with asyncio.timeout(spec.timeout_s):
            match spec.kind:
                case "http":
                    return await _probe_http(spec)
                case "tcp":
                    return await _probe_tcp(spec)
                case "grpc":
                    return await _probe_grpc(spec)
                case _:
                    return _build_script_result(*await run_in_task(spec.command))
    except TimeoutError:
        return ProbeResult(False, f"{spec.kind}: no reply within {spec.timeout_s:g} s")
    except (OSError, InvalidReply) as error:
        return ProbeResult(False, truncate_output(f"{spec.kind}: {error or type(error).__name__}"))
    except Exception as error:  # A library rejects an input, or the service sends what the library cannot read.
        log.info("probe failed: unexpected error check=%s", spec.name, exc_info=error)
        return ProbeResult(False, truncate_output(f"{spec.kind}: {type(error).__name__}: {error}"))


async def _probe_http(spec: CheckSpec) -> ProbeResult:
    """Send an HTTP request. Return a healthy result for a status below 400. Raises OSError and InvalidReply.

    The service itself is probed: proxies and redirects are ignored.
    """
    reply = await send_request(spec)
    output = "wharf: http ok" if reply.status == 200 else reply.body.decode(errors="replace")
    return ProbeResult(reply.status < 400, truncate_output(output), reply.status)


async def _probe_tcp(spec: CheckSpec) -> ProbeResult:
    """Open a TCP connection, with TLS if the check requests it. Return a healthy result. Raises OSError if it fails."""
    _, writer = await asyncio.open_connection(
        spec.host,
        spec.port,
        ssl=await load_check_context(spec) if spec.is_tls else None,
        server_hostname=(spec.server_name or spec.host) if spec.is_tls else None,
    )
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeResult(True, "wharf: tcp ok")


async def _probe_grpc(spec: CheckSpec) -> ProbeResult:
    """Call the standard gRPC health service. Return a healthy result if it reports SERVING.

    Its messages are encoded by hand: byte 0x0a and the length precede the service name, and byte 0x08 the status.
    """
    from wharf.world.quiet_grpc import grpc  # Imported here, because it is large and rarely needed.

    name = spec.grpc_service.encode()
    request = b"\x0a" + _encode_varint(len(name)) + name if name else b""
    target = format_host_and_port(spec.host, spec.port)
    channel = (
        grpc.aio.secure_channel(target, grpc.ssl_channel_credentials())
        if spec.is_tls
        else grpc.aio.insecure_channel(target)
    )
    async with channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            response: bytes = await check(request, timeout=spec.timeout_s)
        except grpc.aio.AioRpcError as error:
            return ProbeResult(False, truncate_output(f"grpc: {error.code().name}: {error.details()}"))
    serving = response[1] if len(response) >= 2 and response[0] == 0x08 else 0
    return ProbeResult(serving == SERVING_STATUS, f"grpc: {SERVING_STATUS_NAMES.get(serving, str(serving))}")


def _encode_varint(number: int) -> bytes:
    """Return a number as a protobuf varint: 7 bits in each byte, lowest first; the high bit means that more follow."""
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def _build_script_result(exit_code: int, output: str) -> ProbeResult:
    """Return the result of a check script: code 0 is healthy, 1 is a warning, others are unhealthy."""
    return ProbeResult(exit_code == 0, truncate_output(output), is_warning=exit_code == WARNING_EXIT_CODE)
