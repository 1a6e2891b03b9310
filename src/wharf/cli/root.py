"""The root of all commands, and how a command that fails says so: one line, an exit code, no traceback."""

import errno
import sys
from collections.abc import Sequence
from typing import Final

import click

from wharf import __version__
from wharf.cli.lazy import NOT_YET, Entry, LazyGroup

COMMANDS: Final = {
    "dev": Entry("wharf.cli.dev", "dev", "Run a whole cluster here, for trying and developing."),
    "agent": Entry("wharf.cli.agent", "agent", "Run a server, a node or both, from configuration."),
    "job": Entry("wharf.cli.job", "job", "Submit jobs, watch them and change them."),
    "node": Entry("wharf.cli.node", "node", "Show machines, and empty them."),
    "alloc": Entry("wharf.cli.alloc", "alloc", "Show allocations, stop and restart them, and look into their tasks."),
    "deployment": Entry(
        "wharf.cli.deployment", "deployment", "Watch rollouts, promote canaries, pause and end rollouts."
    ),
    "eval": Entry(
        "wharf.cli.evaluation", "evaluation", "Show evaluations: what the scheduler looked at, and what it decided."
    ),
    "namespace": Entry("wharf.cli.namespace", "namespace", "Make namespaces, and show them."),
    "quota": Entry("wharf.cli.quota", "quota", "Bound what namespaces use."),
    "service": Entry("wharf.cli.service", "service", "Show what jobs offer by a name, and where it is."),
    "scaling": Entry("wharf.cli.scaling", "scaling", "Show within which bounds counts may be scaled."),
    "var": Entry("wharf.cli.variable", "var", "Keep values encrypted, and lock them."),
    "volume": Entry("wharf.cli.volume", "volume", "Folders of hosts that jobs may ask for."),
    "acl": Entry("wharf.cli.acl", "acl", "Say who may do what."),
    "login": Entry("wharf.cli.login", "login", "Log in, and print a token."),
    "status": Entry("wharf.cli.cluster", "status", "Show what an id leads to, or how the cluster stands."),
    "search": Entry("wharf.cli.cluster", "search", "Find everything whose name has a text in it."),
    "monitor": Entry("wharf.cli.cluster", "monitor", "Follow the log of an agent."),
    "server": Entry("wharf.cli.cluster", "server", "Show servers."),
    "system": Entry("wharf.cli.cluster", "system", "Tidy up."),
    "config": Entry("wharf.cli.config", "config", "Check and show configuration."),
    "operator": Entry("wharf.cli.operator", "operator", "Requests, scheduling, servers, keys, snapshots, faults."),
    "tls": Entry("wharf.cli.tls", "tls", "Make certificates."),
    "gateway": Entry("wharf.cli.gateway", "gateway", "Put limits in front of an HTTP service."),
    "limits": Entry("wharf.cli.limits", "limits", "Write rules, and operate the limiter of a service."),
    "completion": Entry("wharf.cli.completion", "completion", "Print a script that completes commands in your shell."),
    "version": Entry("wharf.cli.version", "version", "Print the version."),
}

_CHANGES: Final = "wharf.cli.job_changes"
_PLAN: Final = "wharf.cli.job_plan"
_NODES: Final = "wharf.cli.node"
ALSO: Final = {
    "run": Entry(_CHANGES, "run", "wharf job run"),
    "plan": Entry(_PLAN, "plan", "wharf job plan"),
    "stop": Entry(_CHANGES, "stop", "wharf job stop"),
    "start": Entry(_CHANGES, "start", "wharf job start"),
    "validate": Entry(_PLAN, "validate", "wharf job validate"),
    "inspect": Entry("wharf.cli.job_views", "inspect", "wharf job inspect"),
    "init": Entry("wharf.cli.job_init", "init", "wharf job init"),
    "node-status": Entry(_NODES, "status", "wharf node status"),
    "node-drain": Entry(_NODES, "drain", "wharf node drain"),
    "alloc-status": Entry("wharf.cli.alloc", "status", "wharf alloc status"),
    "logs": Entry("wharf.cli.alloc_files", "logs", "wharf alloc logs"),
    "action": Entry("wharf.cli.job_action", "action", "wharf job action"),
    "exec": Entry("wharf.cli.alloc_exec", "execute", "wharf alloc exec"),
    "fs": Entry("wharf.cli.alloc_files", "fs", "wharf alloc fs"),
    "eval-status": Entry("wharf.cli.evaluation", "status", "wharf eval status"),
    "server-members": Entry("wharf.cli.cluster", "members", "wharf server members"),
    "debug": Entry("wharf.cli.operator", "debug", "wharf operator debug"),
}
"""Short and old names, with what each stands for."""
MISSING: Final = {
    "client-config": NOT_YET,
    "plugin": "drivers are part of the nodes; `wharf node status NODE` names those of a node",
    "agent-info": "`wharf operator api /v1/agent/self` tells it",
    "check": "`wharf operator api /v1/agent/health` tells it",
    "ui": "there are no pages yet; a server's /v1/docs tells of its API",
    "fmt": "job files are YAML or JSON, which any editor sets out",
    "license": "every feature is free: there is no licence",
}
"""What people may look for, with what there is in its place."""

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


@click.group(
    name="wharf",
    cls=LazyGroup,
    entries=COMMANDS,
    also=ALSO,
    missing=MISSING,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="wharf %(version)s")
def root() -> None:
    """Wharf runs a team's machines: submit jobs, and they are placed, started, watched and explained.

    `wharf dev` starts a whole cluster on this machine.
    """


def main(arguments: Sequence[str] | None = None, surroundings: object = None) -> None:
    """Without arguments those of the process. `surroundings`: what commands that ask servers are given (`speaking`)."""
    try:
        ended = root.main(arguments, prog_name="wharf", standalone_mode=False, obj=surroundings)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        click.echo("\nwharf: stopped", err=True)  # Whatever was asked or shown stands on the line before.
        sys.exit(EXIT_INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        click.echo(help_wanted.format_message())
        sys.exit(EXIT_FAILED)
    except click.ClickException as error:
        from wharf.cli.failing import told

        for line in told(error).splitlines():
            click.echo(f"wharf: {line}", err=True)
        sys.exit(getattr(error, "code", EXIT_FAILED))  # Of `failing.Failed`, which a page of help does not load.
    except BrokenPipeError:
        # Whoever read our output has had enough, as `head` does. Nothing more may be written, at exit either.
        sys.stdout = sys.stderr
        sys.exit(EXIT_FAILED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = sys.stderr
        click.echo(f"wharf: {error.filename or 'the output'} cannot be written: {error.strerror}", err=True)
        sys.exit(EXIT_FAILED)
    else:
        if isinstance(ended, int):  # A command that ended early, with the code that it chose.
            sys.exit(ended)
