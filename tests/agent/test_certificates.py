"""A certificate authority and the certificates that it signs, in real TLS handshakes."""

import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

from wharf.agent.errors import CommandError
from wharf.agent.tls.certificates import (
    AUTHORITY_FILES_NAME,
    create_certificates,
    get_files,
    make_authority,
    make_certificate,
    read_authority,
    write_pair,
)
from wharf.world import RealWorld

NOW_NS = RealWorld().now_ns()


def create_files(path: Path) -> Path:
    authority = make_authority(now_ns=NOW_NS, days=10)
    write_pair(path, AUTHORITY_FILES_NAME, authority)
    for name, is_server in (("server", True), ("client", False)):
        pair = make_certificate(
            authority,
            name=f"{name}.global.wharf",
            alternative_names=["127.0.0.1", "localhost"] if is_server else [],
            is_server=is_server,
            now_ns=NOW_NS,
            days=5,
        )
        write_pair(path, name, pair)
    return path


def handshake(folder: Path, *, client: str | None, name: str) -> None:
    """Perform a TLS handshake with both ends in memory. Raises `ssl.SSLError` if either end rejects the other."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*get_files(folder, "server"))
    server_side.load_verify_locations(get_files(folder, AUTHORITY_FILES_NAME)[0])
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.create_default_context(cafile=str(get_files(folder, AUTHORITY_FILES_NAME)[0]))
    if client is not None:
        client_side.load_cert_chain(*get_files(folder, client))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_side.wrap_bio(outgoing, incoming, server_hostname=name),
        server_side.wrap_bio(incoming, outgoing, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "server.global.wharf"])
def test_a_server_certificate_is_valid_for_each_of_its_names(tmp_path: Path, name: str) -> None:
    handshake(create_files(tmp_path), client="client", name=name)


def test_a_server_certificate_is_invalid_for_another_name(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(create_files(tmp_path), client="client", name="example.org")


def test_a_client_cannot_pretend_to_be_a_server(tmp_path: Path) -> None:
    folder = create_files(tmp_path)
    for end in ("", "-key"):
        (folder / f"client{end}.pem").replace(folder / f"server{end}.pem")

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, client="server", name="client.global.wharf")


def test_a_client_without_a_certificate_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(create_files(tmp_path), client=None, name="localhost")


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    create_files(tmp_path)

    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_no_existing_file_is_replaced(tmp_path: Path) -> None:
    folder = create_files(tmp_path)
    before = (folder / "server-key.pem").read_bytes()

    with pytest.raises(CommandError, match=r"exists already and is not replaced"):
        write_pair(folder, "server", make_authority(now_ns=NOW_NS, days=1))
    assert (folder / "server-key.pem").read_bytes() == before


def test_a_stored_authority_can_be_read(tmp_path: Path) -> None:
    assert read_authority(tmp_path) is None
    create_files(tmp_path)

    authority = read_authority(tmp_path)

    assert authority is not None
    assert authority.certificate.subject.rfc4514_string() == "CN=Wharf authority"


@pytest.mark.parametrize("damaged_name", ["wharf-ca.pem", "wharf-ca-key.pem"])
def test_a_damaged_authority_is_reported(tmp_path: Path, damaged_name: str) -> None:
    create_files(tmp_path)
    (tmp_path / damaged_name).write_text("nothing of the kind")

    with pytest.raises(CommandError, match=f"{damaged_name} is no (certificate|key) in PEM form"):
        read_authority(tmp_path)


def test_a_key_that_does_not_match_the_authority_is_rejected(tmp_path: Path) -> None:
    create_files(tmp_path)
    (tmp_path / "server-key.pem").replace(tmp_path / "wharf-ca-key.pem")

    with pytest.raises(CommandError, match="is not the key of"):
        read_authority(tmp_path)


# -- the names and lifetimes of certificates


def create_server_certificate(folder: Path, **overrides: Any) -> None:
    options: dict[str, Any] = {
        "region": "global",
        "is_server": True,
        "files_name": None,
        "alternative_names": (),
        "days": 5,
        "authority_days": 10,
    }
    create_certificates(folder, **options | overrides)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files_name": "../x"}, "--name ../x: expected the name of a file without its folder"),
        ({"files_name": "a/b"}, "--name a/b: expected the name of a file without its folder"),
        ({"files_name": "-\n"}, "expected the name of a file without its folder"),
        ({"files_name": ""}, "--name : expected the name of a file without its folder"),
        ({"files_name": ".."}, r"--name \.\.: expected the name of a file without its folder"),
        ({"files_name": "wharf-ca"}, "--name wharf-ca: the files of the authority have this name"),
        ({"files_name": "wharf-ca-key"}, "--name wharf-ca-key: the files of the authority have this name"),
        ({"region": "../eu"}, r"--region \.\./eu: expected letters, digits and '-', at most 50"),
        ({"region": "e" * 51}, "expected letters, digits and '-', at most 50"),
        ({"region": ""}, "--region : expected letters, digits and '-', at most 50"),
        ({"alternative_names": ("exa mple.org",)}, "--san exa mple.org: expected a host name or an address"),
        ({"alternative_names": ("münchen.example",)}, "--san münchen.example: expected a host name or an address"),
        (
            {"alternative_names": ("https://example.org",)},
            "--san https://example.org: expected a host name or an address",
        ),
        ({"alternative_names": ("10.0.0.5:4646",)}, "--san 10.0.0.5:4646: expected a host name or an address"),
        ({"alternative_names": ("10.0.0.555",)}, "--san 10.0.0.555: expected a host name or an address"),
        ({"alternative_names": ("",)}, "--san : expected a host name or an address"),
        ({"days": 11}, r"--days 11: the certificate must not outlive its authority, .*choose --days 10 or fewer"),
    ],
)
def test_invalid_values_for_a_certificate_are_rejected_and_no_file_is_created(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        create_server_certificate(tmp_path / "tls", **options)

    assert list(tmp_path.rglob("*")) == []


def test_an_expired_authority_signs_no_certificate(tmp_path: Path) -> None:
    long_ago_ns = NOW_NS - 20 * 86_400 * 1_000_000_000
    write_pair(tmp_path, AUTHORITY_FILES_NAME, make_authority(now_ns=long_ago_ns, days=10))

    with pytest.raises(
        CommandError, match=r"the authority in .* ended on .*: make a new one with another --output-dir"
    ):
        create_server_certificate(tmp_path)


@pytest.mark.parametrize("name", ["*.example.org", "example.org", "a-b.c", "db_1.internal", "::1", "10.0.0.5"])
def test_host_names_and_addresses_are_accepted(tmp_path: Path, name: str) -> None:
    create_server_certificate(tmp_path, alternative_names=(name,), days=10)

    assert (tmp_path / "server-global.pem").exists()
