"""etcd with TLS, and etcd that requires a user and a password."""

import asyncio
import datetime
import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster.engines.contract import commit, put, records
from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings, EtcdTls
from wharf.cluster.engines.port import LogMisconfigured, LogUnavailable
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("etcd")


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca_file = folder / "ca.pem"
        certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime(2026, 1, 1)
        address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=36_500))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), is_authority=False)
        cert_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file


async def has_contact(engine: EtcdEngine) -> bool:
    """Return whether etcd replies to the engine."""
    try:
        await engine.barrier()
    except LogUnavailable:
        return False
    return True


async def test_an_etcd_that_requires_certificates_accepts_only_the_configured_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert_file, key_file = authority.issue("server")
    client_cert, client_key = authority.issue("wharf")
    options = [
        f"--cert-file={cert_file}",
        f"--key-file={key_file}",
        f"--trusted-ca-file={authority.ca_file}",
        "--client-cert-auth",
    ]
    with running_etcd(tmp_path / "etcd", options=options) as etcd:
        tls = EtcdTls(ca_file=authority.ca_file, cert_file=client_cert, key_file=client_key)
        engine = EtcdEngine(EtcdSettings(endpoints=etcd.endpoints, tls=tls), RealWorld())
        await engine.open()
        await commit(engine, put("a"))
        lease = await engine.grant_lease(2.0)
        until_s = lease.get_valid_until_s() + 0.1
        await wait_on_loop_until(lambda: lease.get_valid_until_s() > until_s, what="the lease is renewed over TLS")
        assert await records(engine) == {("jobs", "a"): b"data"}
        await engine.close()

        (tmp_path / "other").mkdir()
        other_authority = Authority(tmp_path / "other")
        untrusted_cert, untrusted_key = other_authority.issue("wharf")
        client_rejected, server_rejected = "does not accept our certificate", "its certificate is not accepted"
        for wrong_tls, expected, message in (
            (EtcdTls(ca_file=authority.ca_file), LogMisconfigured, client_rejected),
            (
                EtcdTls(ca_file=authority.ca_file, cert_file=untrusted_cert, key_file=untrusted_key),
                LogMisconfigured,
                client_rejected,
            ),
            (
                EtcdTls(ca_file=other_authority.ca_file, cert_file=client_cert, key_file=client_key),
                LogMisconfigured,
                server_rejected,
            ),
            (None, LogMisconfigured, r"it requires TLS: set state\.etcd\.tls\.ca_file"),
        ):
            settings = EtcdSettings(endpoints=etcd.endpoints, tls=wrong_tls, dial_timeout_s=0.5, request_timeout_s=0.5)
            with pytest.raises(expected, match=message):
                await EtcdEngine(settings, RealWorld()).open()


async def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert_file, key_file = authority.issue("server")
    client_cert, client_key = authority.issue("wharf")
    options = [
        f"--cert-file={cert_file}",
        f"--key-file={key_file}",
        f"--trusted-ca-file={authority.ca_file}",
        "--client-cert-auth",
    ]
    with running_etcd(tmp_path / "etcd", options=options) as etcd:
        tls = EtcdTls(ca_file=authority.ca_file, cert_file=client_cert, key_file=client_key)
        engine = EtcdEngine(EtcdSettings(endpoints=etcd.endpoints, tls=tls), RealWorld())
        await engine.open()
        await commit(engine, put("a"))
        etcd.kill()
        renewed = Authority(tmp_path)  # Replaces the files, so that etcd rejects the earlier certificate.
        renewed.issue("server")
        renewed.issue("wharf")
        await asyncio.to_thread(etcd.start)

        async with asyncio.timeout(30.0):
            while not await has_contact(engine):  # Each attempt waits for the dial timeout.
                pass
        await commit(engine, put("b"))

        assert await records(engine) == {("jobs", "a"): b"data", ("jobs", "b"): b"data"}
        await engine.close()


async def test_tls_to_an_etcd_without_tls_is_named_as_the_cause(tmp_path: Path) -> None:
    tls = EtcdTls(ca_file=Authority(tmp_path).ca_file)
    with running_etcd(tmp_path / "etcd") as etcd:
        settings = EtcdSettings(endpoints=etcd.endpoints, tls=tls, dial_timeout_s=0.5, request_timeout_s=0.5)

        with pytest.raises(LogMisconfigured, match=r"it has no TLS: remove the table state\.etcd\.tls"):
            await EtcdEngine(settings, RealWorld()).open()


