"""A check with everything in it put in: names, ports and addresses are known."""

from typing import NamedTuple

SECOND_NS = 1_000_000_000


class Wanted(NamedTuple):
    id: str
    name: str
    kind: str  # http, tcp, grpc, script
    interval_s: float
    timeout_s: float
    host: str = ""
    port: int = 0
    # http
    is_tls: bool = False
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    skips_verify: bool = False
    server_name: str = ""
    # grpc
    service: str = ""
    # script
    command: tuple[str, ...] = ()
    # How many in a row it takes. 0 and 1: the first.
    successes_needed: int = 0
    failures_needed: int = 0
    is_well_at_first: bool = False
    # Said to say nothing about health: what it finds is shown, and that is all.
    is_readiness: bool = False
    takes_warnings: bool = False
    # Failures in a row after which its task is started anew; 0: never. Not counted before the grace is over.
    restart_limit: int = 0
    restart_grace_s: float = 0.0
    restart_takes_warnings: bool = False
