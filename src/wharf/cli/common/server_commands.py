"""Commands that call a server: connection settings, the `Session` they receive, output options and error texts.

The function of such a command takes a `Session` first. It calls the server through `session.client` and prints through
`session.print_result`, which handles `--json` and `--format`. Options may be written with one dash (`-json`,
`-address=…`), as Nomad's CLI has them.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from wharf.cli.common.errors import CliError, format_error
from wharf.cli.common.local_output import is_json_format, require_template
from wharf.cli.common.program import is_called_as_nomad, name_variables
from wharf.cli.common.waiting_notices import STALE_TEXT
from wharf.cli.lazy_group import add_second_dash

if TYPE_CHECKING:
    from wharf.contract.client import ClientSettings, SyncClient
    from wharf.contract.client.errors import RequestRefused
    from wharf.world import World

SHORT_ID_LENGTH: Final = 8
STORE_OUTAGE_LIMIT_S: Final = 5.0
"""A command ends after servers could not reach their store for this long. A store that elects a new leader needs less."""
OUTAGE_LIMIT_S: Final = 120.0
"""A command that follows something ends after servers have not replied for this long; a restart of servers takes less."""


class CommandEnvironment(Protocol):
    """What commands use from outside: time, randomness, pauses and the client. Tests pass their own; see `main`."""

    world: "World"

    def pause(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...

    def connect(self, settings: "ClientSettings") -> "SyncClient": ...

    def open_browser(self, url: str) -> bool:
        """Show a page in the user's browser. Return whether a browser could be started."""
        ...


