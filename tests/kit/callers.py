"""Tokens for tests, written directly to the log without the token endpoints."""

from msgspec.structs import replace

from tests.kit.cluster import OneServer
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.api.app import Api
from wharf.cluster.state.tables import ACL_POLICIES, ACL_TOKENS
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.tokens import Token, TokenType
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.secrets import hash_secret

CAUSE = Cause(CauseKind.REQUEST, "test")


def enable_acl(server: OneServer) -> None:
    """Enable access control on the server from now on."""
    server.api = Api(server.server, authenticator=CallerAuthenticator(server.world, is_enabled=True))
    server.exchange.api = server.api


async def a_token(server: OneServer, rules: str = "", *, management: bool = False, name: str = "") -> dict[str, str]:
    """Create a token with these rules, and return its header. Without rules it has no rights."""
    accessor, secret = server.world.new_id(), server.world.new_id()
    policy = Policy(name=name or f"policy-{accessor}", rules=rules, create_index=WRITE_INDEX)
    token = Token(
        accessor_id=accessor,
        secret_digest=hash_secret(secret),
        type=TokenType.MANAGEMENT if management else TokenType.CLIENT,
        policies=None if management else (policy.name,),
        create_index=WRITE_INDEX,
    )
    changes = (
        [ACL_TOKENS.build_put(token)] if management else [ACL_POLICIES.build_put(policy), ACL_TOKENS.build_put(token)]
    )
    await server.server.writer.commit(Write("test", CAUSE, changes))
    return {"x-cluster-token": secret}


async def change_rules(server: OneServer, headers: dict[str, str], rules: str) -> None:
    """Replace the rules of the token's policy."""
    (token,) = [
        t for t in server.replica.iter_all(ACL_TOKENS) if t.secret_digest == hash_secret(headers["x-cluster-token"])
    ]
    policy = server.replica.get(ACL_POLICIES, (token.policies or ("",))[0])
    assert policy is not None, "the token has a policy"
    await server.server.writer.commit(Write("test", CAUSE, [ACL_POLICIES.build_put(replace(policy, rules=rules))]))
