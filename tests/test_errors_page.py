"""docs/ERRORS.md lists every code that src/headwater can raise, with its class, and no other.

The codes are found in the syntax trees: of each call of an error's class the `code=`, or the code of the class itself.
A code that is computed is followed to the constants that it comes from; one that is passed on from another error is
counted where that one is raised. What cannot be followed fails the test.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.remote.failures import ErrorBody, revive
from headwater.server.http.errors import STATUS_BY_CODE, STATUS_BY_KIND, of_status
from headwater.server.http.message import whole

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headwater"
PAGE = ROOT / "docs" / "ERRORS.md"

CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HeadwaterError)
}
HELPERS = {"of_status", "_response", "_revive", "decoded", "failed"}
"""Functions with a parameter `code`. Calls of `of_status` are read; the others only pass a code on, or count it."""

Codes = dict[str, set[str]]
"""The names of the classes, by code."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

ROW = re.compile(r"^\| (?P<code>`[a-z_0-9]+`) \| (?P<classes>`\w+`(?:, `\w+`)*) \| (?P<rest>.+) \|$", re.MULTILINE)
TREE_ROW = re.compile(r"^\| (?P<class>`\w+`) \| (?P<code>`\w+`) \| (?P<status>[\d, ]+) \| .+ \|$", re.MULTILINE)


class UnknownCodeError(Exception):
    """A call whose code or class cannot be followed to constants."""


class CallSite(NamedTuple):
    """Where a name is looked up: the function around a call, if there is one, and its module."""

    module: ast.Module
    function: Function | None


# From a call to its codes and classes


@cache
def modules() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module of src/headwater."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def codes_of_module(module: ast.Module) -> Codes:
    """Return the classes of each code that a module raises."""
    found: Codes = defaultdict(set)
    for call, site in calls(module):
        for code, kind in raised(call, site):
            found[code].add(kind)
    return found


def calls(module: ast.Module) -> Iterator[tuple[ast.Call, CallSite]]:
    """Give each call of a module, with the innermost function around it."""
    left: list[tuple[ast.AST, Function | None]] = [(module, None)]
    while left:
        node, function = left.pop()
        if isinstance(node, ast.Call):
            yield node, CallSite(module, function)
        inner = node if isinstance(node, Function) else function
        left += [(child, inner) for child in ast.iter_child_nodes(node)]


def raised(call: ast.Call, site: CallSite) -> Iterator[tuple[str, str]]:
    """Give the codes, each with its class, of a call; none for one that makes no error."""
    name = name_of(call.func)
    if name == "of_status":
        yield of_answer(call)
        return
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)
    if name in CLASSES and given is None:
        yield CLASSES[name].code, name
    elif given is not None and (name in CLASSES or is_chosen(call.func, site)):
        for found, narrowed in constants(given, call.func, site):
            for kind in {narrowed} if narrowed else classes(call.func, site):
                yield found, kind


def is_chosen(function: ast.expr, site: CallSite) -> bool:
    """Whether what is called is a class that was chosen before: by a call, or in a variable."""
    if isinstance(function, ast.Name):
        return function.id in parameters(site.function) or any(assignments(function.id, site))
    return isinstance(function, ast.Call)


def parameters(function: Function | None) -> dict[str, str]:
    """Return the annotations of a function's parameters, by name."""
    if function is None:
        return {}
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {each.arg: ast.unparse(each.annotation) if each.annotation else "" for each in given}


def takes_code(function: Function) -> bool:
    return parameters(function).get("code", "").startswith("str")


def name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def constants(node: ast.expr, function: ast.expr, site: CallSite) -> Iterator[tuple[str, str]]:
    """Give the codes that an expression can be, each with the class that it says it is of, if it does."""
    if isinstance(node, ast.IfExp):
        test = node.test
        if isinstance(test, ast.Compare) and ast.dump(test.left) == ast.dump(function):
            # As in `kind(message, code="bad_query" if kind is Invalid else "job_failed")`.
            assert isinstance(test.ops[0], ast.Is)
            positive = name_of(test.comparators[0])
            yield from ((code, positive) for code, _ in constants(node.body, function, site))
            for kind in classes(function, site) - {positive}:
                yield from ((code, kind) for code, _ in constants(node.orelse, function, site))
            return
    for each in values(node, site):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value, ""
        elif not is_passed_on(each, site):
            raise UnknownCodeError(ast.unparse(each))


