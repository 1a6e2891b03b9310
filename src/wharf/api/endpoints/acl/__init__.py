"""Endpoints of tokens, policies, roles, auth methods and binding rules: the one place that knows their rooms.

While access control is off they all say so; only who one is, is answered even then.
"""

from typing import Final

from wharf.api.answers import Act, Reading
from wharf.api.endpoints.acl import logins as acl_logins
from wharf.api.endpoints.acl import methods as acl_methods
from wharf.api.endpoints.acl import policies as acl_policies
from wharf.api.endpoints.acl import tokens as acl_tokens
from wharf.api.endpoints.acl.off import only_when_on
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {}

ROOMS: Final = (acl_tokens, acl_policies, acl_methods)


def reads_of(server: Server) -> dict[str, Reading]:
    reads = {name: reading for room in ROOMS for name, reading in room.reads_of(server).items()}
    return {name: only_when_on(server, reading) for name, reading in reads.items()} | {
        "acl.token.self": acl_tokens.TokenReads(server).self_
    }


def acts_of(server: Server) -> dict[str, Act]:
    acts = {name: act for room in (*ROOMS, acl_logins) for name, act in room.acts_of(server).items()}
    return {name: only_when_on(server, act) for name, act in acts.items()}
