"""The functions that expressions may call (record 0231). Each module declares rows of the table `FUNCTIONS`.

`try`, `can` and `convert` are no rows: their arguments are not evaluated first.
"""

from collections.abc import Mapping
from typing import Final

from wharf.languages.hcl.calls import CallContext, FunctionSpec, define_function
from wharf.languages.hcl.functions import (
    encodings,
    formats,
    hashes,
    lists,
    networks,
    numbers,
    texts,
    times,
    yaml_texts,
)
from wharf.languages.hcl.values import Value

_FILE_FUNCTIONS: Final = {
    "abspath": "path:text",
    "basename": "path:text",
    "dirname": "path:text",
    "file": "path:text",
    "filebase64": "path:text",
    "fileexists": "path:text",
    "fileset": "folder:text pattern:text",
    "pathexpand": "path:text",
}


def _define_file_function(name: str, signature: str) -> tuple[str, FunctionSpec]:
    def call(context: CallContext, *arguments: str) -> Value:
        return context.ports.files.call(name, arguments)

    return define_function(name, signature, call)


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = {
    **numbers.FUNCTIONS,
    **texts.FUNCTIONS,
    **formats.FUNCTIONS,
    **lists.FUNCTIONS,
    **encodings.FUNCTIONS,
    **yaml_texts.FUNCTIONS,
    **hashes.FUNCTIONS,
    **networks.FUNCTIONS,
    **times.FUNCTIONS,
    **dict(_define_file_function(name, signature) for name, signature in _FILE_FUNCTIONS.items()),
}
