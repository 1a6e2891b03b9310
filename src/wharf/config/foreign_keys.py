"""Keys of Nomad's configuration that Wharf does not have, each with the reason.

They are errors like every unknown key. The reason saves users the search for a key that replaces it.
"""

from collections.abc import Mapping
from typing import Final

from wharf.config.tree import KeyPath

_ONE_PORT: Final = "servers and nodes communicate over the HTTP port: remove it"
_NO_RAFT: Final = "the engine selected in [state] stores the state: remove it"
_BUILT_IN: Final = "services and secrets are built in, and no other product is used: remove it"
_LOG_OUTPUT: Final = "logs are written to standard error and to log_file: remove it"
_MEMBERSHIP: Final = "servers find each other through the engine selected in [state]: remove it"
_GRACEFUL_SHUTDOWN: Final = "the agent always shuts down gracefully: remove it"

REASON_BY_FOREIGN_KEY: Final[Mapping[KeyPath, str]] = {
    ("ports", "rpc"): _ONE_PORT,
    ("ports", "serf"): _ONE_PORT,
    ("addresses", "rpc"): _ONE_PORT,
    ("addresses", "serf"): _ONE_PORT,
    ("advertise", "rpc"): _ONE_PORT,
    ("advertise", "serf"): _ONE_PORT,
    ("rpc",): _ONE_PORT,
    ("tls", "rpc"): "there is only one port, and tls.http applies to it: remove it",
    ("tls", "rpc_upgrade_mode"): "there is only one port, and tls.http applies to it: remove it",
    ("limits", "rpc_max_conns_per_client"): _ONE_PORT,
    ("limits", "rpc_handshake_timeout"): _ONE_PORT,
    ("server", "raft_protocol"): _NO_RAFT,
    ("server", "raft_multiplier"): _NO_RAFT,
    ("server", "bootstrap_expect"): _MEMBERSHIP,
    ("server", "server_join"): _MEMBERSHIP,
    ("server", "encrypt"): _MEMBERSHIP,
    ("client", "server_join"): "list the servers' HTTP addresses in client.servers instead",
    ("server", "num_schedulers"): "every server runs exactly one scheduler process: remove it",
    ("autopilot",): _MEMBERSHIP,
    ("consul",): _BUILT_IN,
    ("vault",): _BUILT_IN,
    ("enable_syslog",): _LOG_OUTPUT,
    ("syslog_facility",): _LOG_OUTPUT,
    ("leave_on_interrupt",): _GRACEFUL_SHUTDOWN,
    ("leave_on_terminate",): _GRACEFUL_SHUTDOWN,
    ("disable_update_check",): "Wharf never checks for updates: remove it",
}
