"""Forms are shown to those who may use them, by the permissions of the endpoints behind them."""

from collections.abc import Iterator
from typing import Final

import msgspec
import pytest
from jinja2 import nodes

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import a_browser, a_server_with_access
from tests.web.test_sign_in import sign_in
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME
from wharf.web.rendering import get_environment, list_operations

FREE_FORMS: Final = {"base.html", "sign_in.html", "access.html", "confirm.html", "error.html"}
"""Templates whose forms need no right: they sign in and out, end the person's own sessions, or repeat a form that was sent."""
FORM_MACROS: Final = {"namespace_form", "quota_form", "grant_form", "ban_form"}
FORM_PARTS: Final = {"cluster_parts.html", "limit_parts.html"}
"""Templates with macros for forms: the templates that call them ask."""
TEMPLATES: Final = sorted(get_environment().list_templates())


def find_free_forms(node: nodes.Node, *, is_checked: bool = False) -> Iterator[str]:
    """Yield each form that changes something, unless it is in a branch of a condition that asks `may`."""
    if not is_checked:
        if isinstance(node, nodes.TemplateData) and 'method="post"' in node.data:
            yield node.data
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr in FORM_MACROS:
            yield node.node.attr
    for child in node.iter_child_nodes():
        asked = isinstance(node, nodes.If) and child in (node.else_ if isinstance(node.test, nodes.Not) else node.body)
        yield from find_free_forms(child, is_checked=is_checked or (asked and asks_may(node)))


def asks_may(condition: nodes.Node) -> bool:
    """Return whether the test of a condition contains a call of `may`."""
    assert isinstance(condition, nodes.If)
    calls = nodes.Output([condition.test]).find_all(nodes.Call)
    return any(isinstance(call.node, nodes.Name) and call.node.name == "may" for call in calls)


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name not in FREE_FORMS | FORM_PARTS])
def test_each_form_is_behind_the_question_whether_the_person_may_use_it(template: str) -> None:
    environment = get_environment()
    assert environment.loader is not None
    tree = environment.parse(environment.loader.get_source(environment, template)[0])

    assert list(find_free_forms(tree)) == []
    assert set(list_operations(template)) <= ENDPOINT_BY_NAME.keys()


def test_a_person_sees_the_forms_that_the_token_may_use_and_no_others() -> None:
    rules = 'namespace "default" { capabilities = ["read-job", "list-jobs", "scale-job"] }\nnode { policy = "read" }'

    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server, token = await a_server_with_access(cluster)
            operator, reader, anonymous = a_browser(server), a_browser(server), a_browser(server)
            headers = {"x-cluster-token": token}
            job = b'{"Job": {"ID": "web", "TaskGroups": [{"Name": "a", "Tasks": [{"Name": "b", "Driver": "mock"}]}]}}'
            await operator.send("PUT", "/v1/jobs", headers=headers, body=job)
            policy = msgspec.json.encode({"Name": "reader", "Rules": rules})
            await operator.send("PUT", "/v1/acl/policy/reader", headers=headers, body=policy)
            body = b'{"Name": "r", "Type": "client", "Policies": ["reader"]}'
            made = await operator.send("PUT", "/v1/acl/token", headers=headers, body=body)
            await sign_in(operator, token)
            await sign_in(reader, msgspec.json.decode(made.text)["SecretID"])

            shown = {
                path: [(await browser.get(path)).text for browser in (operator, reader)]
                for path in ("/ui/jobs/web", "/ui/jobs/web/actions", "/ui/namespaces", "/ui/run")
            }

            assert [texts[0].count("<form") > texts[1].count("<form") for texts in shown.values()] == [True] * 4
            assert ["/jobs/web/scale" in text for text in shown["/ui/jobs/web/actions"]] == [True, True]
            assert ["/jobs/web/stop" in text for text in shown["/ui/jobs/web/actions"]] == [True, False]
            assert "may not plan a job" in shown["/ui/run"][1]
            assert (await anonymous.get("/ui/run")).get_header("location") == "/ui/sign-in?next=%2Fui%2Frun"

    visit()
