"""`wharf acl auth-method` and `wharf acl binding-rule`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.acl.binding_rules import BindingRule
    from wharf.contract.wire.acl import AuthMethodView

MODULE: Final = "wharf.cli.acl.auth_methods"
AUTH_METHOD_COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create_method", "Make a way to log in, from a file."),
    "list": CommandEntry(MODULE, "list_methods", "List the ways to log in."),
    "info": CommandEntry(MODULE, "method_info", "Show a way to log in."),
    "update": CommandEntry(MODULE, "update_method", "Change a way to log in, by a file."),
    "delete": CommandEntry(MODULE, "delete_method", "Delete a way to log in, with its rules."),
}
BINDING_RULE_COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create_rule", "Make a rule."),
    "list": CommandEntry(MODULE, "list_rules", "List rules."),
    "info": CommandEntry(MODULE, "rule_info", "Show a rule."),
    "update": CommandEntry(MODULE, "update_rule", "Change a rule."),
    "delete": CommandEntry(MODULE, "delete_rule", "Delete a rule."),
}


@click.group("auth-method", cls=LazyGroup, entries=AUTH_METHOD_COMMANDS)
def auth_method() -> None:
    """Say how people and programs prove who they are."""


@click.group("binding-rule", cls=LazyGroup, entries=BINDING_RULE_COMMANDS)
def binding_rule() -> None:
    """Say what those who log in may do."""


@click.command("create", cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def create_method(session: Session, file: str) -> None:
    """Make a way to log in, from a file.

    FILE is JSON or YAML: Name, Type (OIDC or JWT), TokenLocality, MaxTokenTTL, Default, Config. docs/access.md tells more.

    wharf acl auth-method create company.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.wire.acl import AuthMethodRequest

    one = session.client.acl.auth_methods.create(read_record(file, AuthMethodRequest))
    session.print_result(one, lambda: _method_told(session, one))


@click.command("list", cls=ServerCommand)
def list_methods(session: Session) -> None:
    """List the ways to log in.

    wharf acl auth-method list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.auth_methods.list().value
    rows = [(one.name, one.type, "yes" if one.default else "no") for one in records]
    session.print_result(
        records, lambda: render_table(("Name", "Type", "Default"), rows) if rows else "There is no way to log in."
    )


@click.command("info", cls=ServerCommand)
@click.argument("name")
def method_info(session: Session, name: str) -> None:
    """Show a way to log in.

    wharf acl auth-method info company
    """
    one = session.client.acl.auth_methods.read(name).value
    session.print_result(one, lambda: _method_told(session, one))


@click.command("update", cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def update_method(session: Session, file: str) -> None:
    """Change a way to log in, by a file.

    wharf acl auth-method update company.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.wire.acl import AuthMethodRequest

    request = read_record(file, AuthMethodRequest)
    one = session.client.acl.auth_methods.update(request.name, request)
    session.print_result(one, lambda: _method_told(session, one))


@click.command("delete", cls=QuietServerCommand)
@click.argument("name")
def delete_method(session: Session, name: str) -> None:
    """Delete a way to log in, with its rules.

    wharf acl auth-method delete company
    """
    session.client.acl.auth_methods.delete(name)
    click.echo(f"nobody logs in by {name} any more")


def _method_told(session: Session, one: "AuthMethodView") -> str:
    from wharf.cli.common.rendering import render_pairs

    config = one.config
    return render_pairs(
        [
            ("Name", one.name),
            ("Type", one.type),
            ("Default", "yes" if one.default else "no"),
            ("Locality", one.token_locality),
            ("Tokens last", one.max_token_ttl),
            ("Provider", config.oidc_discovery_url or config.jwks_url if config else ""),
            ("Client", config.oidc_client_id if config else ""),
            ("Audiences", ", ".join(config.bound_audiences or ()) if config else ""),
            ("Modified", session.format_time(one.modify_time)),
        ]
    )


