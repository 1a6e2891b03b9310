"""Client settings from environment variables."""

import ssl
from pathlib import Path

import pytest

from wharf.contract.client import ClientSettings, ClientSettingsError, connect, read_settings
from wharf.contract.client.connection import build_tls_context
from wharf.contract.client.settings import DEFAULT_ADDRESS


def test_the_default_server_is_this_machine() -> None:
    assert read_settings({}) == ClientSettings(addresses=(DEFAULT_ADDRESS,))


def test_all_settings_are_read_from_the_environment() -> None:
    settings = read_settings(
        {
            "WHARF_ADDR": "https://one:4646, https://two:4646/",
            "WHARF_TOKEN": "secret",
            "WHARF_NAMESPACE": "team",
            "WHARF_REGION": "north",
            "WHARF_HTTP_AUTH": "me:mine",
            "WHARF_CACERT": "ca.pem",
            "WHARF_CAPATH": "cas",
            "WHARF_CLIENT_CERT": "me.pem",
            "WHARF_CLIENT_KEY": "me-key.pem",
            "WHARF_TLS_SERVER_NAME": "server.north.wharf",
            "WHARF_SKIP_VERIFY": "true",
        }
    )

    assert settings == ClientSettings(
        addresses=("https://one:4646", "https://two:4646"),
        token="secret",
        namespace="team",
        region="north",
        http_auth="me:mine",
        ca_file="ca.pem",
        ca_path="cas",
        cert_file="me.pem",
        key_file="me-key.pem",
        server_name="server.north.wharf",
        skip_verify=True,
    )


def test_nomad_variables_apply_if_wharf_variables_are_not_set() -> None:
    settings = read_settings({"NOMAD_ADDR": "http://theirs:1", "NOMAD_TOKEN": "theirs", "WHARF_TOKEN": "ours"})

    assert (settings.addresses, settings.token) == (("http://theirs:1",), "ours")


@pytest.mark.parametrize("value", ["", "0", "false", "False"])
def test_certificates_are_verified_for_these_values(value: str) -> None:
    assert not read_settings({"WHARF_SKIP_VERIFY": value}).skip_verify


def test_an_address_without_a_scheme_uses_http_and_a_unix_socket_is_unchanged() -> None:
    assert read_settings({"WHARF_ADDR": "one:4646"}).addresses == ("http://one:4646",)
    assert read_settings({"WHARF_ADDR": "unix:///run/wharf.sock"}).addresses == ("unix:///run/wharf.sock",)


def test_the_repr_of_settings_contains_no_secret() -> None:
    assert "geheim" not in repr(ClientSettings(token="geheim", http_auth="me:geheim"))


def test_an_invalid_certificate_file_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing of the kind")

    with pytest.raises(ClientSettingsError, match=str(file)):
        connect(ClientSettings(addresses=("https://127.0.0.1:1",), ca_file=str(file)))


def test_names_and_certificates_are_verified_unless_skip_verify_is_set() -> None:
    strict, lax = build_tls_context(ClientSettings()), build_tls_context(ClientSettings(skip_verify=True))

    assert (strict.check_hostname, strict.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_NONE)
