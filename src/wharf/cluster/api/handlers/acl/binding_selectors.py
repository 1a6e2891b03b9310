"""Evaluates the selectors of binding rules for a login: in slices, and off the event loop if one takes long (ADR 115)."""

from wharf.cluster.access import MappedClaims
from wharf.cluster.access.binding_rules import compile_selector, list_binding_rules
from wharf.cluster.api.lists.pages import MAX_STEPS_ON_LOOP
from wharf.cluster.server.cpu_budget import CpuBudget, SlicedWork
from wharf.cluster.server.server import Server
from wharf.contract.model.acl.auth_methods import AuthMethod
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.languages.filters import Filter, FilterError, FilterStepsExceeded


class BindingRulesChanged(Exception):
    """A binding rule was added or changed after the selectors were evaluated. Evaluate them again."""


class SelectorResults:
    """Which binding rules of an auth method apply to the claims of a login."""

    def __init__(self, server: Server, method: AuthMethod, claims: MappedClaims) -> None:
        self._replica = server.replica
        self._method = method
        self._claims = claims
        limit_s = server.read_limits.filter_cpu_s
        budget = CpuBudget(
            limit_s,
            f'the selectors of the binding rules of auth method "{method.name}" used more than {limit_s:g} s of CPU time '
            "(api.max_filter_cpu): an operator must simplify them or raise the limit",
        )
        self._work = SlicedWork(server.world, server.off_loop, budget, owner="logins")
        self._results: dict[tuple[str, int], bool] = {}
        """Whether a rule applies, by its id and version."""

    def matches(self, rule: BindingRule) -> bool:
        """Return whether the rule applies. Raises `BindingRulesChanged` if it was not evaluated."""
        result = self._results.get((rule.id, rule.modify_index))
        if result is None:
            raise BindingRulesChanged
        return result

    async def evaluate(self) -> None:
        """Evaluate the selectors that have no result yet. Other tasks run between two slices.

        Raises `Refusal` if the limit of CPU time is reached.
        """
        self._work.restart()
        for rule in list_binding_rules(self._replica, self._method):
            key = (rule.id, rule.modify_index)
            if key not in self._results:
                self._results[key] = await self._evaluate_rule(rule)
                if self._work.is_slice_over():
                    await self._work.pause()
        self._work.count_slice()

    async def _evaluate_rule(self, rule: BindingRule) -> bool:
        """Return whether the rule applies. A rule whose selector cannot be evaluated does not."""
        try:
            selector = compile_selector(rule)
            if selector is None:
                return True
            return selector.accepts_within(self._claims, MAX_STEPS_ON_LOOP)
        except FilterStepsExceeded:
            assert selector is not None, "only a selector takes steps"
            return await self._work.run_off_loop(lambda _is_budget_over: _accepts(selector, self._claims))
        except FilterError:
            return False


def _accepts(selector: Filter, claims: MappedClaims) -> bool:
    """Return whether the selector accepts the claims; false if it takes too many steps. Runs off the event loop."""
    try:
        return selector.accepts(claims)
    except FilterError:
        return False
