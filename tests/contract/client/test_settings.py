"""Where the servers are, and as whom: from the environment."""

import ssl
from pathlib import Path

import pytest

from wharf.contract.client import ClientSettings, ClientSettingsError, connect, read_settings
from wharf.contract.client.connection import build_tls_context
from wharf.contract.client.settings import DEFAULT_ADDRESS


def test_without_a_word_the_server_is_this_machine() -> None:
    assert read_settings({}) == ClientSettings(addresses=(DEFAULT_ADDRESS,))


def test_the_environment_tells_all_of_it() -> None:
    found = read_settings(
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

    assert found == ClientSettings(
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


def test_the_names_of_the_peer_count_where_ours_are_not_set() -> None:
    found = read_settings({"NOMAD_ADDR": "http://theirs:1", "NOMAD_TOKEN": "theirs", "WHARF_TOKEN": "ours"})

    assert (found.addresses, found.token) == (("http://theirs:1",), "ours")


@pytest.mark.parametrize("word", ["", "0", "false", "False"])
def test_certificates_are_checked_unless_the_word_says_otherwise(word: str) -> None:
    assert not read_settings({"WHARF_SKIP_VERIFY": word}).skip_verify


def test_an_address_without_a_scheme_is_http_and_a_socket_stays_one() -> None:
    assert read_settings({"WHARF_ADDR": "one:4646"}).addresses == ("http://one:4646",)
    assert read_settings({"WHARF_ADDR": "unix:///run/wharf.sock"}).addresses == ("unix:///run/wharf.sock",)


def test_settings_show_no_secret() -> None:
    assert "geheim" not in repr(ClientSettings(token="geheim", http_auth="me:geheim"))


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing of the kind")

    with pytest.raises(ClientSettingsError, match=str(file)):
        connect(ClientSettings(addresses=("https://127.0.0.1:1",), ca_file=str(file)))


def test_names_and_certificates_are_checked_unless_told_not_to() -> None:
    strict, lax = build_tls_context(ClientSettings()), build_tls_context(ClientSettings(skip_verify=True))

    assert (strict.check_hostname, strict.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_NONE)
