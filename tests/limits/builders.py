"""Helpers for tests of the limiter: callers of every kind, a limiter with its counters, and a clock."""

from collections.abc import Iterable
from typing import Final

from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.limiter import Grant, Limiter
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.responses import RefusalResponse, build_headers, build_refusal
from wharf.limits.core.rule import ConnectionClass, RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import read_profile

NOON_MS: Final = 1_800_000_000_000
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

CODE_HOST: Final = read_profile()


def anonymous(address: str = "192.0.2.7", network: str = "192.0.2.0/24") -> Caller:
    """Return a caller without a credential."""
    return Caller(
        kind=CredentialKind.NONE,
        caller_class=CallerClass.NONE,
        owner=f"address:{address}",
        address=f"address:{address}",
        network=f"address:{network}",
        display_name=address,
    )


def a_user(
    login: str = "ada",
    *,
    kind: CredentialKind = CredentialKind.PERSONAL_TOKEN,
    case: CallerClass = CallerClass.USER,
    address: str = "192.0.2.7",
    app: str | None = None,
    token: str = "t1",
) -> Caller:
    """Return a caller with a token of a user."""
    return Caller(
        kind=kind,
        caller_class=case,
        owner=f"user:{login}",
        address=f"address:{address}",
        display_name=f"user {login}",
        user=f"user:{login}",
        app=app,
        token=f"token:{token}",
    )


def an_installation(
    number: int = 71, *, repositories: int = 0, members: int = 0, case: CallerClass = CallerClass.INSTALLATION
) -> Caller:
    """Return a caller with a token of an app installation."""
    return Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        caller_class=case,
        owner=f"installation:{number}",
        address="address:192.0.2.7",
        display_name=f"installation ID {number}",
        app="app:7",
        installation=f"installation:{number}",
        repositories=repositories,
        members=members,
    )


def a_client(*, case: CallerClass = CallerClass.CLIENT) -> Caller:
    """Return a caller with the id and the secret of an OAuth app."""
    return Caller(
        kind=CredentialKind.CLIENT_SECRET,
        caller_class=case,
        owner="app:7",
        address="address:192.0.2.7",
        display_name="app ID 7",
        app="app:7",
    )


def a_workflow(*, case: CallerClass = CallerClass.WORKFLOW) -> Caller:
    """Return a caller with the token of a workflow."""
    return Caller(
        kind=CredentialKind.WORKFLOW_TOKEN,
        caller_class=case,
        owner="repository:acme/site",
        address="address:192.0.2.7",
        display_name="repository acme/site",
        repository="repository:acme/site",
        token="token:w1",
    )


class InMemoryLimiter:
    """A limiter with counters in memory, and a clock that moves only when a test moves it."""

    def __init__(self, rules: RuleSet | str = CODE_HOST, *, at_ms: int = NOON_MS, grants: Iterable[Grant] = ()) -> None:
        self.rules = read_rules(rules) if isinstance(rules, str) else rules
        self.core = Limiter(self.rules, grants)
        self.counters = Counters(self.rules.rules, max_keys=self.rules.keys_most)
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
        connection: ConnectionClass = ConnectionClass.PLAIN,
        holds: bool = False,
        request_id: str | None = None,
    ) -> LimitDecision:
        """Send a request. It releases its slot at once unless `holds` is set."""
        self._number += 1
        name = request_id or f"r{self._number}"
        request = RequestFacts(name, method, path, caller, query=query, connection=connection)
        call = self.core.build_call(request, self.now_ms)
        decision = self.core.decide(call, self.counters.take(call, self.now_ms))
        if not holds:
            self.counters.release(name, self.now_ms)
        return decision

    def send_many(
        self, count: int, caller: Caller, path: str = "/meta", *, every_ms: int = 0, method: str = "GET"
    ) -> int:
        """Send `count` requests and return how many were admitted."""
        admitted = 0
        for _ in range(count):
            admitted += self.send(caller, path, method=method).is_admitted
            self.now_ms += every_ms
        return admitted

    def headers(self, decision: LimitDecision) -> dict[str, str]:
        return dict(build_headers(decision, self.rules))

    def refusal(self, decision: LimitDecision, caller: Caller) -> RefusalResponse:
        return build_refusal(decision, caller, self.rules)

    def count(self, rule: str, key: str) -> int:
        return self.counters.tables[rule].count_used(key, self.now_ms)

    def reload(self, rules: RuleSet | str) -> None:
        self.rules = read_rules(rules) if isinstance(rules, str) else rules
        self.core = self.core.copy_with_rules(self.rules)
        self.counters.set_rules(self.rules.rules, max_keys=self.rules.keys_most)


def build_rules_text(*rules: str, top: str = "") -> str:
    """Return a rules file without a profile: these rules, and a large bucket for all other requests."""
    other_rule = '[[rule]]\nname = "core"\nresource = "core"\nceiling = 1000000\n'
    return "\n".join(['profile = "none"', top, *rules, other_rule])
