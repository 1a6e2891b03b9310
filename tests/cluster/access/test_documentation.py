"""The page docs/access.md agrees with the program."""

import re
from pathlib import Path

import msgspec
import pytest

from tests.cluster.access.policies import allowed_in, rights
from wharf.cluster.access import InvalidPolicy, MappedClaims, parse_policy_strict
from wharf.cluster.access.binding_rules import matches_selector
from wharf.cluster.access.policies.levels import NAMESPACE_COVERS
from wharf.cluster.access.policies.parser import MAX_POLICY_CHARACTERS, MAX_POLICY_LABELS
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyScope,
    VariableCapability,
)
from wharf.languages.hcl.source import MAX_DOCUMENT_DEPTH

PAGE = (Path(__file__).parents[3] / "docs" / "access.md").read_text()
POLICY = PAGE.partition("```hcl")[2].partition("```")[0]
AS_JSON = PAGE.partition("```json")[2].partition("```")[0]
CLAIMS = msgspec.json.decode(
    PAGE.partition("## Login")[2].partition("```json")[2].partition("```")[0], type=MappedClaims
)


def find_rows(pattern: str, *, below: str = "") -> list[tuple[str, ...]]:
    section = PAGE.partition(below)[2] if below else PAGE
    return re.findall(rf"^\| {pattern} \|$", section, re.MULTILINE)


JOBS = find_rows(r"`([^`]+)` \| `([^`]+)` \| (yes|no)")
VARIABLES = find_rows(r"`([^`]+)` \| `([^`]+)` \| `([^`]+)` \| (yes|no)")
ERRORS = find_rows(r"`(.+?)` \| `(.+)`", below="## What is refused")
SELECTORS = find_rows(r"`(.+)` \| (yes|no)", below="## Login")
COVERS = find_rows(r"`([^`]+)` \| (.+)", below="| Capability | Covers |")
LEVELS = find_rows(r"`(read|write|scale)` \| (.+)", below="Levels of a namespace:")


def test_the_page_has_examples() -> None:
    assert (len(JOBS), len(VARIABLES), len(ERRORS), len(SELECTORS), len(LEVELS)) == (7, 6, 7, 5, 3)


def test_the_policy_of_the_page_is_the_same_in_both_forms() -> None:
    assert parse_policy_strict(POLICY) == parse_policy_strict(AS_JSON)


@pytest.mark.parametrize(("namespace", "capability", "allowed"), JOBS)
def test_the_policy_of_the_page_grants_the_namespace_rights_of_the_page(
    namespace: str, capability: str, allowed: str
) -> None:
    assert (allowed == "yes") is rights(POLICY).allows_namespace(namespace, Capability(capability))


@pytest.mark.parametrize(("namespace", "path", "capability", "allowed"), VARIABLES)
def test_the_policy_of_the_page_grants_the_variable_rights_of_the_page(
    namespace: str, path: str, capability: str, allowed: str
) -> None:
    assert (allowed == "yes") is rights(POLICY).allows_variable(namespace, path, VariableCapability(capability))


@pytest.mark.parametrize(("text", "error"), ERRORS)
def test_an_error_has_the_text_of_the_page(text: str, error: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy_strict(text)

    assert error == caught.value.text


@pytest.mark.parametrize(("selector", "selected"), SELECTORS)
def test_a_selector_of_the_page_selects_the_value_of_the_page(selector: str, selected: str) -> None:
    assert (selected == "yes") is matches_selector(BindingRule(id="r", selector=selector), CLAIMS)


def find_code_words(text: str) -> set[str]:
    without_fences = re.sub(r"(?s)```.*?```", "", text)
    return set(re.findall(r"`([^`\n]+)`", without_fences))


def test_the_page_lists_the_capabilities_of_each_namespace_level() -> None:
    levels = {level: find_code_words(capabilities) for level, capabilities in LEVELS}
    covered = {name: find_code_words(found) for name, found in COVERS if name in ("submit-job", "host-volume-create")}

    for level in ("read", "scale"):
        assert levels[level] == allowed_in(rights(f'namespace "x" {{ policy = "{level}" }}'), "x")
    assert "read" in levels["write"]
    write = levels["write"] - {"read"} | levels["read"] | covered["submit-job"] | covered["host-volume-create"]
    assert write == allowed_in(rights('namespace "x" { policy = "write" }'), "x")


def test_the_page_lists_which_capabilities_include_others() -> None:
    covers = {name: {name, *find_code_words(found)} for name, found in COVERS if name in NAMESPACE_COVERS}
    found = {
        name: allowed_in(rights(f'namespace "x" {{ capabilities = ["{name}"] }}'), "x") for name in NAMESPACE_COVERS
    }

    assert covers == found


def test_the_page_names_every_scope_and_every_capability() -> None:
    names = {
        *PolicyScope,
        *Capability,
        *VariableCapability,
        *NodePoolCapability,
        *HostVolumeMountCapability,
        *OperatorCapability,
    }

    assert {name.value for name in names} - find_code_words(PAGE) == set()


def test_the_page_lists_the_limits() -> None:
    page_text = " ".join(PAGE.split())

    assert (
        f"A policy has at most {MAX_POLICY_CHARACTERS:,} characters, nested at most {MAX_DOCUMENT_DEPTH} deep, and {MAX_POLICY_LABELS:,} labels and "
        "paths together."
    ) in page_text
