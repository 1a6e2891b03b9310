"""`wharf login`: a token for what another provider knows of the caller."""

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session

if TYPE_CHECKING:
    from wharf.contract.wire.acl import TokenView

DEFAULT_CALLBACK_ADDRESS: Final = "127.0.0.1:4649"
CALLBACK_PATH: Final = "/oidc/callback"
LOGGED_IN_PAGE: Final = b"<!doctype html><title>Wharf</title><p>You are logged in. This page can be closed."
CALLBACK_TIMEOUT_S: Final = 300.0


@click.command(cls=ServerCommand)
@click.option("--method", "name", default="", help="Which way to log in; without, the default one.")
@click.option(
    "--login-token", default="", help="Of a provider, for methods that take one; - reads it.  [WHARF_LOGIN_TOKEN]"
)
@click.option(
    "--oidc-callback-addr",
    "callback",
    default=DEFAULT_CALLBACK_ADDRESS,
    show_default=True,
    help="Where the browser comes back to.",
)
def login(session: Session, name: str, login_token: str, callback: str) -> None:
    """Log in, and print a token.

    With OIDC it prints an address to open in a browser, and waits until that comes back.

    wharf login --method company
    """
    from wharf.cli.acl.tokens import render_token
    from wharf.cli.common.documents import read_text

    methods = session.client.acl.auth_methods.list().value
    chosen = [one for one in methods if (one.name == name if name else one.default)]
    if not chosen:
        there = ", ".join(one.name for one in methods) or "none"
        raise CliError(f"there is no way to log in {f'named {name}' if name else 'by default'}; there are: {there}")
    method = chosen[0]
    if method.type == "JWT":
        login_token = login_token or os.environ.get("WHARF_LOGIN_TOKEN", "")
        if not login_token:
            raise CliError(
                f"{method.name} wants a token of its provider: give it by --login-token or WHARF_LOGIN_TOKEN"
            )
        proof = read_text("-").strip() if login_token == "-" else login_token  # The word for piped in.
        one = session.client.acl.login(method.name, proof)
    else:
        one = _by_browser(session, method.name, callback)
    session.print_result(one, lambda: render_token(session, one))
    session.print_text(f"\nUse it: export WHARF_TOKEN={one.secret_id}")


def _by_browser(session: Session, method: str, callback: str) -> "TokenView":
    """Where the provider sends the browser back to is listened to for one request."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from wharf.contract.wire.acl import CompleteAuthRequest

    came: dict[str, str] = {}

    class Comes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # As the library calls it.
            parts = urlsplit(self.path)
            if parts.path != CALLBACK_PATH:
                self.send_error(404)
                return
            came.update({key: values[0] for key, values in parse_qs(parts.query).items()})
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(LOGGED_IN_PAGE)

        def log_message(self, *_: object) -> None:
            return

    host, _, port = callback.rpartition(":")
    nonce = session.world.new_secret()
    redirect = f"http://{'localhost' if host == '127.0.0.1' else host}:{port}{CALLBACK_PATH}"
    try:
        door = HTTPServer((host, int(port)), Comes)
    except (OSError, ValueError) as error:
        raise CliError(f"cannot listen at {callback}: {error}; name another by --oidc-callback-addr") from error
    with door:
        url = session.client.acl.create_oidc_auth_url(method, redirect, nonce).auth_url
        click.echo(f"Open this in a browser to log in:\n\n  {url}\n", err=True)
        door.timeout = 1.0
        deadline_s = session.world.monotonic_s() + CALLBACK_TIMEOUT_S
        while not came:
            door.handle_request()
            if session.world.monotonic_s() > deadline_s:
                raise CliError(f"the browser did not come back within {CALLBACK_TIMEOUT_S:.0f} s")
    if "error" in came:
        raise CliError(f"the provider refused: {came.get('error_description') or came['error']}")
    return session.client.acl.complete_oidc_login(
        CompleteAuthRequest(
            auth_method_name=method,
            client_nonce=nonce,
            state=came.get("state", ""),
            code=came.get("code", ""),
            iss=came.get("iss", ""),
            redirect_uri=redirect,
        )
    )
