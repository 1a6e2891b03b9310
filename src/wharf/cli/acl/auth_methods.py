"""`wharf acl auth-method` and `wharf acl binding-rule`: how users log in, and what their tokens may do."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.acl.binding_rules import BindingRule
    from wharf.contract.wire.acl import AuthMethodView

MODULE: Final = "wharf.cli.acl.auth_methods"
AUTH_METHOD_COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create_method", "Create an auth method from a file."),
    "list": CommandEntry(MODULE, "list_methods", "List auth methods."),
    "info": CommandEntry(MODULE, "method_info", "Show an auth method."),
    "update": CommandEntry(MODULE, "update_method", "Change an auth method from a file."),
    "delete": CommandEntry(MODULE, "delete_method", "Delete an auth method and its binding rules."),
}
BINDING_RULE_COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create_rule", "Create a binding rule."),
    "list": CommandEntry(MODULE, "list_rules", "List binding rules."),
    "info": CommandEntry(MODULE, "rule_info", "Show a binding rule."),
    "update": CommandEntry(MODULE, "update_rule", "Change a binding rule."),
    "delete": CommandEntry(MODULE, "delete_rule", "Delete a binding rule."),
}


@click.group("auth-method", cls=LazyGroup, entries=AUTH_METHOD_COMMANDS)
def auth_method() -> None:
    """Manage the auth methods by which users and programs log in."""


@click.group("binding-rule", cls=LazyGroup, entries=BINDING_RULE_COMMANDS)
def binding_rule() -> None:
    """Manage the rules that give roles or policies to the tokens of logins."""


@click.command("create", cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def create_method(session: Session, file: str) -> None:
    """Create an auth method from a file.

    FILE is JSON or YAML with Name, Type (OIDC or JWT), TokenLocality, MaxTokenTTL, Default and Config; see
    the documentation page Access control.

    wharf acl auth-method create company.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.wire.acl import AuthMethodRequest

    method = session.client.acl.auth_methods.create(read_record(file, AuthMethodRequest))
    session.print_result(method, lambda: _render_method(session, method))


@click.command("list", cls=ServerCommand)
def list_methods(session: Session) -> None:
    """List auth methods.

    wharf acl auth-method list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.auth_methods.list().value
    rows = [(method.name, method.type, "yes" if method.default else "no") for method in records]
    session.print_result(
        records, lambda: render_table(("Name", "Type", "Default"), rows) if rows else "No auth methods."
    )


@click.command("info", cls=ServerCommand)
@click.argument("name")
def method_info(session: Session, name: str) -> None:
    """Show an auth method.

    wharf acl auth-method info company
    """
    method = session.client.acl.auth_methods.read(name).value
    session.print_result(method, lambda: _render_method(session, method))


@click.command("update", cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def update_method(session: Session, file: str) -> None:
    """Change an auth method from a file.

    wharf acl auth-method update company.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.wire.acl import AuthMethodRequest

    request = read_record(file, AuthMethodRequest)
    method = session.client.acl.auth_methods.update(request.name, request)
    session.print_result(method, lambda: _render_method(session, method))


@click.command("delete", cls=ServerCommand)
@click.argument("name")
def delete_method(session: Session, name: str) -> None:
    """Delete an auth method and its binding rules.

    wharf acl auth-method delete company
    """
    session.client.acl.auth_methods.delete(name)
    session.print_change(f"deleted auth method {name}", Name=name)


def _render_method(session: Session, method: "AuthMethodView") -> str:
    """Return an auth method as a list."""
    from wharf.cli.common.rendering import render_pairs

    config = method.config
    return render_pairs(
        [
            ("Name", method.name),
            ("Type", method.type),
            ("Default", "yes" if method.default else "no"),
            ("Locality", method.token_locality),
            ("Token lifetime", method.max_token_ttl),
            ("Provider", config.oidc_discovery_url or config.jwks_url if config else ""),
            ("Client", config.oidc_client_id if config else ""),
            ("Audiences", ", ".join(config.bound_audiences or ()) if config else ""),
            ("Modified", session.format_time(method.modify_time)),
        ]
    )


