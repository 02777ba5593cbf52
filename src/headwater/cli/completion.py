"""`headwater completion`: the script that lets a shell complete commands, options, directories, topics and binders."""

from __future__ import annotations

import click

from headwater.cli.app import cli, command

SHELLS = {
    "bash": (
        "headwater completion bash > ~/.local/share/bash-completion/completions/headwater",
        'or in ~/.bashrc:  eval "$(headwater completion bash)"',
    ),
    "zsh": (
        'headwater completion zsh > "${fpath[1]}/_headwater"',
        'or in ~/.zshrc:  eval "$(headwater completion zsh)"',
    ),
    "fish": (
        "headwater completion fish > ~/.config/fish/completions/headwater.fish",
        "or in config.fish:  headwater completion fish | source",
    ),
}


@command(
    examples=[
        'eval "$(headwater completion bash)"',
        "headwater completion fish > ~/.config/fish/completions/headwater.fish",
    ]
)
@click.argument("shell", type=click.Choice(list(SHELLS)), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, options, directories, topics and binders. Its first lines say how to install it.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, "headwater", "_HEADWATER_COMPLETE").source()
    first, second = SHELLS[shell]
    if shell == "zsh":  # its own first line must stay the first
        head, _, script = script.lstrip("\n").partition("\n")
        click.echo(head)
    click.echo(f"# {shell} completion for headwater. To install it:\n#   {first}\n# {second}\n")
    click.echo(script.strip("\n"))
