"""Imports gRPC so that it writes no lines of its own to standard error, where they would be outside of the agent's log.

Callers report its failures themselves. Import this module before anything else imports gRPC, which reads the variable only
once. A value that the user has set counts.
"""

import os
from typing import Final

VERBOSITY_VARIABLE: Final = "GRPC_VERBOSITY"

_is_set_by_user = VERBOSITY_VARIABLE in os.environ
os.environ.setdefault(VERBOSITY_VARIABLE, "NONE")

import grpc  # type: ignore[import-untyped]  # noqa: E402  # The library has no types. It must see the variable.

if not _is_set_by_user:
    del os.environ[VERBOSITY_VARIABLE]  # Programs that this process starts, such as tasks, must not get it.

__all__ = ["grpc"]
