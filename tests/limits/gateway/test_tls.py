"""The gateway with TLS, on the side of its callers and on the side of its service."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest

from tests.limits.decision_services import run_async
from tests.limits.gateway.running_gateway import RunningGateway, run_gateway, run_scenario
from wharf.agent.tls import certificates
from wharf.agent.tls.certificates import CreatedCertificate
from wharf.world import tls_listener


def make_certificates(folder: Path) -> tuple[CreatedCertificate, CreatedCertificate]:
    """Return the files of an authority, and of a server's certificate for localhost that it issued."""
    created = certificates.create_certificates(
        folder / "tls",
        region="global",
        is_server=True,
        files_name="here",
        alternative_names=(),
        days=1,
        authority_days=1,
    )
    return created[0], created[-1]


def test_the_gateway_speaks_tls_with_callers(tmp_path: Path) -> None:
    authority, server = make_certificates(tmp_path)
    client_tls = ssl.create_default_context(cafile=str(authority.certificate_file))

    async def scenario(running: RunningGateway) -> tuple[bytes, str]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", running.gateway.port, ssl=client_tls, server_hostname="localhost"
        )
        writer.write(b"GET /things HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return received, running.service.requests[0].headers["x-forwarded-proto"]

    files = f'certificate_file = "{server.certificate_file}"\nkey_file = "{server.key_file}"'
    received, scheme = run_scenario(tmp_path, scenario, gateway=files)

    assert received.endswith(b"\r\n\r\nhello")
    assert b"x-ratelimit-limit: 60\r\n" in received
    assert scheme == "https"


def test_the_gateway_trusts_only_the_configured_authority_of_the_service(tmp_path: Path) -> None:
    authority, server = make_certificates(tmp_path)
    service_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    service_tls.load_cert_chain(str(server.certificate_file), str(server.key_file))

    async def scenario(settings: str) -> tuple[int, bytes]:
        async def serve_secret(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
            await writer.drain()
            writer.close()

        service = await asyncio.start_server(serve_secret, "127.0.0.1", 0, ssl=service_tls)
        port = service.sockets[0].getsockname()[1]
        async with run_gateway(tmp_path, gateway=settings, upstream=f"https://localhost:{port}") as running:
            reply = await running.request()
        service.close()
        return reply.status, reply.body[:6]

    assert run_async(lambda: scenario(f'upstream_ca_file = "{authority.certificate_file}"')) == (200, b"secret")
    assert run_async(lambda: scenario(""))[0] == 502


def test_callers_that_do_not_complete_their_handshake_use_up_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "MAX_HANDSHAKES", 3)
    authority, server = make_certificates(tmp_path)
    client_tls = ssl.create_default_context(cafile=str(authority.certificate_file))

    async def scenario(running: RunningGateway) -> tuple[bytes, int]:
        with contextlib.ExitStack() as silent:
            for _ in range(10):
                silent.enter_context(socket.create_connection(("127.0.0.1", running.gateway.port)))
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", running.gateway.port, ssl=client_tls, server_hostname="localhost"
            )
            writer.write(b"GET /things HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            received = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            return received, running.gateway.counts.rejected_connections

    files = f'certificate_file = "{server.certificate_file}"\nkey_file = "{server.key_file}"'
    received, rejected_count = run_scenario(tmp_path, scenario, gateway=files)

    assert received.endswith(b"\r\n\r\nhello")
    assert rejected_count == 8


def test_a_refused_connection_gets_the_reason_over_tls_too(tmp_path: Path) -> None:
    authority, server = make_certificates(tmp_path)
    client_tls = ssl.create_default_context(cafile=str(authority.certificate_file))

    async def scenario(running: RunningGateway) -> bytes:
        first, second = [
            await asyncio.open_connection(
                "127.0.0.1", running.gateway.port, ssl=client_tls, server_hostname="localhost"
            )
            for _ in range(2)
        ]
        refusal = await asyncio.wait_for(second[0].readuntil(b"\r\n"), 60)
        for _, writer in (first, second):
            writer.close()
        return refusal

    files = f'certificate_file = "{server.certificate_file}"\nkey_file = "{server.key_file}"'
    settings = f"{files}\nconnections_per_address = 1"

    assert run_scenario(tmp_path, scenario, gateway=settings) == b"HTTP/1.1 429 Too Many Requests\r\n"


def read_served_certificate(port: int) -> bytes:
    """Return the certificate that a port presents, whoever has issued it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as secure:
        found = secure.getpeercert(binary_form=True)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("has_key", "problem"),
    [(True, ""), (False, "certificate not usable: the key in {key} belongs to another certificate")],
)
def test_a_renewed_certificate_is_served_and_a_wrong_one_keeps_the_old_one(
    tmp_path: Path, has_key: bool, problem: str
) -> None:
    _, server = make_certificates(tmp_path)
    _, renewed = make_certificates(tmp_path / "renewed")
    old, new = (ssl.PEM_cert_to_DER_cert(one.certificate_file.read_text()) for one in (server, renewed))

    async def scenario(running: RunningGateway) -> tuple[bytes, str]:
        server.certificate_file.write_text(renewed.certificate_file.read_text())
        if has_key:
            server.key_file.write_text(renewed.key_file.read_text())
        watcher = running.gateway.limits.watcher
        await watcher.reload_all()
        served = await asyncio.to_thread(read_served_certificate, running.gateway.port)
        return served, watcher.files[-1].problem

    files = f'certificate_file = "{server.certificate_file}"\nkey_file = "{server.key_file}"'
    served, found = run_scenario(tmp_path, scenario, gateway=files)

    assert served == (new if has_key else old)
    assert problem.format(key=server.key_file) in found
    assert bool(found) is bool(problem)
