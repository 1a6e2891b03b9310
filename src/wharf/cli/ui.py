"""`wharf ui`: opens the pages of the cluster in the browser, signed in by a one-time link."""

import ipaddress
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import click

from wharf.cli.cluster import find_object
from wharf.cli.common.errors import CliError
from wharf.cli.common.lookup import find_job
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import QuietServerCommand, Session

PAGE_BY_CONTEXT: Final = {"jobs": "jobs", "nodes": "nodes", "allocs": "allocations"}
"""Search contexts of the API whose objects have a page, with the name of the page in its address."""
UNPROTECTED_TEXT: Final = (
    "the page will not be signed in: nobody can sign in over http, because others could read the token on the way; use "
    "an https address, or run the command on the machine of the server"
)
LINK_TTL: Final = "1m"
"""How long a link signs in. The browser opens it at once, so a longer time helps only those who find the link."""
NO_BROWSER_TEXT: Final = "no browser could be started on this machine; open this address yourself:"


@click.command(cls=QuietServerCommand)
@click.argument("id", required=False)
@click.option(
    "--no-open", is_flag=True, help="Only print the address. It signs a browser in, once and within a minute."
)
def ui(session: Session, id: str | None, no_open: bool) -> None:
    """Open the pages of the cluster in the browser: the overview, or the page of a job, an allocation or a node.

    ID is a job, or the beginning of the id of an allocation or a node. If the command has a token, the browser is signed in
    with it, by a link that works once and for one minute.

    wharf ui web
    """
    address = _get_web_address(session)
    page = _find_page(session, id)
    link = _build_link(session, address, page)
    if no_open:
        click.echo(link)
    elif session.open_browser(link):
        click.echo(f"opened {address}{page}")
    else:
        print_notice(NO_BROWSER_TEXT)
        click.echo(link)


def _get_web_address(session: Session) -> str:
    """Return the first address of a server, without a path. Raises CliError if browsers cannot use it."""
    parts = urlsplit(session.settings.addresses[0])
    if parts.scheme not in ("http", "https"):
        raise CliError(
            f"browsers cannot open {session.settings.addresses[0]}: set --address to a URL that begins with http or https"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _find_page(session: Session, query: str | None) -> str:
    """Return the path of the page of an object, or of the overview. Raises CliError if no object or several match."""
    if not query:
        session.client.status.leader()  # Reports a server that cannot be reached here rather than in the browser.
        return "/ui"
    kind, id = find_object(session, query, PAGE_BY_CONTEXT)
    namespace = session.namespace
    if kind == "jobs" and session.is_all_namespaces:
        namespace = find_job(session, id).namespace
    parameters = f"?{urlencode({'namespace': namespace})}" if kind == "jobs" and namespace != "default" else ""
    return f"/ui/{PAGE_BY_CONTEXT[kind]}/{quote(id, safe='')}{parameters}"


def _build_link(session: Session, address: str, page: str) -> str:
    """Return the address of a page. If the command has a token, and nobody can read it on the way, the link signs in."""
    if not session.settings.token:
        return address + page
    if not _is_protected(address):
        print_notice(UNPROTECTED_TEXT)
        return address + page
    from wharf.contract.client.errors import RequestRefused
    from wharf.contract.model.refusal import RefusalReason

    try:
        once = session.client.acl.tokens.create_one_time(ttl=LINK_TTL).one_time_token.one_time_secret_id
    except RequestRefused as refusal:
        if refusal.reason is RefusalReason.ACL_DISABLED:
            return address + page
        raise
    return f"{address}/ui/sign-in?{urlencode({'once': once, 'next': page})}"


def _is_protected(address: str) -> bool:
    """Whether nobody can read a secret on its way to the server: it speaks TLS, or is on this machine."""
    parts = urlsplit(address)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
