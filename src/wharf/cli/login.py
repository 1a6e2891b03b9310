"""`wharf login`: exchanges the proof of an identity provider, a JWT or an OIDC login, for a token."""

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.program import name_variables
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import ServerCommand, Session

if TYPE_CHECKING:
    from wharf.contract.wire.acl import TokenView

DEFAULT_CALLBACK_ADDRESS: Final = "127.0.0.1:4649"
CALLBACK_PATH: Final = "/oidc/callback"
LOGGED_IN_PAGE: Final = b"<!doctype html><title>Wharf</title><p>You are logged in. This page can be closed."
CALLBACK_TIMEOUT_S: Final = 300.0
"""How long the command waits for the browser."""


@click.command(cls=ServerCommand)
@click.option("--method", "name", default="", help="Auth method.  [default: the default method]")
@click.option(
    "--login-token",
    default="",
    help="Token of the identity provider, for JWT methods; - reads standard input.  [WHARF_LOGIN_TOKEN]",
)
@click.option(
    "--oidc-callback-addr",
    "callback",
    default=DEFAULT_CALLBACK_ADDRESS,
    show_default=True,
    help="Local address to which the identity provider sends the browser back.",
)
def login(session: Session, name: str, login_token: str, callback: str) -> None:
    """Log in and print a token.

    With OIDC, the command prints a URL to open in a browser, and waits until the login there is complete.

    wharf login --method company
    """
    from wharf.cli.acl.tokens import render_token
    from wharf.cli.common.documents import read_text

    methods = session.client.acl.auth_methods.list().value
    chosen = [method for method in methods if (method.name == name if name else method.default)]
    if not chosen:
        known = ", ".join(method.name for method in methods)
        missing = f"auth method {name} does not exist" if name else "no default auth method"
        if not methods:
            raise CliError(
                f"{missing}: the cluster has no auth methods; `wharf acl auth-method create FILE` creates one"
            )
        raise CliError(f"{missing}; choose one with --method: {known}")
    method = chosen[0]
    if method.type == "JWT":
        login_token = login_token or os.environ.get("WHARF_LOGIN_TOKEN", "")
        if not login_token:
            raise CliError(
                f"auth method {method.name} requires a token of its identity provider: set --login-token or "
                "WHARF_LOGIN_TOKEN"
            )
        proof = read_text("-").strip() if login_token == "-" else login_token
        token = session.client.acl.login(method.name, proof)
    else:
        token = _login_with_browser(session, method.name, callback)
    session.print_result(token, lambda: render_token(session, token))
    session.print_text(f"\nTo use it: export {name_variables('WHARF_TOKEN')}={token.secret_id}")


def _login_with_browser(session: Session, method: str, callback: str) -> "TokenView":
    """Log in with OIDC: print the provider's URL, listen for the browser's return, exchange its code for a token.

    Raises CliError if the callback address is in use, the time is over, or the provider rejects the login.
    """
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from wharf.contract.wire.acl import CompleteAuthRequest

    callback_parameters: dict[str, str] = {}

    class CallbackHandler(BaseHTTPRequestHandler):
        """Receives the browser that returns from the identity provider, and stores the parameters of its URL."""

        def do_GET(self) -> None:  # The name that http.server requires.
            """Store the parameters of the callback URL and send a closing page. Any other path is answered with 404."""
            parts = urlsplit(self.path)
            if parts.path != CALLBACK_PATH:
                self.send_error(404)
                return
            callback_parameters.update({key: values[0] for key, values in parse_qs(parts.query).items()})
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
        listener = HTTPServer((host, int(port)), CallbackHandler)
    except (OSError, ValueError) as error:
        raise CliError(
            f"cannot listen at {callback}: {error}; set another address with --oidc-callback-addr"
        ) from error
    with listener:
        url = session.client.acl.create_oidc_auth_url(method, redirect, nonce).auth_url
        print_notice(f"Open this URL in a browser to log in:\n\n  {url}\n")
        listener.timeout = 1.0
        deadline_s = session.world.monotonic_s() + CALLBACK_TIMEOUT_S
        while not callback_parameters:
            listener.handle_request()
            if session.world.monotonic_s() > deadline_s:
                raise CliError(f"login timed out: the browser did not return within {CALLBACK_TIMEOUT_S:.0f} s")
    if "error" in callback_parameters:
        reason = callback_parameters.get("error_description") or callback_parameters["error"]
        raise CliError(f"the identity provider rejected the login: {reason}")
    return session.client.acl.complete_oidc_login(
        CompleteAuthRequest(
            auth_method_name=method,
            client_nonce=nonce,
            state=callback_parameters.get("state", ""),
            code=callback_parameters.get("code", ""),
            iss=callback_parameters.get("iss", ""),
            redirect_uri=redirect,
        )
    )
