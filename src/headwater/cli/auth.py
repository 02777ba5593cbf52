"""`headwater auth`: the users of a server, in a file."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import confirm, group, yes_option
from headwater.cli.arguments import json_option
from headwater.errors import Conflict, NotFound

if TYPE_CHECKING:
    from headwater.server.users import Account, Password

ALL = "'read,append,admin:*'"


@group
def auth() -> None:
    """Manage the users of a server, in the file of 'headwater serve --auth FILE'.

    A user has a password, tokens or certificates, and scopes: actions allowed on topics. A running server picks up
    changes within a second.
    """


def file_argument(function: Any) -> Any:
    return click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))(function)


def name_argument(function: Any) -> Any:
    return click.argument("name", metavar="NAME")(function)


def account_options(function: Any) -> Any:
    """Add the options that describe a user; `_given` reads them."""
    scope = "Permissions of the user: read, append, admin on topics; * matches any text. May be repeated."
    subject = "Subject of a client certificate that identifies the user. May be repeated."
    options = (
        click.option("--password", is_flag=True, help="Ask for a password."),
        click.option("--password-stdin", is_flag=True, help="Read the password from the first line of stdin."),
        click.option("--subject", "subjects", multiple=True, metavar="'CN=…'", help=subject),
        click.option("--scope", "scopes", multiple=True, metavar="ACTIONS:TOPICS", help=scope),
    )
    for option in reversed(options):
        function = option(function)
    return function


@auth.command(
    examples=[
        "headwater auth add users.json ada --password --scope 'read,append,admin:*'",
        "headwater auth add users.json shop --token --scope 'append:orders.*' --scope 'read:stock'",
        "headwater auth add users.json billing --subject 'CN=billing,O=Shop' --scope 'read:*'",
    ]
)
@file_argument
@name_argument
@account_options
@click.option("--token", is_flag=True, help="Create a token and print it. It is shown only once.")
@json_option("One JSON object.")
@click.pass_context
def add(ctx: click.Context, /, file: Path, name: str, token: bool, as_json: bool, **given: Any) -> None:
    """Add the user NAME. FILE is created if it does not exist, readable by you alone.

    The user needs a password, a token or a subject, and a scope. 'headwater auth token' creates more tokens later;
    'headwater auth change' changes everything else.
    """
    from headwater.server.users import Account, check_name

    check_name(name)
    if not given["scopes"]:
        raise click.UsageError(f"the user would have no permissions: give --scope, as in --scope {ALL}", ctx)
    if not (token or given["password"] or given["password_stdin"] or given["subjects"]):
        raise click.UsageError("the user would have no credentials: give --password, --token or --subject", ctx)
    has = _given(ctx, given)
    with _changing(file) as accounts:
        if name in accounts:
            hint = f"'headwater auth change {file} {name}' changes it, 'headwater auth token' creates another token"
            raise Conflict(f"{file} already has a user {name!r}", hint=hint, code="user_exists")
        account = Account(**has)
        accounts[name], id, secret = _with_token(account) if token else (account, None, None)
    _tell_token(name, id, secret, as_json, f"added user {name}")


@auth.command(
    examples=[
        "headwater auth change users.json ada --password",
        "headwater auth change users.json shop --scope 'append:orders.*'",
    ]
)
@file_argument
@name_argument
@account_options
@click.pass_context
def change(ctx: click.Context, /, file: Path, name: str, **given: Any) -> None:
    """Change the user NAME. New scopes or subjects replace all previous ones.

    Tokens are not affected.
    """
    import msgspec

    has = _given(ctx, given)
    if not has:
        raise click.UsageError("nothing to change: give --password, --scope or --subject", ctx)
    with _changing(file, must_exist=True) as accounts:
        accounts[name] = msgspec.structs.replace(_account(accounts, name, file), **has)
    show.done(f"changed user {show.printable(name)}")


@auth.command(examples=["headwater auth token users.json shop", "TOKEN=$(headwater auth token users.json shop)"])
@file_argument
@name_argument
@json_option("One JSON object.")
def token(file: Path, name: str, as_json: bool) -> None:
    """Create another token for the user NAME and print it. It is shown only once.

    To rotate a token without downtime, create the new one, deploy it, then revoke the old one.
    """
    with _changing(file, must_exist=True) as accounts:
        accounts[name], id, secret = _with_token(_account(accounts, name, file))
    _tell_token(name, id, secret, as_json, "")


@auth.command(examples=["headwater auth revoke users.json shop 302ae7d9"])
@file_argument
@name_argument
@click.argument("token_id", metavar="TOKEN-ID")
def revoke(file: Path, name: str, token_id: str) -> None:
    """Revoke a token of the user NAME.

    Its id is the part between the underscores of the token; 'headwater auth list' shows the ids.
    """
    import msgspec

    with _changing(file, must_exist=True) as accounts:
        account = _account(accounts, name, file)
        tokens = dict(account.tokens)
        if tokens.pop(token_id, None) is None:
            hint = f"its tokens: {', '.join(account.tokens) or 'none'}"
            raise NotFound(f"user {name!r} has no token {token_id!r}", hint=hint, code="token_not_found")
        accounts[name] = msgspec.structs.replace(account, tokens=tokens)
    show.done(f"revoked token {token_id} of user {show.printable(name)}")


@auth.command(examples=["headwater auth remove users.json shop", "headwater auth remove users.json shop --yes"])
@file_argument
@name_argument
@yes_option
@click.pass_context
def remove(ctx: click.Context, file: Path, name: str, yes: bool) -> None:
    """Remove the user NAME and all its tokens.

    Asks for confirmation; without a terminal, --yes is required. Open streams stay open until they end.
    """
    confirm(ctx, f"Remove user {show.printable(name)}?", "nothing was removed", yes=yes)
    with _changing(file, must_exist=True) as accounts:
        _account(accounts, name, file)
        del accounts[name]
    show.done(f"removed user {show.printable(name)}")


@auth.command(examples=["headwater auth list users.json", "headwater auth list users.json --json"])
@file_argument
@json_option("One JSON object a line.")
def list_(file: Path, as_json: bool) -> None:
    """List the users with their scopes and how they authenticate."""
    from headwater.disk.disk import Disk
    from headwater.server.users import read

    accounts = read(file, Disk()).accounts
    if as_json:
        for name, account in accounts.items():
            click.echo(show.json_line(_told(name, account)))
    elif accounts:
        columns = ("user", "scopes", "password", "tokens", "subjects")
        show.table(columns, [_row(name, account) for name, account in accounts.items()])
    else:
        show.note(f"no users yet — headwater auth add {file} NAME --token --scope {ALL}")


def _given(ctx: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return the checked values of `account_options`, without those that were not given."""
    from headwater.server.rights import Scope

    password = _asked_password(ctx, given["password"], given["password_stdin"])
    has = {
        "scopes": tuple(str(Scope.parse(text)) for text in given["scopes"]) or None,
        "subjects": given["subjects"] or None,
        "password": password,
    }
    return {name: value for name, value in has.items() if value is not None}