@click.command("create", cls=ServerCommand)
@click.option("--auth-method", "method", required=True, help="The auth method whose logins the rule applies to.")
@click.option(
    "--bind-type", type=click.Choice(["role", "policy", "management"]), required=True, help="What the token gets."
)
@click.option(
    "--bind-name", default="", help="Name of the role or policy; ${value.x} inserts the claim that is mapped to x."
)
@click.option("--selector", default="", help='Which logins, such as `"admins" in list.groups`.  [default: all]')
@click.option("--description", default="", help="A description of the rule.")
def create_rule(session: Session, method: str, bind_type: str, bind_name: str, selector: str, description: str) -> None:
    """Create a binding rule.

    \b
    wharf acl binding-rule create --auth-method company --bind-type role --bind-name web-team
    """
    from wharf.contract.wire.acl import BindingRuleRequest

    rule = session.client.acl.binding_rules.create(
        BindingRuleRequest(
            auth_method=method, bind_type=bind_type, bind_name=bind_name, selector=selector, description=description
        )
    )
    session.print_result(rule, lambda: _render_rule(rule))


@click.command("list", cls=ServerCommand)
def list_rules(session: Session) -> None:
    """List binding rules.

    wharf acl binding-rule list
    """
    from wharf.cli.common.rendering import render_table

    records = [
        session.client.acl.binding_rules.read(stub.id).value for stub in session.client.acl.binding_rules.list().value
    ]
    rows = [
        (session.shorten_id(rule.id), rule.auth_method, rule.bind_type, rule.bind_name, rule.selector)
        for rule in records
    ]
    titles = ("ID", "Method", "Bind type", "Bind name", "Selector")
    session.print_result(records, lambda: render_table(titles, rows) if rows else "No binding rules.")


@click.command("info", cls=ServerCommand)
@click.argument("rule_id", metavar="RULE")
def rule_info(session: Session, rule_id: str) -> None:
    """Show a binding rule.

    wharf acl binding-rule info 1a2b3c4d
    """
    rule = session.client.acl.binding_rules.read(_find_rule(session, rule_id)).value
    session.print_result(rule, lambda: _render_rule(rule))


@click.command("update", cls=ServerCommand)
@click.argument("rule_id", metavar="RULE")
@click.option("--bind-type", type=click.Choice(["role", "policy", "management"]), help="What the token gets.")
@click.option("--bind-name", help="Name of the role or policy.")
@click.option("--selector", help="Which logins the rule applies to.")
@click.option("--description", help="A description of the rule.")
def update_rule(
    session: Session,
    rule_id: str,
    bind_type: str | None,
    bind_name: str | None,
    selector: str | None,
    description: str | None,
) -> None:
    """Change a binding rule.

    Settings that are not given stay as they are.

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
    rule = session.client.acl.binding_rules.update(found.id, request)
    session.print_result(rule, lambda: _render_rule(rule))


@click.command("delete", cls=ServerCommand)
@click.argument("rule_id", metavar="RULE")
def delete_rule(session: Session, rule_id: str) -> None:
    """Delete a binding rule.

    wharf acl binding-rule delete 1a2b3c4d
    """
    full_id = _find_rule(session, rule_id)
    session.client.acl.binding_rules.delete(full_id)
    session.print_change(f"deleted binding rule {session.shorten_id(full_id)}", ID=full_id)


def _find_rule(session: Session, query: str) -> str:
    """Return the full id of the binding rule whose id begins with `query`. Raises CliError."""
    from wharf.cli.common.lookup import require_single

    found = [rule for rule in session.client.acl.binding_rules.list().value if rule.id.startswith(query)]
    return require_single(
        "binding rule",
        query,
        found,
        get_id=lambda rule: rule.id,
        describe=lambda rule: rule.auth_method,
        list_command="wharf acl binding-rule list",
    ).id


def _render_rule(rule: "BindingRule") -> str:
    """Return a binding rule as a list."""
    from wharf.cli.common.rendering import render_pairs

    return render_pairs(
        [
            ("ID", rule.id),
            ("Method", rule.auth_method),
            ("Bind type", rule.bind_type),
            ("Bind name", rule.bind_name),
            ("Selector", rule.selector),
            ("Description", rule.description),
        ]
    )
