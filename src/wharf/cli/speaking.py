"""Commands that ask a server: where it is and as whom, how the outcome is shown, and what a failure says.

Such a command's function takes a `Talk` first. It asks by `talk.client` and shows by `talk.show`, which knows `--json` and
`--format`. Options may be written with one dash, as in programs of this kind: `-json`, `-address=…`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from wharf.cli.failing import Failed, told

if TYPE_CHECKING:
    from wharf.client import ClientSettings, SyncClient
    from wharf.client.errors import Refused
    from wharf.world import World

SHORT: Final = 8
REFUSED_TO_ALL: Final = ("Reading secret file prohibited", "permission denied: this node")
"""No token would help."""
ACCESS_IS_OFF: Final = "ACL support disabled"


class Surroundings(Protocol):
    """What commands are given by whoever runs them; without any, `RealSurroundings`."""

    world: "World"

    def connect(self, settings: "ClientSettings") -> "SyncClient": ...


class RealSurroundings:
    def __init__(self) -> None:
        from wharf.world import RealWorld

        self.world: World = RealWorld()

    def connect(self, settings: "ClientSettings") -> "SyncClient":
        from wharf.client import CannotConnect, Retries, connect

        try:
            # A person waits: what does not answer within a second or two is told at once.
            return connect(settings, world=self.world, retries=Retries(attempts=3, longest_pause_s=1.0))
        except CannotConnect as error:
            raise Failed(str(error)) from error


class Talk:
    """One command's conversation with the servers."""

    def __init__(
        self, surroundings: Surroundings, settings: "ClientSettings", *, as_json: bool, template: str, verbose: bool
    ) -> None:
        self.world = surroundings.world
        self.settings = settings
        self.as_json = as_json
        self.template = template
        self.verbose = verbose
        self._surroundings = surroundings
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
    def in_all_namespaces(self) -> bool:
        return self.namespace == "*"

    @property
    def is_for_programs(self) -> bool:
        return self.as_json or bool(self.template)

    @property
    def is_terminal(self) -> bool:
        import sys

        return sys.stdout.isatty()

    def now_ns(self) -> int:
        return self.world.now_ns()

    def when(self, time: Any) -> str:  # A number of ns, or a date.
        from wharf.cli.moments import say_date, say_when

        return say_date(time) if self.verbose else say_when(time, self.now_ns())

    def short(self, id: str) -> str:
        return id if self.verbose else id[:SHORT]

    def show(self, value: Any, as_text: Callable[[], str]) -> None:  # Records, lists and maps of them.
        """For programs as they asked for it, and else what `as_text` makes for people."""
        if not self.is_for_programs:
            text = as_text()
            if text:
                click.echo(text)
            return
        from wharf.cli.records_shown import in_json, in_template, plain

        document = plain(value)
        if self.template:
            text = in_template(self.template, document)
            click.echo(text, nl=not text.endswith("\n"))
            return
        click.echo(in_json(document))

    def say(self, text: str) -> None:
        """A line for people, which programs do not get."""
        if not self.is_for_programs:
            click.echo(text)


CONNECTION: Final = (
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
SHOWING: Final = (
    click.Option(["--json", "as_json"], is_flag=True, help="For programs."),
    click.Option(["-t", "--format", "template"], default="", help="A template, as `{{range .}}{{.ID}} {{end}}`."),
    click.Option(["--verbose"], is_flag=True, help="Whole ids and exact times."),
)
_SETTING_OF: Final = {
    "namespace": "namespace", "region": "region", "token": "token", "ca_cert": "ca_file", "ca_path": "ca_path",
    "client_cert": "cert_file", "client_key": "key_file", "tls_server_name": "server_name",
}  # fmt: skip


class Speaking(click.Command):
    """`exit_when_failed`: of every failure of this command."""

    exit_when_failed = 1
    shows = True

    def __init__(self, name: str | None, **attributes: Any) -> None:  # As click gives them.
        super().__init__(name, **attributes)
        self.own = [param for param in self.params if isinstance(param, click.Option)]
        self.params += [*(SHOWING if self.shows else ()), *CONNECTION]

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        with _failing_with(self.exit_when_failed):
            return super().parse_args(context, _with_two_dashes(arguments, self.params))

    def invoke(self, context: click.Context) -> Any:  # What the function gives.
        with _failing_with(self.exit_when_failed):
            given = {name: context.params.pop(name) for name in _names(CONNECTION)}
            shown = {name: context.params.pop(name, None) for name in _names(SHOWING)}
            _choose_colours(context, given)
            surroundings: Surroundings = context.find_root().obj or RealSurroundings()
            talk = Talk(
                surroundings,
                settings_of(given),
                as_json=bool(shown["as_json"]),
                template=shown["template"] or "",
                verbose=bool(shown["verbose"]),
            )
            try:
                with _plainly_of(talk):
                    return context.invoke(self.callback, talk, **context.params)  # type: ignore[arg-type]  # It has one.
            finally:
                talk.close()

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[click.Parameter]] = {
            "Options": [*self.own, *self.get_params(context)[-1:]],
            "Showing": list(SHOWING if self.shows else ()),
            "Asking": list(CONNECTION),
        }
        for title, options in parts.items():
            rows = [row for option in options if (row := option.get_help_record(context)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Quiet(Speaking):
    """Without the options of showing: there is nothing to show."""

    shows = False


def settings_of(given: Mapping[str, Any]) -> "ClientSettings":
    """The environment's, with what options say in its place."""
    import msgspec

    from wharf.client import read_settings
    from wharf.client.settings import addresses_in

    settings = read_settings(os.environ)
    changes: dict[str, Any] = {field: given[option] for option, field in _SETTING_OF.items() if given[option]}
    if given["address"]:
        changes["addresses"] = addresses_in(given["address"])
    changes["stale"] = given["stale"]
    changes["skip_verify"] = settings.skip_verify or given["tls_skip_verify"]
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
            if isinstance(error, Failed) and error.code != 1:
                return
            raise Failed(told(error), exit_code=self._exit_code) from error


class _plainly_of:  # noqa: N801  # Reads as the sentence it is.
    """Inside, what a server refuses and what does not answer end the command with a sentence."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
            return
        from wharf.client import Unreachable
        from wharf.client.errors import NotUnderstood, Refused

        if isinstance(error, Refused):
            raise Failed(_why_refused(error, self._talk.settings)) from error
        addresses = ", ".join(self._talk.settings.addresses)
        if isinstance(error, NotUnderstood):
            raise Failed(f"{addresses}: {error}; is that a Wharf server?") from error
        if isinstance(error, Unreachable):
            raise Failed(f"{error}; {_hint(str(error), addresses, was_sent=error.sent)}") from error


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


def _why_refused(error: "Refused", settings: "ClientSettings") -> str:
    from wharf.cli.complaints import in_one_list
    from wharf.client.errors import Forbidden, NoLeader

    text = in_one_list(error.text)
    if isinstance(error, Forbidden) and not text.startswith(REFUSED_TO_ALL):
        if not settings.token:
            return f"{text}: no token was given; name one by --token or WHARF_TOKEN"
        return f"{text}: the token that was given may not do this, or is none here; `wharf acl token self` tells"
    if isinstance(error, NoLeader):
        return f"{text}: no server leads just now; reading works with --stale"
    if text == ACCESS_IS_OFF:
        return f"{text}: everybody may do everything here; docs/access.md tells how it is turned on"
    return text
