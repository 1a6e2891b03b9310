"""Secrets are seen where they are asked for, and nowhere else: not in lists, events, searches, figures or the log."""

import logging

import pytest

from tests.cluster.api.access import AskedAs, an_operator
from tests.kit.cluster import ACluster
from tests.kit.streams import listen
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind

ITEM = "tiger-tiger-burning-bright"
CLIENT_SECRET = "in-the-forests-of-the-night"
SHOWS_SECRETS = {"acl.token.self", "acl.token.read", "variable.read"}
"""Those that exist to show one. A new one is put here after thinking about it."""


async def write_secrets(operator: AskedAs) -> tuple[str, ...]:
    """A secret of each kind; what must not be seen."""
    await operator.policy("reader", 'namespace "*" { policy = "read" }')
    guest = await operator.a_token("reader")
    _, once = await operator.put("/v1/acl/token/onetime")
    await operator.put("/v1/var/db", {"Items": {"password": ITEM}})
    _, held = await operator.put("/v1/var/locked", {"Items": {"password": ITEM}}, query="lock-acquire")
    config = {
        "OIDCDiscoveryURL": "https://login.example",
        "OIDCClientID": "wharf",
        "OIDCClientSecret": CLIENT_SECRET,
        "AllowedRedirectURIs": ["http://localhost:1/"],
    }
    method = {"Name": "sso", "Type": "OIDC", "TokenLocality": "local", "MaxTokenTTL": "1h", "Config": config}
    status, told = await operator.put("/v1/acl/auth-method", method)
    assert status == 200, told
    await operator.put("/v1/operator/keyring/rotate")
    secret_id = once["OneTimeToken"]["OneTimeSecretID"]
    return ITEM, CLIENT_SECRET, operator.token, guest.token, secret_id, held["Lock"]["ID"]


def seen(secrets: tuple[str, ...], text: str) -> list[str]:
    return [secret for secret in secrets if secret in text]


@in_virtual_time
async def test_no_read_but_those_that_exist_for_it_shows_a_secret_even_to_management() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        secrets = list(await write_secrets(operator))
        lock_id = secrets.pop()  # Management may know it.
        reads = [e for e in ENDPOINTS if e.kind is EndpointKind.READ and e.method == "GET" and not e.unsupported_reason]
        shown: dict[str, list[str]] = {}

        for endpoint in reads:
            path = endpoint.path
            for part, value in (("{name}", "sso"), ("{name...}", "reader"), ("{path...}", "db")):
                path = path.replace(part, value)
            reply = await operator.ask("GET", path.replace("{", "").replace("}", "").replace("...", ""))
            found = seen(tuple(secrets), reply.body.decode(errors="replace"))
            if found and endpoint.name not in SHOWS_SECRETS:
                shown[endpoint.name] = found

        assert shown == {}
        assert lock_id


@in_virtual_time
async def test_no_event_shows_a_secret() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        stream = await listen(cluster, operator.server, "*", headers={"x-cluster-token": operator.token})

        secrets = await write_secrets(operator)
        await pass_time(1)

        told = b"".join(stream.parts).decode()
        assert "ACLToken" in told
        assert seen(secrets, told) == []


def test_no_line_of_the_log_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    secrets: list[str] = []

    @in_virtual_time
    async def write() -> None:
        async with ACluster() as cluster:
            secrets.extend(await write_secrets(await an_operator(cluster)))

    with caplog.at_level(logging.DEBUG):
        write()

    assert seen(tuple(secrets), caplog.text) == []


@in_virtual_time
async def test_no_record_of_the_log_holds_a_secret_in_clear() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        secrets = list(await write_secrets(operator))
        secrets.pop()  # The id of a lock is what its holder is told apart by; it is not kept from the log.
        kept = []
        replica = operator.server.replica
        for name, table in replica.tables.items():
            kept += [
                f"{name}: {secret}"
                for record in replica.iter_all(table)
                for secret in secrets
                if secret in repr(record)
            ]

        assert kept == []