async def test_a_tls_problem_of_one_member_is_retried_while_others_are_away(tmp_path: Path) -> None:
    tls = EtcdTls(ca_file=Authority(tmp_path).ca_file)
    with running_etcd(tmp_path / "etcd") as etcd:
        settings = EtcdSettings(
            endpoints=("127.0.0.1:1", *etcd.endpoints), tls=tls, dial_timeout_s=0.5, request_timeout_s=0.5
        )

        with pytest.raises(LogUnavailable, match="it has no TLS") as caught:
            await EtcdEngine(settings, RealWorld()).open()
        assert not isinstance(caught.value, LogMisconfigured)


def test_failed_connections_to_etcd_write_nothing_to_standard_error(tmp_path: Path) -> None:
    ca_file = Authority(tmp_path).ca_file
    program = (
        "import asyncio\n"
        "from pathlib import Path\n"
        "from wharf.cluster.engines.etcd.engine import EtcdEngine\n"
        "from wharf.cluster.engines.etcd.settings import EtcdSettings, EtcdTls\n"
        "from wharf.cluster.engines.port import LogUnavailable\n"
        "from wharf.world import RealWorld\n"
        "async def main(endpoints):\n"
        f"    tls = EtcdTls(ca_file=Path({str(ca_file)!r}))\n"
        "    try:\n"
        "        await EtcdEngine(EtcdSettings(endpoints=endpoints, tls=tls, dial_timeout_s=1.0), RealWorld()).open()\n"
        "    except LogUnavailable as error:\n"
        "        print(error)\n"
    )
    with running_etcd(tmp_path / "etcd") as etcd:
        result = subprocess.run(
            [sys.executable, "-c", f"{program}asyncio.run(main({etcd.endpoints!r}))"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        )

    assert "it has no TLS" in result.stdout
    assert result.stderr == ""


async def test_a_missing_certificate_is_named() -> None:
    tls = EtcdTls(ca_file=Path("/nowhere/ca.pem"))

    with pytest.raises(LogMisconfigured, match=r"/nowhere/ca\.pem for etcd cannot be read: No such file"):
        await EtcdEngine(EtcdSettings(endpoints=("127.0.0.1:1",), tls=tls), RealWorld()).open()


def require_passwords(etcd: EtcdCluster) -> None:
    etcd.ctl("user", "add", "root:root-password")
    etcd.ctl("user", "grant-role", "root", "root")
    etcd.ctl("user", "add", "wharf:good")
    etcd.ctl("role", "add", "wharf")
    etcd.ctl("role", "grant-permission", "wharf", "--prefix=true", "readwrite", "/wharf/")
    etcd.ctl("user", "grant-role", "wharf", "wharf")
    etcd.ctl("auth", "enable")


async def test_login_to_an_etcd_with_passwords_and_renewal_of_its_token(tmp_path: Path) -> None:
    options = ["--auth-token-ttl=2"]
    with running_etcd(tmp_path / "etcd", options=options) as etcd:
        require_passwords(etcd)

        def settings(user: str, password: str, prefix: str = "/wharf") -> EtcdSettings:
            return EtcdSettings(endpoints=etcd.endpoints, user=user, password=password, prefix=prefix)

        engine = EtcdEngine(settings("wharf", "good"), RealWorld())
        await engine.open()
        index = await commit(engine, put("a"))
        lease = await engine.grant_lease(2.0)
        # A restart deletes all tokens: those of commits, feeds and lease renewals.
        feed = engine.follow(index)
        etcd.kill()
        etcd.start()
        repeated = await commit(engine, put("b"), lease=lease.id)
        assert (await anext(feed)).index == repeated
        until_s = lease.get_valid_until_s() + 0.1
        await wait_on_loop_until(
            lambda: lease.get_valid_until_s() > until_s, what="the lease is renewed with a new token"
        )
        await engine.compact(repeated)
        assert (await engine.read_health()).writable
        await engine.close()

        with pytest.raises(LogMisconfigured, match=r"rejects the login of user wharf: .*authentication failed"):
            await EtcdEngine(settings("wharf", "bad"), RealWorld()).open()
        for user, password, prefix, message in (
            ("wharf", "good", "/other", "the user wharf needs the right to read and write under /other/"),
            ("", "", "/wharf", r"etcd requires a user; set state\.etcd\.user"),
        ):
            with pytest.raises(LogMisconfigured, match=message):
                await EtcdEngine(settings(user, password, prefix), RealWorld()).open()