@click.command("create", cls=ServerCommand)
@click.option("--auth-method", "method", required=True, help="For whoever logs in by this.")
@click.option("--bind-type", type=click.Choice(["role", "policy", "management"]), required=True)
@click.option("--bind-name", default="", help="Which role or policy; ${value.x} is what the login says of x.")
@click.option("--selector", default="", help='Whom it is about, as `"admins" in list.groups`; all without it.')
@click.option("--description", default="", help="What it is for.")
def create_rule(session: Session, method: str, bind_type: str, bind_name: str, selector: str, description: str) -> None:
    """Make a rule.

    \b
    wharf acl binding-rule create --auth-method company --bind-type role --bind-name web-team
    """
    from wharf.contract.wire.acl import BindingRuleRequest

    one = session.client.acl.binding_rules.create(
        BindingRuleRequest(
            auth_method=method, bind_type=bind_type, bind_name=bind_name, selector=selector, description=description
        )
    )
    session.print_result(one, lambda: _rule_told(one))


@click.command("list", cls=ServerCommand)
def list_rules(session: Session) -> None:
    """List rules.

    wharf acl binding-rule list
    """
    from wharf.cli.common.rendering import render_table

    records = [
        session.client.acl.binding_rules.read(one.id).value for one in session.client.acl.binding_rules.list().value
    ]
    rows = [
        (session.shorten_id(one.id), one.auth_method, one.bind_type, one.bind_name, one.selector) for one in records
    ]
    titles = ("ID", "Method", "Gives a", "Named", "To those with")
    session.print_result(records, lambda: render_table(titles, rows) if rows else "There are no rules.")


@click.command("info", cls=ServerCommand)
@click.argument("rule_id", metavar="RULE")
def rule_info(session: Session, rule_id: str) -> None:
    """Show a rule.

    wharf acl binding-rule info 1a2b3c4d
    """
    one = session.client.acl.binding_rules.read(_find_rule(session, rule_id)).value
    session.print_result(one, lambda: _rule_told(one))


@click.command("update", cls=ServerCommand)
@click.argument("rule_id", metavar="RULE")
@click.option("--bind-type", type=click.Choice(["role", "policy", "management"]))
@click.option("--bind-name", help="Which role or policy.")
@click.option("--selector", help="Whom it is about.")
@click.option("--description", help="What it is for.")
def update_rule(
    session: Session,
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
    from wharf.contract.wire.acl import BindingRuleRequest

    found = session.client.acl.binding_rules.read(_find_rule(session, rule_id)).value
    request = BindingRuleRequest(
        id=found.id,
        auth_method=found.auth_method,
        bind_type=found.bind_type if bind_type is None else bind_type,
        bind_name=found.bind_name if bind_name is None else bind_name,
        selector=found.selector if selector is None else selector,
        description=found.description if description is None else description,
    )
    one = session.client.acl.binding_rules.update(found.id, request)
    session.print_result(one, lambda: _rule_told(one))


@click.command("delete", cls=QuietServerCommand)
@click.argument("rule_id", metavar="RULE")
def delete_rule(session: Session, rule_id: str) -> None:
    """Delete a rule.

    wharf acl binding-rule delete 1a2b3c4d
    """
    found = _find_rule(session, rule_id)
    session.client.acl.binding_rules.delete(found)
    click.echo(f"rule {session.shorten_id(found)} is deleted")


def _find_rule(session: Session, given: str) -> str:
    from wharf.cli.common.lookup import require_single

    found = [one for one in session.client.acl.binding_rules.list().value if one.id.startswith(given)]
    return require_single(
        "rule",
        given,
        found,
        get_id=lambda one: one.id,
        describe=lambda one: one.auth_method,
        list_command="wharf acl binding-rule list",
    ).id


def _rule_told(one: "BindingRule") -> str:
    from wharf.cli.common.rendering import render_pairs

    return render_pairs(
        [
            ("ID", one.id),
            ("Method", one.auth_method),
            ("Gives a", one.bind_type),
            ("Named", one.bind_name),
            ("To those with", one.selector),
            ("Description", one.description),
        ]
    )
