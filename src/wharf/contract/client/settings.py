"""Where the servers are, and as whom they are spoken to: from the environment, and from what the caller says."""

import os
from collections.abc import Mapping
from typing import Final

import msgspec

DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
ENVIRONMENT_PREFIXES: Final = ("WHARF_", "NOMAD_")
"""Ours wins: programs that were made for the peer find what they are used to."""
FALSE_VALUES: Final = ("", "0", "f", "F", "false", "False", "FALSE")


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`addresses` are used in turn: `http://…`, `https://…` or `unix:///…`; without a scheme it is http."""

    addresses: tuple[str, ...] = (DEFAULT_ADDRESS,)
    token: str = ""
    namespace: str = ""
    region: str = ""
    http_auth: str = ""
    """`user:password`, for a proxy in front of the servers."""
    ca_file: str = ""
    ca_path: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """The name that the servers' certificate must hold."""
    skip_verify: bool = False
    stale: bool = False

    def __repr__(self) -> str:
        """Without what is secret."""
        return f"ClientSettings({', '.join(self.addresses)})"


FIELD_BY_VARIABLE: Final = {
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


def read_settings(environment: Mapping[str, str] | None = None) -> ClientSettings:
    """From the variables `WHARF_ADDR` (several: with commas), `WHARF_TOKEN` and so on; the peer's names count too."""
    found = environment if environment is not None else os.environ
    given: dict[str, str] = {
        field: text for name, field in FIELD_BY_VARIABLE.items() if (text := _variable(found, name))
    }
    addresses = parse_addresses(_variable(found, "ADDR")) or (DEFAULT_ADDRESS,)
    skip = _variable(found, "SKIP_VERIFY") not in FALSE_VALUES
    return msgspec.structs.replace(ClientSettings(addresses=addresses, skip_verify=skip), **given)


def parse_addresses(text: str) -> tuple[str, ...]:
    """Each with its scheme."""
    parts = [part.strip().rstrip("/") for part in text.split(",")]
    return tuple(part if "://" in part else f"http://{part}" for part in parts if part)


def _variable(environment: Mapping[str, str], name: str) -> str:
    return next((text for prefix in ENVIRONMENT_PREFIXES if (text := environment.get(prefix + name, ""))), "")