def is_passed_on(node: ast.expr, site: CallSite) -> bool:
    """Whether a code is that of another error, or is given to a function of HELPERS."""
    if isinstance(node, ast.Attribute):
        return node.attr == "code"
    return isinstance(node, ast.Name) and node.id in parameters(site.function)


def classes(function: ast.expr, site: CallSite) -> set[str]:
    """Return the names of the classes that an expression can be."""
    if isinstance(function, ast.Call) and isinstance(function.func, ast.Name):
        name = function.func.id
        inner = [each for each in site.module.body if isinstance(each, Function) and each.name == name]
        returned = [node.value for each in inner for node in ast.walk(each) if isinstance(node, ast.Return)]
        found = {name_of(each) for value in returned if value is not None for each in values(value, site)}
    else:
        found = {name_of(each) for each in values(function, site)}
    if not found or not found <= CLASSES.keys():
        raise UnknownCodeError(ast.unparse(function))
    return found


def values(node: ast.expr, site: CallSite) -> Iterator[ast.expr]:
    """Give the expressions that an expression can have the value of, through conditions, names and tables."""
    if isinstance(node, ast.IfExp):
        yield from values(node.body, site)
        yield from values(node.orelse, site)
    elif isinstance(node, ast.Name) and (assigned := list(assignments(node.id, site))):
        for each in assigned:
            yield from values(each, site)
    else:
        yield node


def assignments(name: str, site: CallSite) -> Iterator[ast.expr]:
    """Give what is assigned to a name in a function; of a tuple, the element that the name gets."""
    for node in ast.walk(site.function or site.module):
        if isinstance(node, ast.AnnAssign) and name_of(node.target) == name and node.value is not None:
            yield node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    for position, element in enumerate(target.elts):
                        if name_of(element) == name:
                            yield from (tuple_element(each, position) for each in tuples(node.value, site))
                elif name_of(target) == name:
                    yield node.value


