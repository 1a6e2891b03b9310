"""Commands that ask a server: where it is and as whom, how the outcome is shown, and what a failure says.

Such a command's function takes a `Talk` first. It asks by `talk.client` and shows by `talk.show`, which knows `--json` and
`--format`. Options may be written with one dash, as in programs of this kind: `-json`, `-address=…`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from wharf.cli.common.errors import CliError, format_error

if TYPE_CHECKING:
    from wharf.contract.client import ClientSettings, SyncClient
    from wharf.contract.client.errors import RequestRefused
    from wharf.world import World

SHORT_ID_LENGTH: Final = 8
TOKEN_INDEPENDENT_REFUSALS: Final = ("Reading secret file prohibited", "permission denied: this node")
"""No token would help."""
ACL_DISABLED_TEXT: Final = "ACL support disabled"


class CommandEnvironment(Protocol):
    """What commands are given by whoever runs them; without any, `RealSurroundings`."""

    world: "World"

    def connect(self, settings: "ClientSettings") -> "SyncClient": ...


class RealCommandEnvironment:
    def __init__(self) -> None:
        from wharf.world import RealWorld

        self.world: World = RealWorld()

    def connect(self, settings: "ClientSettings") -> "SyncClient":
        from wharf.contract.client import ClientSettingsError, RetryPolicy, connect

        try:
            # A person waits: what does not answer within a second or two is told at once.
            return connect(settings, world=self.world, retry_policy=RetryPolicy(max_attempts=3, max_pause_s=1.0))
        except ClientSettingsError as error:
            raise CliError(str(error)) from error


class Session:
    """One command's conversation with the servers."""

    def __init__(
        self,
        environment: CommandEnvironment,
        settings: "ClientSettings",
        *,
        is_json: bool,
        template: str,
        is_verbose: bool,
    ) -> None:
        self.world = environment.world
        self.settings = settings
        self.is_json = is_json
        self.template = template
        self.is_verbose = is_verbose
        self._surroundings = environment
        self._opened: SyncClient | None = None

    @property
    def client(self) -> "SyncClient":
        if self._opened is None:
            self._opened = self._surroundings.connect(self.settings)
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def namespace(self) -> str:
        return self.settings.namespace or "default"

    @property
    def is_all_namespaces(self) -> bool:
        return self.namespace == "*"

    @property
    def is_machine_readable(self) -> bool:
        return self.is_json or bool(self.template)

    @property
    def is_terminal(self) -> bool:
        import sys

        return sys.stdout.isatty()

    def now_ns(self) -> int:
        return self.world.now_ns()

    def format_time(self, time: Any) -> str:  # A number of ns, or a date.
        from wharf.cli.common.times import format_relative_time, format_utc_time

        return format_utc_time(time) if self.is_verbose else format_relative_time(time, self.now_ns())

    def shorten_id(self, id: str) -> str:
        return id if self.is_verbose else id[:SHORT_ID_LENGTH]

    def print_result(self, value: Any, render_text: Callable[[], str]) -> None:  # Records, lists and maps of them.
        """For programs as they asked for it, and else what `as_text` makes for people."""
        if not self.is_machine_readable:
            text = render_text()
            if text:
                click.echo(text)
            return
        from wharf.cli.common.output import render_json, render_template, to_plain

        document = to_plain(value)
        if self.template:
            text = render_template(self.template, document)
            click.echo(text, nl=not text.endswith("\n"))
            return
        click.echo(render_json(document))

    def print_text(self, text: str) -> None:
        """A line for people, which programs do not get."""
        if not self.is_machine_readable:
            click.echo(text)


CONNECTION_OPTIONS: Final = (
    click.Option(["--address"], help="Where a server is; several with commas.  [WHARF_ADDR; http://127.0.0.1:4646]"),
    click.Option(["--namespace"], help="Which one; * for all, where it can be.  [WHARF_NAMESPACE; default]"),
    click.Option(["--region"], help="Ask the servers of another region.  [WHARF_REGION]"),
    click.Option(["--token"], help="As whom.  [WHARF_TOKEN]"),
    click.Option(["--stale"], is_flag=True, help="Take what any server knows, also without a leader."),
    click.Option(["--ca-cert"], hidden=True),
    click.Option(["--ca-path"], hidden=True),
    click.Option(["--client-cert"], hidden=True),
    click.Option(["--client-key"], hidden=True),
    click.Option(["--tls-server-name"], hidden=True),
    click.Option(["--tls-skip-verify"], is_flag=True, hidden=True),
    click.Option(["--no-color"], is_flag=True, hidden=True),
    click.Option(["--force-color"], is_flag=True, hidden=True),
)
OUTPUT_OPTIONS: Final = (
    click.Option(["--json", "as_json"], is_flag=True, help="For programs."),
    click.Option(["-t", "--format", "template"], default="", help="A template, as `{{range .}}{{.ID}} {{end}}`."),
    click.Option(["--verbose"], is_flag=True, help="Whole ids and exact times."),
)
_SETTING_OF: Final = {
    "namespace": "namespace", "region": "region", "token": "token", "ca_cert": "ca_file", "ca_path": "ca_path",
    "client_cert": "cert_file", "client_key": "key_file", "tls_server_name": "server_name",
}  # fmt: skip


