"""`wharf completion`: a script for the shell that completes names of commands and options."""

import click


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands in your shell.

    bash: put `eval "$(wharf completion bash)"` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc; fish:
    `wharf completion fish > ~/.config/fish/completions/wharf.fish`.
    """
    from click.shell_completion import get_completion_class

    from wharf.cli.root import root

    script = get_completion_class(shell)
    assert script is not None, f"click knows no completion for {shell}"
    click.echo(script(root, {}, "wharf", "_WHARF_COMPLETE").source())