def tuples(node: ast.expr, site: CallSite) -> Iterator[ast.expr]:
    """Give the tuples that an expression can be: itself, or those of the table that `table.get(key, default)` reads."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        for table in values(node.func.value, site):
            if isinstance(table, ast.Dict):
                yield from table.values
        yield from node.args[1:]
    else:
        yield node


def tuple_element(node: ast.expr, position: int) -> ast.expr:
    return node.elts[position] if isinstance(node, ast.Tuple) else node


def of_answer(call: ast.Call) -> tuple[str, str]:
    """Return the code of what is wrong with the HTTP itself, and the class that a client raises for it."""
    match call.args:
        case [ast.Constant(value=int() as number), _, ast.Constant(value=str() as code), *_]:
            told = msgspec.json.decode(whole(of_status(number, "", code, "")), type=ErrorBody)
            return code, type(revive(told, number)).__name__
    raise UnknownCodeError(ast.unparse(call))


# The page


def codes_of_page(text: str) -> Codes:
    """Return the classes of each code in the tables of the page; a code has one row."""
    found: Codes = {}
    for row in ROW.finditer(text):
        code = row["code"].strip("`")
        assert code not in found, f"{code} has two rows"
        found[code] = set(re.findall(r"\w+", row["classes"]))
    return found


@pytest.fixture(scope="module")
def source_codes() -> Codes:
    found: Codes = defaultdict(set)
    for kind in CLASSES.values():
        found[kind.code].add(kind.__name__)
    for path, module in modules().items():
        try:
            for code, kinds in codes_of_module(module).items():
                found[code] |= kinds
        except UnknownCodeError as error:
            pytest.fail(f"{path.relative_to(ROOT)}: this test cannot follow {error}")
    return found


@pytest.fixture(scope="module")
def page_codes() -> Codes:
    return codes_of_page(PAGE.read_text(encoding="utf-8"))


def test_every_code_is_on_the_page(source_codes: Codes, page_codes: Codes) -> None:
    assert sorted(source_codes.keys() - page_codes.keys()) == [], "codes that docs/ERRORS.md lacks"


def test_every_code_on_the_page_is_raised_somewhere(source_codes: Codes, page_codes: Codes) -> None:
    assert sorted(page_codes.keys() - source_codes.keys()) == [], "codes of docs/ERRORS.md that nothing raises"


def test_the_page_names_the_classes_that_are_raised(source_codes: Codes, page_codes: Codes) -> None:
    wrong = {
        code: f"{sorted(page_codes[code])} instead of {sorted(kinds)}"
        for code, kinds in source_codes.items()
        if page_codes.get(code, kinds) != kinds
    }
    assert wrong == {}


def test_each_row_says_what_a_code_means_and_what_to_do() -> None:
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row["rest"])]
        assert len(cells) == 2, row["code"]
        assert all(cells), row["code"]


def test_every_row_of_the_tables_is_read() -> None:
    """A row that the pattern does not fit would be a code that nobody checks."""
    text = PAGE.read_text(encoding="utf-8")
    tables = re.findall(
        r"^\| code \| class \| meaning \| what to do \|\n\|---\|---\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) == len(ROW.findall(text))


def test_the_retries_name_codes_and_classes_that_there_are(page_codes: Codes) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Retries")[2].partition("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named - page_codes.keys() - CLASSES.keys() == set()
    assert {"answer_lost", "version_conflict", "Invalid"} <= named


def test_the_tree_has_the_code_and_the_status_of_each_class() -> None:
    found = {row["class"]: (row["code"], row["status"]) for row in TREE_ROW.finditer(PAGE.read_text(encoding="utf-8"))}
    assert found == {f"`{name}`": (f"`{kind.code}`", str(status(kind))) for name, kind in CLASSES.items()}


def status(kind: type[HeadwaterError]) -> int:
    return next((status for each, status in STATUS_BY_KIND.items() if issubclass(kind, each)), 500)


def test_the_page_names_the_codes_with_a_status_of_their_own() -> None:
    text = PAGE.read_text(encoding="utf-8")
    told = {code: int(status) for code, status in re.findall(r"`(\w+)` (\d{3})\b", text)}
    assert told == STATUS_BY_CODE


# The test itself


def test_functions_that_take_a_code_are_known() -> None:
    """Another one would pass codes on that are not found: then its calls must be looked at above."""
    nodes = (node for module in modules().values() for node in ast.walk(module) if isinstance(node, Function))
    assert {node.name for node in nodes if takes_code(node)} - {"__init__"} <= HELPERS


def test_errors_are_raised_under_the_names_of_their_classes() -> None:
    """Calls of an alias, or of a class derived elsewhere, would not be found. StaleSegment stays within the reader."""
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module == "headwater.errors":
                assert not any(alias.asname for alias in node.names), path
            if isinstance(node, ast.ClassDef) and path.name != "errors.py" and node.name != "StaleSegment":
                assert not CLASSES.keys() & set(map(name_of, node.bases)), f"{path}: {node.name}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('raise errors.NotFound("no", code="lost")', {"lost": {"NotFound"}}),
        ('raise Denied("no")', {"forbidden": {"Denied"}}),
        ('Unavailable("no", code="full" if full else "failed")', {"full": {"Unavailable"}, "failed": {"Unavailable"}}),
        (
            'def f():\n if a:\n  n, code = 1, "one"\n else:\n  n, code = 2, "two"\n return Closed("", code=code)',
            {"one": {"Closed"}, "two": {"Closed"}},
        ),
        (
            'def f():\n t: dict = {1: ("one", "")}\n code, hint = t.get(n, ("two", ""))\n return Closed("", code=code)',
            {"one": {"Closed"}, "two": {"Closed"}},
        ),
        (
            'def f():\n kind = Invalid if a else Closed\n return kind("", code="one" if kind is Invalid else "two")',
            {"one": {"Invalid"}, "two": {"Closed"}},
        ),
        (
            'def g(n):\n if n:\n  return Closed\n return Invalid if a else NotFound\nraise g(n)("", code="one")',
            {"one": {"Closed", "Invalid", "NotFound"}},
        ),
        ('raise type(error)("", code=error.code)', {}),
        ('of_status(503, "busy", "overloaded", "wait")', {"overloaded": {"Unavailable"}}),
    ],
)
def test_codes_are_found_however_they_are_given(text: str, expected: Codes) -> None:
    assert codes_of_module(ast.parse(text)) == expected


@pytest.mark.parametrize(
    "text", ['Invalid("", code=chosen())', 'Invalid("", code=f"bad_{name}")', 'of_status(n, "", c, "")']
)
def test_a_code_that_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(UnknownCodeError):
        codes_of_module(ast.parse(text))
