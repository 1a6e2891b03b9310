"""What a decision needs to know about a request: its method, the costs of its body and query, and what it may create.

Reads facts, and decides nothing. `DecisionService` passes them to the evaluator.
"""

from collections.abc import Callable
from typing import Final

from wharf.limits.core.body_coding import CODED_BODY
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.graphql import QueryTooComplex
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.method_overrides import METHOD_SEPARATOR, find_methods, join_methods, may_name_method
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.rule import READ_METHODS, Interface, MethodOverride
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.marked_endpoints import MarkedEndpoints
from wharf.limits.decisions.requests import IncomingRequest

MAX_INLINE_BODY_BYTES: Final = 2_048
"""Longer bodies are read on a thread: to compute the cost of a query takes up to 5 µs for each byte."""


def is_long_body(body: bytes | None) -> bool:
    """Return whether the event loop must not wait until a body is read, because it is long."""
    return body is not None and len(body) > MAX_INLINE_BODY_BYTES


class FactReader:
    """Reads the facts of requests by the rules in force.

    `is_revocation` returns whether a request revokes credentials; `None` if no request can. `revocation_path` is its path.
    """

    def __init__(
        self,
        evaluator: LimitEvaluator,
        now_ms: Callable[[], int],
        *,
        revocation_path: str,
        is_revocation: Callable[[IncomingRequest], bool] | None,
    ) -> None:
        self.marked_endpoints: Final = MarkedEndpoints()
        self._evaluator = evaluator
        self._now_ms = now_ms
        self._revocation_path = revocation_path
        self._is_revocation = is_revocation

    def needs_body(self, method: str, path: str) -> bool:
        """Return whether the decision needs the body, if there is one, of a request with this path in normal form.

        It does for GraphQL requests, batches of large files, and revocations. The method does not matter: some services also read the
        body of a GET. `method` can be several, joined by `join_methods`.
        """
        endpoint = self._evaluator.limiter.rulebook.get_endpoint(method, path)
        return endpoint.needs_body or (path == self._revocation_path and method == "POST")

    def needs_body_of(self, incoming: IncomingRequest) -> bool:
        """Return whether the decision needs the body of this request, if there is one."""
        if self._is_revocation is not None and self._is_revocation(incoming):
            return True
        return self.needs_body(self.find_judged_method(incoming), incoming.path)

    def find_judged_method(self, incoming: IncomingRequest) -> str:
        """Return the method by which a request is judged, or several joined ones if the service may serve it as any of them."""
        has_body = incoming.has_form or incoming.has_json
        if not (incoming.method_overrides or has_body or (incoming.query and may_name_method(incoming.query))):
            return incoming.method  # Nearly all requests: this must be fast.
        setting = self._evaluator.rules.paths.method_override
        if setting is MethodOverride.IGNORE:
            return incoming.method
        has_form = has_body and (
            setting is MethodOverride.BODIES or (incoming.has_form and setting is MethodOverride.FORMS)
        )
        return join_methods(find_methods(incoming.method, incoming.method_overrides, incoming.query, has_form=has_form))

    def takes_long(self, incoming: IncomingRequest, body: bytes | None) -> bool:
        """Return whether the event loop must not wait until body and query are read, because one of them is long."""
        return is_long_body(body) or (len(incoming.query) > MAX_INLINE_BODY_BYTES and self.has_graphql_query(incoming))

    @staticmethod
    def can_lack_body(incoming: IncomingRequest) -> bool:
        """Return whether a request that needs the body may come without one: a read, or with parameters in its URL."""
        return bool(incoming.query) or incoming.method in READ_METHODS

    def has_graphql_query(self, incoming: IncomingRequest) -> bool:
        """Return whether the query of the target may contain a GraphQL query."""
        if not incoming.query:
            return False
        endpoint = self._evaluator.limiter.rulebook.get_endpoint(self.find_judged_method(incoming), incoming.path)
        return endpoint.interface is Interface.GRAPHQL

    def build_facts(self, request_id: str, incoming: IncomingRequest, caller: Caller) -> RequestFacts:
        """Return the facts of a request whose body and query do not matter, because it is refused in any case."""
        return RequestFacts(id=request_id, method=self.find_judged_method(incoming), path=incoming.path, caller=caller)

    def read_facts(
        self, request_id: str, incoming: IncomingRequest, caller: Caller, body: bytes | None
    ) -> tuple[RequestFacts, str]:
        """Return a pair: the facts that the decision needs, and what is wrong with body or query (empty if nothing)."""
        query: QueryFacts | None = None
        objects: int | None = None
        problem = ""
        method = self.find_judged_method(incoming)
        endpoint = self._evaluator.limiter.rulebook.get_endpoint(method, incoming.path)
        try:
            if body and incoming.is_body_coded and (endpoint.is_batch or endpoint.interface is Interface.GRAPHQL):
                problem = CODED_BODY
            elif endpoint.is_batch:
                objects = count_objects(body) if body is not None else None
            elif endpoint.interface is Interface.GRAPHQL:
                query = self._evaluator.query_costs.compute_request_cost(body, incoming.query)
        except (QueryTooComplex, UnreadableBatch) as error:
            problem = str(error)
        request = RequestFacts(
            id=request_id,
            method=method,
            path=incoming.path,
            caller=caller,
            query=query,
            object_count=objects,
            connection=incoming.connection,
            may_create_content=self._may_create_content(method, incoming.path, caller, self._now_ms()),
        )
        return request, problem

    def read_plain_facts(self, request_id: str, incoming: IncomingRequest, caller: Caller, now_ms: int) -> RequestFacts:
        """Return the facts of a request without a body or a query that counts: the usual case."""
        method, path = self.find_judged_method(incoming), incoming.path
        may_create = self._may_create_content(method, path, caller, now_ms)
        return RequestFacts(request_id, method, path, caller, None, None, incoming.connection, may_create)

    def _may_create_content(self, method: str, path: str, caller: Caller, now_ms: int) -> bool:
        """Return whether the service has marked an earlier request of the same action as one that created content.

        `method` can be several, joined by `join_methods`: each of them can have the action.
        """
        if not self.marked_endpoints:
            return False
        rulebook = self._evaluator.limiter.rulebook
        return any(
            self.marked_endpoints.may_create_content(
                *(caller.owner, one, path, rulebook.get_endpoint(one, path).name),
                rules=rulebook.rules.paths,
                now_ms=now_ms,
            )
            for one in method.split(METHOD_SEPARATOR)
        )
