"""Certificates for tests: an authority, and a certificate for localhost that it issued."""

import ssl
from pathlib import Path
from typing import NamedTuple

from wharf.agent.tls import certificates


class ServerCertificates(NamedTuple):
    """The files of an authority and of a server's certificate."""

    authority_file: str
    certificate_file: str
    key_file: str

    @property
    def authority_pem(self) -> str:
        return Path(self.authority_file).read_text()

    def build_server_context(self) -> ssl.SSLContext:
        """Return the context of a server that presents the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context


def make_certificates(folder: Path) -> ServerCertificates:
    """Write the files into the folder `tls` in this one."""
    created = certificates.create_certificates(
        folder / "tls",
        region="global",
        is_server=True,
        files_name="here",
        alternative_names=(),
        days=1,
        authority_days=1,
    )
    authority, server = created[0], created[-1]
    return ServerCertificates(str(authority.certificate_file), str(server.certificate_file), str(server.key_file))