class ServerCommand(click.Command):
    """`exit_when_failed`: of every failure of this command."""

    failure_exit_code = 1
    has_output_options = True

    def __init__(self, name: str | None, **attributes: Any) -> None:  # As click gives them.
        super().__init__(name, **attributes)
        self.own_options = [param for param in self.params if isinstance(param, click.Option)]
        self.params += [*(OUTPUT_OPTIONS if self.has_output_options else ()), *CONNECTION_OPTIONS]

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        with _failing_with(self.failure_exit_code):
            return super().parse_args(context, _with_two_dashes(arguments, self.params))

    def invoke(self, context: click.Context) -> Any:  # What the function gives.
        with _failing_with(self.failure_exit_code):
            given = {name: context.params.pop(name) for name in _names(CONNECTION_OPTIONS)}
            shown = {name: context.params.pop(name, None) for name in _names(OUTPUT_OPTIONS)}
            _choose_colours(context, given)
            surroundings: CommandEnvironment = context.find_root().obj or RealCommandEnvironment()
            talk = Session(
                surroundings,
                build_settings(given),
                is_json=bool(shown["as_json"]),
                template=shown["template"] or "",
                is_verbose=bool(shown["verbose"]),
            )
            try:
                with _plainly_of(talk):
                    return context.invoke(self.callback, talk, **context.params)  # type: ignore[arg-type]  # It has one.
            finally:
                talk.close()

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[click.Parameter]] = {
            "Options": [*self.own_options, *self.get_params(context)[-1:]],
            "Showing": list(OUTPUT_OPTIONS if self.has_output_options else ()),
            "Asking": list(CONNECTION_OPTIONS),
        }
        for title, options in parts.items():
            rows = [row for option in options if (row := option.get_help_record(context)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class QuietServerCommand(ServerCommand):
    """Without the options of showing: there is nothing to show."""

    has_output_options = False


def build_settings(options: Mapping[str, Any]) -> "ClientSettings":
    """The environment's, with what options say in its place."""
    import msgspec

    from wharf.contract.client import read_settings
    from wharf.contract.client.settings import parse_addresses

    settings = read_settings(os.environ)
    changes: dict[str, Any] = {field: options[option] for option, field in _SETTING_OF.items() if options[option]}
    if options["address"]:
        changes["addresses"] = parse_addresses(options["address"])
    changes["stale"] = options["stale"]
    changes["skip_verify"] = settings.skip_verify or options["tls_skip_verify"]
    return msgspec.structs.replace(settings, **changes)


def _names(options: tuple[click.Option, ...]) -> list[str]:
    return [str(option.name) for option in options]


def _with_two_dashes(arguments: Sequence[str], params: Sequence[click.Parameter]) -> list[str]:
    known = {name[2:] for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")}
    known.add("help")
    words: list[str] = []
    for at, word in enumerate(arguments):
        if word == "--":
            return words + list(arguments[at:])
        is_ours = len(word) > 2 and word[0] == "-" and word[1] != "-" and word[1:].partition("=")[0] in known
        words.append(f"-{word}" if is_ours else word)
    return words


def _choose_colours(context: click.Context, given: Mapping[str, Any]) -> None:
    """click leaves colours out where the output is no terminal; NO_COLOR and the options decide before that."""
    refused = any(os.environ.get(name) for name in ("NO_COLOR", "WHARF_CLI_NO_COLOR", "NOMAD_CLI_NO_COLOR"))
    wanted = any(os.environ.get(name) for name in ("WHARF_CLI_FORCE_COLOR", "NOMAD_CLI_FORCE_COLOR"))
    if given["no_color"] or refused:
        context.color = False
    elif given["force_color"] or wanted:
        context.color = True


class _failing_with:  # noqa: N801  # Reads as the sentence it is.
    """Inside, whatever ends the command ends it with this code, unless it has a code of its own."""

    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, click.ClickException):
            if isinstance(error, CliError) and error.code != 1:
                return
            raise CliError(format_error(error), exit_code=self._exit_code) from error


class _plainly_of:  # noqa: N801  # Reads as the sentence it is.
    """Inside, what a server refuses and what does not answer end the command with a sentence."""

    def __init__(self, session: Session) -> None:
        self._talk = session

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
            return
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import RequestRefused, UnexpectedReply

        if isinstance(error, RequestRefused):
            raise CliError(_why_refused(error, self._talk.settings)) from error
        addresses = ", ".join(self._talk.settings.addresses)
        if isinstance(error, UnexpectedReply):
            raise CliError(f"{addresses}: {error}; is that a Wharf server?") from error
        if isinstance(error, Unreachable):
            raise CliError(f"{error}; {_hint(str(error), addresses, was_sent=error.is_sent)}") from error


def _hint(said: str, addresses: str, *, was_sent: bool) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "--ca-cert or WHARF_CACERT names whose certificates are believed, --tls-server-name a name that it holds"
    if "CERTIFICATE_REQUIRED" in said.upper():
        return "--client-cert and --client-key name what is shown there"
    if "SSL" in said and "https://" in addresses:
        return "does it speak https there?"
    if was_sent:
        speaks = " is it one that speaks https alone?" if "http://" in addresses else ""
        return f"what was to be changed may be changed all the same;{speaks} `wharf status` asks again"
    return "`wharf dev` starts a server here, --address or WHARF_ADDR names another"


def _why_refused(error: "RequestRefused", settings: "ClientSettings") -> str:
    from wharf.cli.common.errors import format_validation_issues
    from wharf.contract.client.errors import Forbidden, NoLeader

    text = format_validation_issues(error.text)
    if isinstance(error, Forbidden) and not text.startswith(TOKEN_INDEPENDENT_REFUSALS):
        if not settings.token:
            return f"{text}: no token was given; name one by --token or WHARF_TOKEN"
        return f"{text}: the token that was given may not do this, or is none here; `wharf acl token self` tells"
    if isinstance(error, NoLeader):
        return f"{text}: no server leads just now; reading works with --stale"
    if text == ACL_DISABLED_TEXT:
        return f"{text}: everybody may do everything here; docs/access.md tells how it is turned on"
    return text
