"""`wharf acl auth-method` and `wharf acl binding-rule`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.binding_rule import BindingRule
    from wharf.wire.access import AuthMethodShown

HERE: Final = "wharf.cli.acl_logins"
METHOD: Final = {
    "create": Entry(HERE, "create_method", "Make a way to log in, from a file."),
    "list": Entry(HERE, "list_methods", "List the ways to log in."),
    "info": Entry(HERE, "method_info", "Show a way to log in."),
    "update": Entry(HERE, "update_method", "Change a way to log in, by a file."),
    "delete": Entry(HERE, "delete_method", "Delete a way to log in, with its rules."),
}
RULE: Final = {
    "create": Entry(HERE, "create_rule", "Make a rule."),
    "list": Entry(HERE, "list_rules", "List rules."),
    "info": Entry(HERE, "rule_info", "Show a rule."),
    "update": Entry(HERE, "update_rule", "Change a rule."),
    "delete": Entry(HERE, "delete_rule", "Delete a rule."),
}


@click.group("auth-method", cls=LazyGroup, entries=METHOD)
def auth_method() -> None:
    """Say how people and programs prove who they are."""


@click.group("binding-rule", cls=LazyGroup, entries=RULE)
def binding_rule() -> None:
    """Say what those who log in may do."""


@click.command("create", cls=Speaking)
@click.argument("file", type=click.Path(allow_dash=True))
def create_method(talk: Talk, file: str) -> None:
    """Make a way to log in, from a file.

    FILE is JSON or YAML: Name, Type (OIDC or JWT), TokenLocality, MaxTokenTTL, Default, Config. docs/access.md tells more.

    wharf acl auth-method create company.yaml
    """
    from wharf.cli.records import record_in
    from wharf.wire.access import AuthMethodRequest

    one = talk.client.acl.auth_methods.create(record_in(file, AuthMethodRequest))
    talk.show(one, lambda: _method_told(talk, one))


@click.command("list", cls=Speaking)
def list_methods(talk: Talk) -> None:
    """List the ways to log in.

    wharf acl auth-method list
    """
    from wharf.cli.tables import table

    records = talk.client.acl.auth_methods.list().value
    rows = [(one.name, one.type, "yes" if one.default else "no") for one in records]
    talk.show(records, lambda: table(("Name", "Type", "Default"), rows) if rows else "There is no way to log in.")


@click.command("info", cls=Speaking)
@click.argument("name")
def method_info(talk: Talk, name: str) -> None:
    """Show a way to log in.

    wharf acl auth-method info company
    """
    one = talk.client.acl.auth_methods.read(name).value
    talk.show(one, lambda: _method_told(talk, one))


@click.command("update", cls=Speaking)
@click.argument("file", type=click.Path(allow_dash=True))
def update_method(talk: Talk, file: str) -> None:
    """Change a way to log in, by a file.

    wharf acl auth-method update company.yaml
    """
    from wharf.cli.records import record_in
    from wharf.wire.access import AuthMethodRequest

    request = record_in(file, AuthMethodRequest)
    one = talk.client.acl.auth_methods.update(request.name, request)
    talk.show(one, lambda: _method_told(talk, one))


@click.command("delete", cls=Quiet)
@click.argument("name")
def delete_method(talk: Talk, name: str) -> None:
    """Delete a way to log in, with its rules.

    wharf acl auth-method delete company
    """
    talk.client.acl.auth_methods.delete(name)
    click.echo(f"nobody logs in by {name} any more")


def _method_told(talk: Talk, one: "AuthMethodShown") -> str:
    from wharf.cli.tables import pairs

    config = one.config
    return pairs(
        [
            ("Name", one.name),
            ("Type", one.type),
            ("Default", "yes" if one.default else "no"),
            ("Locality", one.token_locality),
            ("Tokens last", one.max_token_ttl),
            ("Provider", config.oidc_discovery_url or config.jwks_url if config else ""),
            ("Client", config.oidc_client_id if config else ""),
            ("Audiences", ", ".join(config.bound_audiences or ()) if config else ""),
            ("Modified", talk.when(one.modify_time)),
        ]
    )


@click.command("create", cls=Speaking)
@click.option("--auth-method", "method", required=True, help="For whoever logs in by this.")
@click.option("--bind-type", type=click.Choice(["role", "policy", "management"]), required=True)
@click.option("--bind-name", default="", help="Which role or policy; ${value.x} is what the login says of x.")
@click.option("--selector", default="", help='Whom it is about, as `"admins" in list.groups`; all without it.')
@click.option("--description", default="", help="What it is for.")
def create_rule(talk: Talk, method: str, bind_type: str, bind_name: str, selector: str, description: str) -> None:
    """Make a rule.

    \b
    wharf acl binding-rule create --auth-method company --bind-type role --bind-name web-team
    """
    from wharf.wire.access import BindingRuleRequest

    one = talk.client.acl.binding_rules.create(
        BindingRuleRequest(
            auth_method=method, bind_type=bind_type, bind_name=bind_name, selector=selector, description=description
        )
    )
    talk.show(one, lambda: _rule_told(one))


@click.command("list", cls=Speaking)
def list_rules(talk: Talk) -> None:
    """List rules.

    wharf acl binding-rule list
    """
    from wharf.cli.tables import table

    records = [talk.client.acl.binding_rules.read(one.id).value for one in talk.client.acl.binding_rules.list().value]
    rows = [(talk.short(one.id), one.auth_method, one.bind_type, one.bind_name, one.selector) for one in records]
    titles = ("ID", "Method", "Gives a", "Named", "To those with")
    talk.show(records, lambda: table(titles, rows) if rows else "There are no rules.")


@click.command("info", cls=Speaking)
@click.argument("rule_id", metavar="RULE")
def rule_info(talk: Talk, rule_id: str) -> None:
    """Show a rule.

    wharf acl binding-rule info 1a2b3c4d
    """
    one = talk.client.acl.binding_rules.read(_find_rule(talk, rule_id)).value
    talk.show(one, lambda: _rule_told(one))


@click.command("update", cls=Speaking)
@click.argument("rule_id", metavar="RULE")
@click.option("--bind-type", type=click.Choice(["role", "policy", "management"]))
@click.option("--bind-name", help="Which role or policy.")
@click.option("--selector", help="Whom it is about.")
@click.option("--description", help="What it is for.")
def update_rule(
    talk: Talk,
    rule_id: str,
    bind_type: str | None,
    bind_name: str | None,
    selector: str | None,
    description: str | None,
) -> None:
    """Change a rule.

    What is not named stays.

    wharf acl binding-rule update --bind-name web-team 1a2b3c4d
    """
    from wharf.wire.access import BindingRuleRequest

    found = talk.client.acl.binding_rules.read(_find_rule(talk, rule_id)).value
    request = BindingRuleRequest(
        id=found.id,
        auth_method=found.auth_method,
        bind_type=found.bind_type if bind_type is None else bind_type,
        bind_name=found.bind_name if bind_name is None else bind_name,
        selector=found.selector if selector is None else selector,
        description=found.description if description is None else description,
    )
    one = talk.client.acl.binding_rules.update(found.id, request)
    talk.show(one, lambda: _rule_told(one))


@click.command("delete", cls=Quiet)
@click.argument("rule_id", metavar="RULE")
def delete_rule(talk: Talk, rule_id: str) -> None:
    """Delete a rule.

    wharf acl binding-rule delete 1a2b3c4d
    """
    found = _find_rule(talk, rule_id)
    talk.client.acl.binding_rules.delete(found)
    click.echo(f"rule {talk.short(found)} is deleted")


def _find_rule(talk: Talk, given: str) -> str:
    from wharf.cli.finding import the_one

    found = [one for one in talk.client.acl.binding_rules.list().value if one.id.startswith(given)]
    return the_one(
        "rule",
        given,
        found,
        id_of=lambda one: one.id,
        about=lambda one: one.auth_method,
        list_by="wharf acl binding-rule list",
    ).id


def _rule_told(one: "BindingRule") -> str:
    from wharf.cli.tables import pairs

    return pairs(
        [
            ("ID", one.id),
            ("Method", one.auth_method),
            ("Gives a", one.bind_type),
            ("Named", one.bind_name),
            ("To those with", one.selector),
            ("Description", one.description),
        ]
    )
