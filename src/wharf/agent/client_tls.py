"""How processes of this agent call servers over TLS: whom they believe, and what they show of themselves."""

import ssl

from wharf.agent.life import CannotStart
from wharf.api.settings import TlsSettings


def client_tls(tls: TlsSettings) -> ssl.SSLContext | None:
    """None where TLS is off. Raises CannotStart when a file cannot be used."""
    if not tls.http:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        # Within a cluster the authority decides who belongs to it; names would have to hold every address.
        context.check_hostname = tls.verify_server_hostname or not tls.ca_file
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise CannotStart(f"tls.ca_file, tls.cert_file or tls.key_file cannot be used: {error}") from error
    return context
