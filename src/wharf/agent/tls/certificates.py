"""Creates certificates for a cluster: an authority, and certificates that it signs for servers, nodes and operators.

The files are readable only by their owner. Existing files are never replaced.
"""

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wharf.agent.errors import CommandError
from wharf.contract.model.times import SECOND, to_datetime
from wharf.world import RealWorld

AUTHORITY_FILES_NAME: Final = "wharf-ca"
BACKDATING: Final = datetime.timedelta(minutes=5)
"""Certificates are valid from this much before their creation, because clocks of machines differ."""
MAX_REGION_CHARS: Final = 50
"""The whole name `server.<region>.wharf` may have 64 characters."""
MAX_HOST_CHARS: Final = 253

_FILES_NAME: Final = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_LABEL: Final = re.compile("[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
_HOST_LABEL: Final = re.compile("[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


class CertificateAndKey(msgspec.Struct, frozen=True):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class CreatedCertificate(msgspec.Struct, frozen=True):
    """A created certificate: its role, its files, and its last day of validity."""

    role: str
    certificate_file: Path
    key_file: Path
    valid_until: datetime.date


def create_certificates(
    folder: Path,
    *,
    region: str,
    is_server: bool,
    files_name: str | None,
    alternative_names: Sequence[str],
    days: int,
    authority_days: int,
) -> list[CreatedCertificate]:
    """Create a certificate, and before it an authority if the folder has none. Return what was created.

    Without `files_name` the files are named after role and region. Raises `CommandError`, and then creates no files.
    """
    role = "server" if is_server else "client"
    _check_region(region)
    if files_name is None:
        files_name = f"{role}-{region}"
    _check_files_name(files_name)
    for name in alternative_names:
        _check_host(name)
    for file in get_files(folder, files_name):
        if file.exists():
            raise CommandError(f"{file} exists already and is not replaced: choose another --name or --output-dir")
    now_ns = RealWorld().now_ns()
    created_list: list[CreatedCertificate] = []
    known = read_authority(folder)
    authority = known or make_authority(now_ns=now_ns, days=authority_days)
    _check_days(folder, authority, now_ns=now_ns, days=days)
    pair = make_certificate(
        authority,
        name=f"{role}.{region}.wharf",
        alternative_names=("localhost", "127.0.0.1", *alternative_names) if is_server else alternative_names,
        is_server=is_server,
        now_ns=now_ns,
        days=days,
    )
    if known is None:
        created_list.append(_write_created("authority", folder, AUTHORITY_FILES_NAME, authority))
    created_list.append(_write_created(role, folder, files_name, pair))
    return created_list


def _check_region(region: str) -> None:
    """Raise `CommandError` if the region cannot be part of certificate and file names."""
    if not _LABEL.fullmatch(region) or len(region) > MAX_REGION_CHARS:
        raise CommandError(f"--region {region}: expected letters, digits and '-', at most {MAX_REGION_CHARS} of them")


def _check_files_name(name: str) -> None:
    """Raise `CommandError` if the name cannot be a file name, or is that of the authority's files."""
    if not _FILES_NAME.fullmatch(name):
        raise CommandError(
            f"--name {name}: expected the name of a file without its folder: letters, digits, '.', '_' and '-'"
        )
    if name in (AUTHORITY_FILES_NAME, f"{AUTHORITY_FILES_NAME}-key"):
        raise CommandError(f"--name {name}: the files of the authority have this name; choose another")


def _check_host(name: str) -> None:
    """Raise `CommandError` if the text is neither an IP address nor a host name, which may start with `*.`."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return
    labels = name.removeprefix("*.").split(".")
    is_host = len(name) <= MAX_HOST_CHARS and all(_HOST_LABEL.fullmatch(label) for label in labels)
    if not is_host or labels[-1].isdigit():
        raise CommandError(f"--san {name}: expected a host name or an address, such as example.org or 10.0.0.5")


def _check_days(folder: Path, authority: CertificateAndKey, *, now_ns: int, days: int) -> None:
    """Raise `CommandError` if the authority has expired, or expires before a certificate that is valid for `days`."""
    now = to_datetime(now_ns // SECOND * SECOND)
    ends_at = authority.certificate.not_valid_after_utc
    left_days = (ends_at - now).days
    if left_days < 1:
        raise CommandError(
            f"the authority in {folder} ended on {ends_at.date()}: make a new one with another --output-dir"
        )
    if now + datetime.timedelta(days=days) > ends_at:
        raise CommandError(
            f"--days {days}: the certificate must not outlive its authority, which ends on {ends_at.date()}: choose "
            f"--days {left_days} or fewer"
        )


def _write_created(role: str, folder: Path, name: str, pair: CertificateAndKey) -> CreatedCertificate:
    """Write a certificate and its key to the folder, and return what was created.

    `role` is the holder's role, such as "server".
    """
    files = write_pair(folder, name, pair)
    return CreatedCertificate(role, *files, pair.certificate.not_valid_after_utc.date())


def make_authority(*, now_ns: int, days: int) -> CertificateAndKey:
    """Return a new certificate authority, valid for `days`, whose certificate is signed with its own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Wharf authority")])
    builder = _start_certificate(name, name, key, now_ns=now_ns, days=days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_build_key_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return CertificateAndKey(builder.sign(key, hashes.SHA256()), key)


def make_certificate(
    authority: CertificateAndKey,
    *,
    name: str,
    alternative_names: Sequence[str],
    is_server: bool,
    now_ns: int,
    days: int,
) -> CertificateAndKey:
    """Return a certificate that the authority signed. A server certificate is also valid for clients.

    `alternative_names` are further host names and addresses that it is valid for.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _start_certificate(subject, authority.certificate.subject, key, now_ns=now_ns, days=days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_build_key_usage(signs_certificates=False), critical=True)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if is_server:
        purposes.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    names = [_general_name(text) for text in dict.fromkeys((name, *alternative_names))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    return CertificateAndKey(builder.sign(authority.key, hashes.SHA256()), key)


def read_authority(folder: Path) -> CertificateAndKey | None:
    """Return the authority in the folder, or `None` if there is none. Raises `CommandError` if its files are invalid."""
    certificate_file, key_file = get_files(folder, AUTHORITY_FILES_NAME)
    if not certificate_file.exists() and not key_file.exists():
        return None
    try:
        certificate_data, key_data = certificate_file.read_bytes(), key_file.read_bytes()
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}") from error
    try:
        certificate = x509.load_pem_x509_certificate(certificate_data)
    except ValueError as error:
        raise CommandError(f"{certificate_file} is no certificate in PEM form") from error
    try:
        key = serialization.load_pem_private_key(key_data, password=None)
    except TypeError as error:
        raise CommandError(f"{key_file} needs a password: give a key without one") from error
    except ValueError as error:
        raise CommandError(f"{key_file} is no key in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise CommandError(f"{key_file} is not the key of {certificate_file}")
    return CertificateAndKey(certificate, key)


def get_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Return two paths in the folder: that of the certificate with this name, and that of its private key."""
    return folder / f"{name}.pem", folder / f"{name}-key.pem"


def write_pair(folder: Path, name: str, pair: CertificateAndKey) -> tuple[Path, Path]:
    """Write certificate and key, and return the paths of both.

    Raises `CommandError` if a file exists, and then writes neither.
    """
    certificate_file, key_file = get_files(folder, name)
    for file in (certificate_file, key_file):
        if file.exists():
            raise CommandError(
                f"{file} exists already and is not replaced: move it away, or choose another --output-dir"
            )
    key = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(key_file, key)
    _write(certificate_file, pair.certificate.public_bytes(serialization.Encoding.PEM))
    return certificate_file, key_file


def _write(file: Path, data: bytes) -> None:
    """Write a new file that only its owner can read. Raises `CommandError` if it exists or cannot be written."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from error


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now_ns: int, days: int
) -> x509.CertificateBuilder:
    """Return a builder for a certificate with names, key, serial number and validity, but without extensions."""
    now = to_datetime(now_ns // SECOND * SECOND)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATING)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _build_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return the key usage extension: to sign data, and with `signs_certificates` also certificates."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
