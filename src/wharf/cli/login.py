"""`wharf login`: a token for what another provider knows of the caller."""

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import click

from wharf.cli.failing import Failed
from wharf.cli.speaking import Speaking, Talk

if TYPE_CHECKING:
    from wharf.wire.access import TokenShown

CALLBACK: Final = "127.0.0.1:4649"
PATH: Final = "/oidc/callback"
DONE: Final = b"<!doctype html><title>Wharf</title><p>You are logged in. This page can be closed."
PATIENCE_S: Final = 300.0


@click.command(cls=Speaking)
@click.option("--method", "name", default="", help="Which way to log in; without, the default one.")
@click.option(
    "--login-token", default="", help="Of a provider, for methods that take one; - reads it.  [WHARF_LOGIN_TOKEN]"
)
@click.option(
    "--oidc-callback-addr", "callback", default=CALLBACK, show_default=True, help="Where the browser comes back to."
)
def login(talk: Talk, name: str, login_token: str, callback: str) -> None:
    """Log in, and print a token.

    With OIDC it prints an address to open in a browser, and waits until that comes back.

    wharf login --method company
    """
    from wharf.cli.acl_tokens import token_told
    from wharf.cli.records import read_text

    methods = talk.client.acl.auth_methods.list().value
    chosen = [one for one in methods if (one.name == name if name else one.default)]
    if not chosen:
        there = ", ".join(one.name for one in methods) or "none"
        raise Failed(f"there is no way to log in {f'named {name}' if name else 'by default'}; there are: {there}")
    method = chosen[0]
    if method.type == "JWT":
        login_token = login_token or os.environ.get("WHARF_LOGIN_TOKEN", "")
        if not login_token:
            raise Failed(f"{method.name} wants a token of its provider: give it by --login-token or WHARF_LOGIN_TOKEN")
        proof = read_text("-").strip() if login_token == "-" else login_token  # The word for piped in.
        one = talk.client.acl.login(method.name, proof)
    else:
        one = _by_browser(talk, method.name, callback)
    talk.show(one, lambda: token_told(talk, one))
    talk.say(f"\nUse it: export WHARF_TOKEN={one.secret_id}")


def _by_browser(talk: Talk, method: str, callback: str) -> "TokenShown":
    """Where the provider sends the browser back to is listened to for one request."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from wharf.wire.access import CompleteAuthRequest

    came: dict[str, str] = {}

    class Comes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # As the library calls it.
            parts = urlsplit(self.path)
            if parts.path != PATH:
                self.send_error(404)
                return
            came.update({key: values[0] for key, values in parse_qs(parts.query).items()})
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(DONE)

        def log_message(self, *_: object) -> None:
            return

    host, _, port = callback.rpartition(":")
    nonce = talk.world.new_secret()
    redirect = f"http://{'localhost' if host == '127.0.0.1' else host}:{port}{PATH}"
    try:
        door = HTTPServer((host, int(port)), Comes)
    except (OSError, ValueError) as error:
        raise Failed(f"cannot listen at {callback}: {error}; name another by --oidc-callback-addr") from error
    with door:
        url = talk.client.acl.oidc_auth_url(method, redirect, nonce).auth_url
        click.echo(f"Open this in a browser to log in:\n\n  {url}\n", err=True)
        door.timeout = 1.0
        deadline_s = talk.world.monotonic_s() + PATIENCE_S
        while not came:
            door.handle_request()
            if talk.world.monotonic_s() > deadline_s:
                raise Failed(f"the browser did not come back within {PATIENCE_S:.0f} s")
    if "error" in came:
        raise Failed(f"the provider refused: {came.get('error_description') or came['error']}")
    return talk.client.acl.oidc_complete(
        CompleteAuthRequest(
            auth_method_name=method,
            client_nonce=nonce,
            state=came.get("state", ""),
            code=came.get("code", ""),
            iss=came.get("iss", ""),
            redirect_uri=redirect,
        )
    )
