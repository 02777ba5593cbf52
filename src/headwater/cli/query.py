"""`headwater query`: find documents of a binder, or run a named query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from headwater.address import is_server
from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import (
    MatchType,
    NaturalType,
    PairType,
    at_least_options,
    complete_binder,
    data_argument,
    json_option,
    passed_options,
)
from headwater.cli.opening import open_log
from headwater.errors import NotFound

if TYPE_CHECKING:
    from headwater.store import Store
    from headwater.views.app import App


@command(
    examples=[
        """headwater query data baskets '{"total": {"$gt": 10}}' --sort -total --limit 10""",
        """headwater query data baskets '{"total": {"$gt": 10}}' --count""",
        "headwater query data baskets --sort -total --explain",
        "headwater query data baskets --fields total,items --json | jq .data.total",
        "headwater query data top --app shop.py --set limit=3",
        "headwater query http://127.0.0.1:7450 top --set limit=3",
    ]
)
@data_argument
@click.argument("name", metavar="BINDER|QUERY", shell_complete=complete_binder)
@click.argument("match", metavar="[MATCH]", required=False, type=MatchType())
@click.option("--sort", metavar="FIELD,...", help="Sort by these; -FIELD for descending order.  [default: by id]")
@click.option("--skip", type=NaturalType(), metavar="N", help="Skip the first N documents.")
@click.option("--limit", type=NaturalType(), metavar="N", help="Maximum number of documents.")
@click.option("--fields", metavar="FIELD,...", help="Only these fields of each document.")
@click.option("--count", is_flag=True, help="Print only the number of documents.")
@click.option("--explain", is_flag=True, help="Print only the query plan: by an index, or a full scan.")
@at_least_options
@click.option("--app", metavar="MODULE", help="Application that defines the query: shop.py, or package.module:app.")
@click.option("--set", "given", type=PairType(), multiple=True, metavar="NAME=VALUE", help="An argument of the query.")
@json_option("One JSON object a line; the default in a pipe.")
@click.option("--table", "as_table", is_flag=True, help="A table; the default on a terminal.")
def query(
    data: str,
    name: str,
    app: str | None,
    given: tuple[tuple[str, str], ...],
    as_json: bool,
    as_table: bool,
    **asked: Any,
) -> None:
    """Print the documents of a BINDER that match, or the result of an application's QUERY.

    MATCH compares fields as 'headwater read --match' does; without one, all documents are printed. A FIELD is a path,
    such as by.name. Indexes make queries fast: --explain shows whether one is used.

    A QUERY is a function of an application. It runs here with --app, or on a server that runs the application. The
    VALUE of an argument is JSON, otherwise text.
    """
    from headwater.cli.documents import print_all, wants_table

    table = wants_table(as_json, as_table)
    loaded = _loaded(app)
    with open_log(data, mode="existing") as hw:
        found: Any
        if loaded is not None and name in loaded.queries:
            _refuse(asked, name)
            from headwater.views.query_server import ask

            found = ask(loaded, hw, name, _arguments(given))  # a server has what queries use
        elif is_server(data) and (given or name not in hw.binders()):
            _refuse(asked, name)
            found = _asked(hw, name, given)
        elif given:
            raise click.UsageError(
                f"--set is for queries, and {name!r} is not a query: give --app with the application that defines it"
            )
        else:
            found = _found(hw, name, asked, as_json)
        if found is not None:
            printed = print_all(_rows(found), as_table=table)
            if not printed:
                show.note("nothing found")


def _found(hw: Store, name: str, asked: dict[str, Any], as_json: bool) -> Iterator[Any] | None:
    """Return the documents of a binder; None if only their number or their plan is wanted, which is printed."""
    binder, match, sort = hw.binder(name), asked["match"], _fields(asked["sort"])
    passed = passed_options(asked["at_least"], asked["timeout"])
    if asked["explain"]:
        plan = binder.explain(match, sort=sort)
        click.echo(show.json_line({"plan": plan}) if as_json else plan)
        return None
    if asked["count"]:
        if asked["skip"] or asked["limit"] is not None:
            raise click.UsageError("--count counts all that match: leave out --skip and --limit")
        count = binder.count(match, **passed)
        click.echo(show.json_line({"count": count}) if as_json else str(count))
        return None
    fields = None if asked["fields"] is None else _fields(asked["fields"])
    return binder.find(match, sort=sort, skip=asked["skip"] or 0, limit=asked["limit"], fields=fields, **passed)


def _asked(hw: Store, name: str, given: Sequence[tuple[str, str]]) -> Any:
    """Return the answer of a server's application."""
    try:
        return hw.query(name, **_arguments(given))
    except NotFound as error:
        if error.code == "no_such_query":
            error.message = f"no binder {name!r}, and {error.message}"
        raise


def _rows(found: Any) -> Iterator[Any]:
    """Return what to print, line by line: the members of a list, or the one value."""
    return iter(found) if isinstance(found, list | tuple | Iterator) else iter((found,))


def _arguments(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    from headwater.format import documents

    found: dict[str, Any] = {}
    for name, text in given:
        try:
            found[name] = documents.decode(text.encode())
        except ValueError:
            found[name] = text
    return found


def _loaded(app: str | None) -> App | None:
    if app is None:
        return None
    from headwater.cli.views import load_app

    return load_app(app)


def _refuse(asked: dict[str, Any], name: str) -> None:
    """A query takes arguments of its own."""
    used = [option for option, value in asked.items() if value not in (None, False)]
    if used:
        what = "MATCH" if used[0] == "match" else f"--{used[0].replace('_', '-')}"
        raise click.UsageError(f"{name!r} is a query, which takes no {what}: give it arguments with --set")


def _fields(text: str | None) -> list[str]:
    return [] if text is None else [field for field in text.split(",") if field]
