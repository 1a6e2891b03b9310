"""Client settings: server addresses, credentials and defaults, from environment variables or from the caller."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
ENVIRONMENT_PREFIXES: Final = ("WHARF_", "NOMAD_")
"""The first prefix wins. Nomad's variables work too, so that programs written for Nomad need no changes."""
FALSE_VALUES: Final = ("", "0", "f", "F", "false", "False", "FALSE")


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The servers, the credentials and the defaults of a client.

    `addresses` are tried in order: `http://…`, `https://…` or `unix:///…`; without a scheme, http is used.
    """

    addresses: tuple[str, ...] = (DEFAULT_ADDRESS,)
    token: str = ""  # The secret of an ACL token.
    namespace: str = ""  # Default of calls.
    region: str = ""  # Default of calls.
    http_auth: str = ""
    """`user:password`, for a proxy in front of the servers."""
    ca_file: str = ""  # Trusted certificates, as a file.
    ca_path: str = ""  # Trusted certificates, as a folder.
    cert_file: str = ""  # The client certificate.
    key_file: str = ""  # The private key of the client certificate.
    server_name: str = ""
    """The name in the servers' certificate, if it differs from the address."""
    skip_verify: bool = False  # Whether to accept any server certificate.
    stale: bool = False  # Default of reads: whether servers may reply without waiting for the newest writes.

    def __repr__(self) -> str:
        """Return a text without secrets."""
        return f"ClientSettings({', '.join(self.addresses)})"


FIELD_BY_VARIABLE: Final = {  # Variable name without its prefix -> field of `ClientSettings`.
    "TOKEN": "token",
    "NAMESPACE": "namespace",
    "REGION": "region",
    "HTTP_AUTH": "http_auth",
    "CACERT": "ca_file",
    "CAPATH": "ca_path",
    "CLIENT_CERT": "cert_file",
    "CLIENT_KEY": "key_file",
    "TLS_SERVER_NAME": "server_name",
}


def read_settings(
    environment: Mapping[str, str] | None = None, *, prefixes: Sequence[str] = ENVIRONMENT_PREFIXES
) -> ClientSettings:
    """Return the client settings of environment variables such as `WHARF_ADDR` and `WHARF_TOKEN`.

    `NOMAD_ADDR` and so on are used where the variable of Wharf is not set. Several addresses are separated by commas.
    `environment` replaces the variables of the process. `prefixes` of names of variables replace `WHARF_` and `NOMAD_`;
    the first one wins.
    """
    variables = environment if environment is not None else os.environ
    fields: dict[str, str] = {
        field: text for name, field in FIELD_BY_VARIABLE.items() if (text := _read_variable(variables, name, prefixes))
    }
    addresses = parse_addresses(_read_variable(variables, "ADDR", prefixes)) or (DEFAULT_ADDRESS,)
    skip_verify = _read_variable(variables, "SKIP_VERIFY", prefixes) not in FALSE_VALUES
    return msgspec.structs.replace(ClientSettings(addresses=addresses, skip_verify=skip_verify), **fields)


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses in a comma-separated text, with `http://` in front of those without a scheme."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(_complete_address(part) for part in parts if part)


def _complete_address(text: str) -> str:
    """Return the address with a scheme and without slashes at its end."""
    scheme, _, rest = text.rpartition("://")
    return f"{scheme or 'http'}://{rest.rstrip('/')}"


def _read_variable(environment: Mapping[str, str], name: str, prefixes: Sequence[str]) -> str:
    """Return the value of the variable with the first prefix that is not empty, such as `WHARF_ADDR`; else empty."""
    return next((text for prefix in prefixes if (text := environment.get(prefix + name, ""))), "")
