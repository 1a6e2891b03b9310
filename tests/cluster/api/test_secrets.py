"""Secrets are returned only by reads meant for them: not by lists, events, searches, metrics or the log."""

import logging

import pytest

from tests.cluster.api.access import ApiCaller, an_operator
from tests.kit.cluster import ACluster
from tests.kit.streams import listen
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind

ITEM = "tiger-tiger-burning-bright"
CLIENT_SECRET = "in-the-forests-of-the-night"
SECRET_ENDPOINTS = {"acl.token.self", "acl.token.read", "variable.read"}
"""Endpoints whose purpose is to return a secret. Think about the risk before you add one."""


async def write_secrets(operator: ApiCaller) -> tuple[str, ...]:
    """Write a secret of each kind, and return them."""
    await operator.policy("reader", 'namespace "*" { policy = "read" }')
    guest = await operator.a_token("reader")
    _, once = await operator.put("/v1/acl/token/onetime")
    await operator.put("/v1/var/db", {"Items": {"password": ITEM}})
    _, lock = await operator.put("/v1/var/locked", {"Items": {"password": ITEM}}, query="lock-acquire")
    config = {
        "OIDCDiscoveryURL": "https://login.example",
        "OIDCClientID": "wharf",
        "OIDCClientSecret": CLIENT_SECRET,
        "AllowedRedirectURIs": ["http://localhost:1/"],
    }
    method = {"Name": "sso", "Type": "OIDC", "TokenLocality": "local", "MaxTokenTTL": "1h", "Config": config}
    status, result = await operator.put("/v1/acl/auth-method", method)
    assert status == 200, result
    await operator.put("/v1/operator/keyring/rotate")
    secret_id = once["OneTimeToken"]["OneTimeSecretID"]
    return ITEM, CLIENT_SECRET, operator.token, guest.token, secret_id, lock["Lock"]["ID"]


def find_secrets(secrets: tuple[str, ...], text: str) -> list[str]:
    return [secret for secret in secrets if secret in text]


@in_virtual_time
async def test_only_reads_meant_for_a_secret_return_it_even_to_management_tokens() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        secrets = list(await write_secrets(operator))
        lock_id = secrets.pop()  # Management tokens may see it.
        reads = [e for e in ENDPOINTS if e.kind is EndpointKind.READ and e.method == "GET" and not e.unsupported_reason]
        views: dict[str, list[str]] = {}

        for endpoint in reads:
            path = endpoint.path
            for part, value in (("{name}", "sso"), ("{name...}", "reader"), ("{path...}", "db")):
                path = path.replace(part, value)
            reply = await operator.send_raw("GET", path.replace("{", "").replace("}", "").replace("...", ""))
            matches = find_secrets(tuple(secrets), reply.body.decode(errors="replace"))
            if matches and endpoint.name not in SECRET_ENDPOINTS:
                views[endpoint.name] = matches

        assert views == {}
        assert lock_id


@in_virtual_time
async def test_no_event_contains_a_secret() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        stream = await listen(cluster, operator.server, "*", headers={"x-cluster-token": operator.token})

        secrets = await write_secrets(operator)
        await pass_time(1)

        result = b"".join(stream.parts).decode()
        assert "ACLToken" in result
        assert find_secrets(secrets, result) == []


def test_no_log_line_contains_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    secrets: list[str] = []

    @in_virtual_time
    async def write() -> None:
        async with ACluster() as cluster:
            secrets.extend(await write_secrets(await an_operator(cluster)))

    with caplog.at_level(logging.DEBUG):
        write()

    assert find_secrets(tuple(secrets), caplog.text) == []


@in_virtual_time
async def test_no_log_record_contains_a_secret_in_plain_text() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        secrets = list(await write_secrets(operator))
        secrets.pop()  # The id of a lock identifies its holder; it is stored in plain text.
        retained = []
        replica = operator.server.replica
        for name, table in replica.tables.items():
            retained += [
                f"{name}: {secret}"
                for record in replica.iter_all(table)
                for secret in secrets
                if secret in repr(record)
            ]

        assert retained == []
