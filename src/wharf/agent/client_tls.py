"""How processes of this agent call servers over TLS: whom they believe, and what they show of themselves."""

import logging
import ssl

from wharf.agent.life import CannotStart
from wharf.agent.tls_files import believe, show
from wharf.api.settings import TlsSettings

log = logging.getLogger(__name__)


def client_tls(tls: TlsSettings) -> ssl.SSLContext | None:
    """None where TLS is off. Raises CannotStart when a file cannot be used."""
    if not tls.http:
        return None
    if tls.ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        believe(context, tls)
    else:
        context = ssl.create_default_context()
    # Within a cluster the authority decides who belongs to it; names would have to hold every address.
    context.check_hostname = tls.verify_server_hostname or not tls.ca_file
    show(context, tls)
    return context


def renew_client_tls(context: ssl.SSLContext | None, tls: TlsSettings) -> None:
    """At a reload: connections that are made from now on show the new certificate, and believe new authorities too."""
    if context is None:
        return
    try:
        show(context, tls)
        if tls.ca_file:
            believe(context, tls)
    except CannotStart as error:
        log.error("the new certificate cannot be shown to other servers; the old one stays", extra={"why": str(error)})
