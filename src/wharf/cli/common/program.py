"""The name by which the program was called, `wharf` or `nomad`, and how texts name commands and variables for it."""

import re
from typing import Final

import click

from wharf.cli.lazy_group import NOMAD_PROGRAM

_VARIABLE: Final = re.compile(
    r"\bWHARF_(?=(?:ADDR|TOKEN|NAMESPACE|REGION|HTTP_AUTH|CACERT|CAPATH|CLIENT_CERT|CLIENT_KEY|TLS_SERVER_NAME|SKIP_VERIFY)\b)"
)
"""The prefix of a variable of which Nomad's counterpart comes first if the program is called as `nomad`."""


def is_called_as_nomad(context: click.Context | None = None) -> bool:
    """Return whether the program was called as `nomad`. `context` defaults to that of the command that runs."""
    context = context or click.get_current_context(silent=True)
    return context is not None and context.find_root().info_name == NOMAD_PROGRAM


def get_program_name() -> str:
    """Return the name that printed commands begin with."""
    return NOMAD_PROGRAM if is_called_as_nomad() else "wharf"


def name_variables(text: str) -> str:
    """Return a text with the variables of connections that the program reads first: `NOMAD_ADDR` instead of `WHARF_ADDR`
    if the program was called as `nomad`.
    """
    return _VARIABLE.sub("NOMAD_", text) if is_called_as_nomad() else text