def _asked_password(ctx: click.Context, ask: bool, from_stdin: bool) -> Password | None:
    from headwater.disk.disk import Clock
    from headwater.server.users import Password

    if ask and from_stdin:
        raise click.UsageError("--password and --password-stdin are mutually exclusive", ctx)
    if not ask and not from_stdin:
        return None
    if ask:
        if not show.is_terminal(sys.stdin):
            raise click.UsageError("no terminal to read the password from: give --password-stdin", ctx)
        text = click.prompt("Password", hide_input=True, confirmation_prompt="Once more", err=True)
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    return Password.of(text, Clock())


def _changing(file: Path, *, must_exist: bool = False) -> Any:
    from headwater.disk.disk import Clock, Disk
    from headwater.server.users import changing, read

    disk = Disk()
    if must_exist:
        read(file, disk)
    return changing(file, disk, Clock())


def _account(accounts: dict[str, Account], name: str, file: Path) -> Account:
    if name not in accounts:
        hint = f"'headwater auth list {file}' lists the users"
        raise NotFound(f"{file} has no user {name!r}", hint=hint, code="user_not_found")
    return accounts[name]


def _with_token(account: Account) -> tuple[Account, str, str]:
    import msgspec

    from headwater.disk.disk import Clock
    from headwater.server.users import Token

    id, secret, kept = Token.new(Clock())
    return msgspec.structs.replace(account, tokens=account.tokens | {id: kept}), id, secret


def _tell_token(name: str, id: str | None, secret: str | None, as_json: bool, done: str) -> None:
    """Tell what was made. A token stands alone on stdout, for scripts."""
    if as_json:
        told = {"user": name} if id is None else {"user": name, "token_id": id, "token": secret}
        click.echo(show.json_line(told))
    elif secret is None:
        show.done(show.printable(done))
    else:
        click.echo(secret)
        show.note("keep it safe: it is not shown again")


def _told(name: str, account: Account) -> dict[str, Any]:
    return {
        "user": name,
        "scopes": account.scopes,
        "password": account.password is not None,
        "tokens": {id: token.made for id, token in account.tokens.items()},
        "subjects": account.subjects,
    }


def _row(name: str, account: Account) -> list[show.Cell]:
    now = datetime.now(UTC)
    return [
        (name, "bold"),
        " ".join(account.scopes),
        "yes" if account.password is not None else "",
        ", ".join(f"{id} ({show.ago(token.made, now)})" for id, token in account.tokens.items()),
        " ".join(account.subjects),
    ]
