"""Small words for tests of the limiter: callers of every kind, a desk that requests are sent to, a given clock."""

from collections.abc import Iterable
from typing import Final

from wharf.limits.core.answer import Refusal, headers_of, refusal_of
from wharf.limits.core.caller import Caller, Case, CredentialKind
from wharf.limits.core.counters import Counters
from wharf.limits.core.decision import Decision
from wharf.limits.core.limiter import Grant, Limiter
from wharf.limits.core.request import QueryFacts, Request
from wharf.limits.core.rule import Connection, RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.rules.reader import read_profile

NOON_MS: Final = 1_800_000_000_000
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

CODE_HOST: Final = read_profile()


def anonymous(address: str = "192.0.2.7", network: str = "192.0.2.0/24") -> Caller:
    return Caller(
        kind=CredentialKind.NONE,
        case=Case.NONE,
        owner=f"address:{address}",
        address=f"address:{address}",
        network=f"address:{network}",
        spoken=address,
    )


def a_user(
    login: str = "ada",
    *,
    kind: CredentialKind = CredentialKind.PERSONAL_TOKEN,
    case: Case = Case.USER,
    address: str = "192.0.2.7",
    app: str | None = None,
    token: str = "t1",
) -> Caller:
    return Caller(
        kind=kind,
        case=case,
        owner=f"user:{login}",
        address=f"address:{address}",
        spoken=f"user {login}",
        user=f"user:{login}",
        app=app,
        token=f"token:{token}",
    )


def an_installation(
    number: int = 71, *, repositories: int = 0, members: int = 0, case: Case = Case.INSTALLATION
) -> Caller:
    return Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        case=case,
        owner=f"installation:{number}",
        address="address:192.0.2.7",
        spoken=f"installation ID {number}",
        app="app:7",
        installation=f"installation:{number}",
        repositories=repositories,
        members=members,
    )


def a_client(*, case: Case = Case.CLIENT) -> Caller:
    return Caller(
        kind=CredentialKind.CLIENT_SECRET,
        case=case,
        owner="app:7",
        address="address:192.0.2.7",
        spoken="app ID 7",
        app="app:7",
    )


def a_workflow(*, case: Case = Case.WORKFLOW) -> Caller:
    return Caller(
        kind=CredentialKind.WORKFLOW_TOKEN,
        case=case,
        owner="repository:acme/site",
        address="address:192.0.2.7",
        spoken="repository acme/site",
        repository="repository:acme/site",
        token="token:w1",
    )


class Desk:
    """A limiter over counters in memory, with a clock that moves only when told."""

    def __init__(self, rules: RuleSet | str = CODE_HOST, *, at_ms: int = NOON_MS, grants: Iterable[Grant] = ()) -> None:
        self.rules = read_rules(rules) if isinstance(rules, str) else rules
        self.limiter = Limiter(self.rules, grants)
        self.counters = Counters(self.rules.rules, keys_most=self.rules.keys_most)
        self.now_ms = at_ms
        self._number = 0

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def send(
        self,
        caller: Caller,
        path: str = "/meta",
        *,
        method: str = "GET",
        query: QueryFacts | None = None,
        connection: Connection = Connection.PLAIN,
        holds: bool = False,
        request_id: str | None = None,
    ) -> Decision:
        """Send a request; unless it `holds` its slot, it is over at once."""
        self._number += 1
        name = request_id or f"r{self._number}"
        request = Request(name, method, path, caller, query=query, connection=connection)
        call = self.limiter.call_for(request, self.now_ms)
        decision = self.limiter.decide(call, self.counters.take(call, self.now_ms))
        if not holds:
            self.counters.release(name, self.now_ms)
        return decision

    def send_many(
        self, count: int, caller: Caller, path: str = "/meta", *, every_ms: int = 0, method: str = "GET"
    ) -> int:
        """Send so many and return how many were admitted."""
        admitted = 0
        for _ in range(count):
            admitted += self.send(caller, path, method=method).is_admitted
            self.now_ms += every_ms
        return admitted

    def headers(self, decision: Decision) -> dict[str, str]:
        return dict(headers_of(decision, self.rules))

    def refusal(self, decision: Decision, caller: Caller) -> Refusal:
        return refusal_of(decision, caller, self.rules)

    def count(self, rule: str, key: str) -> int:
        return self.counters.tables[rule].used(key, self.now_ms)

    def reload(self, rules: RuleSet | str) -> None:
        self.rules = read_rules(rules) if isinstance(rules, str) else rules
        self.limiter = self.limiter.with_rules(self.rules)
        self.counters.adopt(self.rules.rules, keys_most=self.rules.keys_most)


def only(*rules: str, top: str = "") -> str:
    """A rules file without a profile: these rules, and a wide bucket for all the rest."""
    rest = '[[rule]]\nname = "core"\nresource = "core"\nceiling = 1000000\n'
    return "\n".join(['profile = "none"', top, *rules, rest])
