"""Keys that people bring along from the peer's configuration and that mean nothing here, each with why.

They are errors like every unknown key; but "there is no such key" alone would send the reader searching.
"""

from collections.abc import Mapping
from typing import Final

from wharf.config.tree import KeyPath

_ONE_PORT: Final = "servers and nodes talk over the HTTP port: remove it"
_NO_RAFT: Final = "the state is kept by the engine named in [state]: remove it"
_NOT_BUILT_IN: Final = "services and secrets are built in, nothing else is called: remove it"
_OUTPUT: Final = "logs go to the standard error output and to log_file: remove it"
_MEMBERS: Final = "servers find each other through the engine named in [state]: remove it"
_ON_SIGNAL: Final = "the agent always ends in good order: remove it"

REASON_BY_FOREIGN_KEY: Final[Mapping[KeyPath, str]] = {
    ("ports", "rpc"): _ONE_PORT,
    ("ports", "serf"): _ONE_PORT,
    ("addresses", "rpc"): _ONE_PORT,
    ("addresses", "serf"): _ONE_PORT,
    ("advertise", "rpc"): _ONE_PORT,
    ("advertise", "serf"): _ONE_PORT,
    ("rpc",): _ONE_PORT,
    ("tls", "rpc"): "there is one port, and tls.http is for all of it: remove it",
    ("tls", "rpc_upgrade_mode"): "there is one port, and tls.http is for all of it: remove it",
    ("limits", "rpc_max_conns_per_client"): _ONE_PORT,
    ("limits", "rpc_handshake_timeout"): _ONE_PORT,
    ("server", "raft_protocol"): _NO_RAFT,
    ("server", "raft_multiplier"): _NO_RAFT,
    ("server", "bootstrap_expect"): _MEMBERS,
    ("server", "server_join"): _MEMBERS,
    ("server", "encrypt"): _MEMBERS,
    ("client", "server_join"): "list the servers' HTTP addresses in client.servers instead",
    ("server", "num_schedulers"): "one process schedules, and it is always there: remove it",
    ("autopilot",): _MEMBERS,
    ("consul",): _NOT_BUILT_IN,
    ("vault",): _NOT_BUILT_IN,
    ("enable_syslog",): _OUTPUT,
    ("syslog_facility",): _OUTPUT,
    ("leave_on_interrupt",): _ON_SIGNAL,
    ("leave_on_terminate",): _ON_SIGNAL,
    ("disable_update_check",): "no one is asked for updates: remove it",
}