class RealCommandEnvironment:
    """The clock of this machine, and clients that connect to real servers."""

    def __init__(self) -> None:
        from wharf.world import RealWorld

        self.world: World = RealWorld()

    def pause(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        threading.Event().wait(seconds)

    def connect(self, settings: "ClientSettings") -> "SyncClient":
        """Return a client for these settings. Raises CliError if they are invalid."""
        from wharf.contract.client import ClientSettingsError, RetryPolicy, connect

        try:
            # A user waits for the command: report a server that does not reply within one or two seconds.
            return connect(
                settings,
                world=self.world,
                retry_policy=RetryPolicy(
                    max_attempts=3,
                    max_pause_s=1.0,
                    retries_first_open=False,
                    max_outage_s=OUTAGE_LIMIT_S,
                    max_store_outage_s=STORE_OUTAGE_LIMIT_S,
                ),
            )
        except ClientSettingsError as error:
            raise CliError(name_variables(str(error))) from error

    def open_browser(self, url: str) -> bool:
        """Show a page in the user's browser. Return whether a browser could be started."""
        import webbrowser

        return webbrowser.open(url)


class Session:
    """One command's session with the servers: client, settings and output format."""

    def __init__(
        self,
        environment: CommandEnvironment,
        settings: "ClientSettings",
        *,
        is_json: bool,
        template: str,
        is_verbose: bool,
        connection_words: Sequence[str] = (),
        is_nomad: bool = False,
    ) -> None:
        """`connection_words` are the connection options of the call, without secrets, as a printed command repeats them.

        `is_nomad`: whether the program was called as `nomad`.
        """
        self.is_nomad = is_nomad
        self.connection_words = connection_words
        self.world = environment.world
        self.settings = settings
        self.is_json = is_json
        self.template = template
        self.is_verbose = is_verbose
        self._environment = environment
        self._client: SyncClient | None = None

    @property
    def client(self) -> "SyncClient":
        """The client; connected on first use, so that a command may fail earlier without a server."""
        if self._client is None:
            from wharf.cli.common.waiting_notices import WaitingNotices

            self._client = self._environment.connect(self.settings)
            self._client.set_observer(WaitingNotices(self.world, ", ".join(self.settings.addresses)))
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def namespace(self) -> str:
        """The namespace of the command; `*` stands for all."""
        return self.settings.namespace or "default"

    @property
    def is_all_namespaces(self) -> bool:
        return self.namespace == "*"

    @property
    def is_machine_readable(self) -> bool:
        """Whether the output is for programs (`--json` or `--format`)."""
        return self.is_json or bool(self.template)

    @property
    def is_terminal(self) -> bool:
        import sys

        return sys.stdout.isatty()

    def open_browser(self, url: str) -> bool:
        """Show a page in the user's browser. Return whether a browser could be started."""
        return self._environment.open_browser(url)

    def now_ns(self) -> int:
        return self.world.now_ns()

    def pause(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        self._environment.pause(seconds)

    def format_time(self, time: Any) -> str:  # Nanoseconds or a datetime.
        """Return a time relative to now, or the UTC time with `--verbose`."""
        from wharf.cli.common.times import format_relative_time, format_utc_time

        return format_utc_time(time) if self.is_verbose else format_relative_time(time, self.now_ns())

    def shorten_id(self, id: str) -> str:
        """Return the first characters of an id, or the whole id with `--verbose`."""
        return id if self.is_verbose else id[:SHORT_ID_LENGTH]

    def print_result(self, value: Any, render_text: Callable[[], str]) -> None:  # Records, lists and maps of them.
        """Print `value` as JSON or by the template if requested, else the text that `render_text` returns.

        If `value` is an empty list, raise CliError if the namespace of the command does not exist.
        """
        if isinstance(value, list | tuple) and not value:
            self.require_namespace()
        if not self.is_machine_readable:
            self.print_text(render_text())
            return
        from wharf.cli.common.output import render_json, render_template, to_plain

        document = to_plain(value)
        if self.template:
            text = render_template(self.template, document)
            click.echo(text, nl=not text.endswith("\n"))
            return
        click.echo(render_json(document))

    def print_change(self, text: str, **fields: Any) -> None:  # Any values of JSON.
        """Print what a command changed: `text`, or for programs the fields, named as in the API, and the index of the write."""
        index = {"Index": self.client.write_index} if self.client.write_index else {}
        self.print_result({**fields, **index}, lambda: text)

    def require_namespace(self) -> None:
        """Raise CliError if the namespace of the command does not exist. Commands call this when they found nothing."""
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import NotFound
        from wharf.contract.model.refusal import Refusal

        if self.namespace in ("default", "*"):
            return
        try:
            self.client.namespaces.read(self.namespace)
        except NotFound:
            raise CliError(f"namespace {self.namespace} does not exist; `wharf namespace list` lists all") from None
        except (Refusal, Unreachable):
            return  # Such as a token that may not read the namespace: then nothing is known about it.

    def print_text(self, text: str) -> None:
        """Print lines for people, broken between words on a terminal. Output for programs does not have them."""
        if text and not self.is_machine_readable:
            from wharf.cli.common.rendering import wrap_for_terminal

            click.echo(wrap_for_terminal(text))


CONNECTION_OPTIONS: Final = (
    click.Option(
        ["--address"], help="URL of a server; separate several by commas.  [WHARF_ADDR; http://127.0.0.1:4646]"
    ),
    click.Option(["--namespace"], help="Namespace; * for all, if the command supports it.  [WHARF_NAMESPACE; default]"),
    click.Option(["--region"], help="Region whose servers handle the request.  [WHARF_REGION]"),
    click.Option(["--token"], help="ACL token.  [WHARF_TOKEN]"),
    click.Option(["--stale"], is_flag=True, help="Allow a reply from any server, even without a leader."),
    click.Option(["--ca-cert"], hidden=True),
    click.Option(["--ca-path"], hidden=True),
    click.Option(["--client-cert"], hidden=True),
    click.Option(["--client-key"], hidden=True),
    click.Option(["--tls-server-name"], hidden=True),
    click.Option(["--tls-skip-verify"], is_flag=True, hidden=True),
    click.Option(["--no-color"], is_flag=True, help="Print without colors.  [NO_COLOR]"),
    click.Option(["--force-color"], is_flag=True, hidden=True),
)
OUTPUT_OPTIONS: Final = (
    click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
    click.Option(
        ["-t", "--format", "template"],
        default="",
        help="Print `json`, or by a template, such as `{{range .}}{{.ID}} {{end}}`.",
    ),
    click.Option(["--verbose"], is_flag=True, help="Print full ids and exact times."),
)
_UNREPEATED_OPTIONS: Final = frozenset({"token", "stale", "no_color", "force_color"})
"""Options that a printed command does not repeat: a secret, and what only concerns this reply."""
_SETTING_BY_OPTION: Final = {
    "namespace": "namespace", "region": "region", "token": "token", "ca_cert": "ca_file", "ca_path": "ca_path",
    "client_cert": "cert_file", "client_key": "key_file", "tls_server_name": "server_name",
}  # fmt: skip


class ServerCommand(click.Command):
    """A click command that calls a server.

    It adds the output and connection options, and turns server errors into CliError.
    """

    failure_exit_code = 1
    """The exit code of every failure that has no code of its own."""
    has_output_options = True
    connection_options: Sequence[click.Option] = CONNECTION_OPTIONS

    def __init__(self, name: str | None, **attributes: Any) -> None:  # click's own arguments.
        super().__init__(name, **attributes)
        self.own_options = [param for param in self.params if isinstance(param, click.Option)]
        self.params += [*(OUTPUT_OPTIONS if self.has_output_options else ()), *self.connection_options]

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Parse the arguments. Long options with one dash are accepted."""
        words = list(arguments)  # click removes what it has read.
        with _set_exit_code(self.failure_exit_code, words):
            return super().parse_args(context, add_second_dash(arguments, self.params))

    def invoke(self, context: click.Context) -> Any:  # The result of the command's function.
        """Call the command's function with a session that the connection and output options configure."""
        with _set_exit_code(self.failure_exit_code):
            connection = {name: context.params.pop(name) for name in _list_names(self.connection_options)}
            output = {name: context.params.pop(name, None) for name in _list_names(OUTPUT_OPTIONS)}
            is_json = output["as_json"] or is_json_format(output["template"] or "")
            template = "" if is_json_format(output["template"] or "") else output["template"] or ""
            if is_json and template:
                raise click.UsageError("--json and --format exclude each other: use one of them", context)
            require_template(template, context)
            _choose_colours(context, connection)
            environment: CommandEnvironment = context.find_root().obj or RealCommandEnvironment()
            session = Session(
                environment,
                self.build_settings(context, connection),
                is_json=bool(is_json),
                template=template,
                is_verbose=bool(output["verbose"]),
                connection_words=_list_words(connection),
                is_nomad=is_called_as_nomad(context),
            )
            try:
                with _report_server_errors(session):
                    return context.invoke(self.callback, session, **context.params)  # type: ignore[arg-type]
            finally:
                session.close()

    def build_settings(self, context: click.Context, connection: Mapping[str, Any]) -> "ClientSettings":
        """Return the client settings of the servers that the command calls, from the connection options."""
        return build_settings(connection, prefixes=get_variable_prefixes(context))

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in three sections: of the command, of the output and of the connection."""
        sections: dict[str, list[click.Parameter]] = {
            "Options": [*self.own_options, *self.get_params(context)[-1:]],
            "Output": list(OUTPUT_OPTIONS if self.has_output_options else ()),
            "Connection": list(self.connection_options),
        }
        for title, options in sections.items():
            rows = [row for option in options if (row := option.get_help_record(context)) is not None]
            if options == list(CONNECTION_OPTIONS):
                rows = [(option, name_variables(text)) for option, text in rows]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class QuietServerCommand(ServerCommand):
    """A server command without output options, because it prints no records."""

    has_output_options = False


def get_variable_prefixes(context: click.Context) -> Sequence[str]:
    """Return the prefixes of environment variables, the first one wins: Nomad's if the program was called as `nomad`."""
    from wharf.contract.client.settings import ENVIRONMENT_PREFIXES

    return ENVIRONMENT_PREFIXES[::-1] if is_called_as_nomad(context) else ENVIRONMENT_PREFIXES


def build_settings(options: Mapping[str, Any], *, prefixes: Sequence[str]) -> "ClientSettings":
    """Return the client settings of the environment variables with these prefixes, with the connection options applied."""
    import msgspec

    from wharf.contract.client import read_settings
    from wharf.contract.client.settings import parse_addresses

    settings = read_settings(os.environ, prefixes=prefixes)
    changes: dict[str, Any] = {
        field: options[option] for option, field in _SETTING_BY_OPTION.items() if options[option]
    }
    if options["address"]:
        changes["addresses"] = parse_addresses(options["address"])
    changes["stale"] = options["stale"]
    changes["skip_verify"] = settings.skip_verify or options["tls_skip_verify"]
    return msgspec.structs.replace(settings, **changes)


def _list_words(options: Mapping[str, Any]) -> list[str]:
    """Return the connection options as words of a command, without the token and the colours of this call."""
    words: list[str] = []
    for option in CONNECTION_OPTIONS:
        name, value = str(option.name), options[str(option.name)]
        if value and name not in _UNREPEATED_OPTIONS:
            words += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return words


def _list_names(options: Sequence[click.Option]) -> list[str]:
    return [str(option.name) for option in options]


def _choose_colours(context: click.Context, options: Mapping[str, Any]) -> None:
    """Turn colours off or on as the options say, or else the environment.

    By default click omits them without a terminal.
    """
    is_off = any(os.environ.get(name) for name in ("NO_COLOR", "WHARF_CLI_NO_COLOR", "NOMAD_CLI_NO_COLOR"))
    is_forced = any(os.environ.get(name) for name in ("WHARF_CLI_FORCE_COLOR", "NOMAD_CLI_FORCE_COLOR"))
    if options["no_color"] or is_off:
        context.color = False
    elif options["force_color"] or is_forced:
        context.color = True


@contextlib.contextmanager
def _set_exit_code(exit_code: int, arguments: Sequence[str] = ()) -> Iterator[None]:
    """Give every failure in the block this exit code, unless it has a code other than 1 already.

    `arguments` are those that the block parses.
    """
    try:
        yield
    except click.ClickException as error:
        if isinstance(error, CliError) and error.code != 1:
            raise
        raise CliError(format_error(error, arguments), exit_code=exit_code) from error


@contextlib.contextmanager
def _report_server_errors(session: Session) -> Iterator[None]:
    """Turn refusals by a server and connection failures in the block into a CliError with a hint."""
    from wharf.cli.common.unreachable import suggest_fix
    from wharf.contract.client import Unreachable
    from wharf.contract.client.errors import RequestRefused, UnexpectedReply
    from wharf.contract.client.transport import InvalidHeader

    addresses = ", ".join(session.settings.addresses)
    try:
        yield
    except RequestRefused as error:
        raise CliError(_format_refusal(error, session)) from error
    except UnexpectedReply as error:
        from wharf.cli.common.unreachable import suggest_address

        raise CliError(f"{addresses}: {error}; {suggest_address(session.settings)}") from error
    except InvalidHeader as error:
        raise CliError(str(error)) from error
    except Unreachable as error:
        raise CliError(f"{error}; {suggest_fix(error, session.settings, now_ns=session.now_ns())}") from error


def suggest_token(detail: str, *, has_token: bool) -> str:
    """Return what to do about a denial. `detail` is the servers' reason, such as `token "ci" lacks …`."""
    if not has_token:
        return name_variables("set --token or WHARF_TOKEN")
    if " lacks " in detail:
        return "`wharf acl token self` shows the token"
    # The servers do not know the token, so that no command can show it.
    return name_variables("set another one with --token or WHARF_TOKEN")


def _format_refusal(error: "RequestRefused", session: Session) -> str:
    """Return the server's text for a refused request, with what to do about it."""
    settings = session.settings
    from wharf.cli.common.hints import add_hint
    from wharf.cli.common.unreachable import UNCHANGED_TEXT, UNKNOWN_PATH_TEXT, describe_store_outage, suggest_address
    from wharf.contract.client.errors import Forbidden, NoLeader
    from wharf.contract.model.refusal import RefusalReason
    from wharf.job_files.validation_issues import format_validation_issues

    text = format_validation_issues(error.text)
    if isinstance(error, Forbidden) and error.detail:
        return f"{text}: {error.detail}; {suggest_token(error.detail, has_token=bool(settings.token))}"
    if isinstance(error, Forbidden) and error.reason is RefusalReason.UNSPECIFIED:
        if not settings.token:
            return f"{text}: the request had no token; {name_variables('set --token or WHARF_TOKEN')}"
        return f"{text}: the token does not exist or lacks a permission; `wharf acl token self` shows it"
    if error.reason is RefusalReason.STORE_UNREACHABLE:
        return f"{text}; {describe_store_outage(error, settings)}"
    if isinstance(error, NoLeader):
        from wharf.cli.common.server_health import explain_missing_leader

        reason = explain_missing_leader(session.client, settings)
        if error.is_read:
            return f"{text}: {reason}; {STALE_TEXT}"
        return f"{text}: {reason}; {UNCHANGED_TEXT} when `wharf server members` shows a leader"
    if error.text.strip() == UNKNOWN_PATH_TEXT:
        return f"{', '.join(settings.addresses)}: {text}; {suggest_address(settings)}"
    if error.reason is RefusalReason.ACL_DISABLED:
        return f"{text}: every request is allowed; the documentation page Access control describes how to turn access control on"
    return add_hint(text)
