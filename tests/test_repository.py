"""The repository keeps its own rules: a plain lock, no index addresses, docstrings, live links."""

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headwater"
MODULES = sorted(PACKAGE.rglob("*.py"))
LOCK = ROOT / "requirements.lock"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

# An option that names an index, or the address of one.
INDEX_ADDRESS = re.compile(
    r"""(?:index-url|index_url|find-links|find_links|trusted-host|trusted_host)["']?[\s=:]+["']?(?:\w+://|/|\w+\.\w)"""
    r"""|://[^/\s]*(?:pypi|pythonhosted|devpi|artifactory|nexus|maven|npmjs)"""
    r"""|://[^\s"']+/simple(?:[/\s"']|$)""",
    re.IGNORECASE | re.MULTILINE,
)
PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!+_-]+)\s*(?:;[^#]*)?(?:#.*)?$")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)")
CODE = re.compile(r"^ *(`{3,}).*?^ *\1 *$|`[^`\n]*`", re.MULTILINE | re.DOTALL)

# Extras and what they bring: none of it may be imported by `import headwater`.
EXTRAS = {"bson", "click", "pyarrow", "rich", "zstandard"}


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # Someone else's checkout (a mounted folder in a container) may be read too.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def pinned_versions() -> dict[str, str]:
    text = LOCK.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    matches = [PINNED.match(line) for line in lines]
    odd = [line for line, match in zip(lines, matches, strict=True) if match is None]
    assert odd == []
    return {canonicalize_name(match["name"]): match["version"] for match in matches if match is not None}


def test_no_tracked_file_names_a_package_index() -> None:
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in INDEX_ADDRESS.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-" + "url https://example.org/packages",
        "PIP_FIND_" + "LINKS=/srv/wheels",
        "trusted-" + "host = example.org",
        "https:" + "//pypi.example.org/packages/a.whl",
        "https:" + "//example.org/simple/",
        "https:" + "//maven.example.org/a.jar",
    ],
)
def test_an_index_address_would_be_found(line: str) -> None:
    assert INDEX_ADDRESS.search(line)


def test_lock_holds_only_pinned_names_and_versions() -> None:
    assert pinned_versions()


def test_lock_satisfies_every_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = pinned_versions()
    for requirement in map(Requirement, chain.from_iterable(declared)):
        if requirement.name != project["name"]:
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not in the lock: run make lock"
            assert requirement.specifier.contains(version), f"{requirement} is locked at {version}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_point_to_existing_files(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    targets = [match["target"] for match in LINK.finditer(text)]
    relative = [target.partition("#")[0] for target in targets if not re.match(r"\w+:|#", target)]
    missing = [target for target in relative if not (page.parent / target).exists()]
    assert missing == []


def test_importing_headwater_imports_no_extra() -> None:
    program = "import sys, headwater; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", program]
    imported = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert EXTRAS.isdisjoint(imported.split())


def classes() -> list[tuple[str, Path]]:
    return [
        (node.name, path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def test_a_class_name_is_used_once() -> None:
    paths: dict[str, list[Path]] = {}
    for name, path in classes():
        paths.setdefault(name, []).append(path)
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}


def test_a_class_is_named_by_a_noun() -> None:
    # Errors say what has happened; a finding, a sighting and a need are things.
    nouns = {"Finding", "LeaseSighting", "_Need"}
    found = [
        name
        for name, path in classes()
        if re.search(r"(?:[a-z]ed|[a-z]ing)$", name) and path.name != "errors.py" and name not in nouns
    ]
    assert found == []


def fixtures() -> dict[str, dict[str, str]]:
    """Return for each fixture of a test module or conftest, by name, the type that it gives in each file.

    Fixtures of classes are left out: a suite of conformance has them give an implementation each.
    """
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                decorators = [ast.unparse(each).partition("(")[0] for each in node.decorator_list]
                if "pytest.fixture" in decorators:
                    given = re.sub(r"^Iterator\[(.*)\]$", r"\1", ast.unparse(node.returns)).removeprefix("headwater.")
                    found.setdefault(node.name, {})[path.relative_to(ROOT).as_posix()] = given
    return found


def test_a_fixture_name_has_one_type_in_all_tests() -> None:
    different = {name: types for name, types in fixtures().items() if len(set(types.values())) > 1}
    assert different == {}, "rename these fixtures: one name must give the same type in every file"


@pytest.mark.parametrize("name", ["server", "driven"])
def test_a_server_for_tests_is_defined_once(name: str) -> None:
    found = list(fixtures()[name])
    assert len(found) == 1, f"define server_settings, server_path or driven_limits instead of another {name}: {found}"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "INVARIANTS.md"])
def test_a_page_about_the_code_names_files_that_exist(page: str) -> None:
    source = ROOT / "src" / "headwater"
    named = set(re.findall(r"[a-z_0-9/]+\.py", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    files = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    files |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert {name for name in named if not any(file == name or file.endswith("/" + name) for file in files)} == set()


def test_the_options_of_append_and_read_stand_in_few_signatures() -> None:
    """A newcomer adds an option in the record, the verb and where it is done; anything else is a wire."""
    signatures: dict[str, list[str]] = {"expected_version": [], "match": []}
    for path in (ROOT / "src" / "headwater").rglob("*.py"):
        room = path.relative_to(ROOT / "src" / "headwater").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and room not in ("cli", "server", "spark", "views", "match"):
                names = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
                for option, others in (
                    ("expected_version", {"topic", "data", "key"}),
                    ("match", {"topic", "type", "key"}),
                ):
                    if option in names and others <= names:
                        signatures[option].append(f"{path.name}: {node.name}")
    assert {option: 0 < len(found) <= 3 for option, found in signatures.items()} == {
        "expected_version": True,
        "match": True,
    }


def test_a_docstring_names_classes_and_files_that_exist() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    known = {name for name, _ in classes()} | {node.id for _, node in nodes if isinstance(node, ast.Name)}
    known |= {node.attr for _, node in nodes if isinstance(node, ast.Attribute)}
    headers = {"Accept", "Allow", "Authorization", "Host", "Origin"}
    known |= (
        headers
        | {"NaN", "Infinity"}
        | {name for _, node in nodes if isinstance(node, ast.alias) for name in [node.name]}
    )
    missing = set()
    for path, node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        named = re.findall(r"`([A-Z][a-z]+[A-Za-z]*)(?:\.\w+)?`", text)
        missing |= {f"{path.name}: {name}" for name in named if name not in known}
        files = set(re.findall(r"[a-z_0-9/]+\.py\b", text)) - {"shop.py"}  # the application of the examples
        missing |= {
            f"{path.name}: {file}" for file in files if not any(str(each).endswith(f"/{file}") for each in MODULES)
        }
    assert missing == set()


LONG_MODULES = {"headwater/store.py"}  # it documents every verb, once


def test_no_module_is_above_500_lines_and_no_function_above_50() -> None:
    long = {}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        lines = source.count("\n")
        name = str(path).rpartition("src/")[2]
        if lines > 500 and name not in LONG_MODULES:
            long[name] = lines
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                size = node.end_lineno - node.lineno + 1
                if size > 50:
                    long[f"{name}: {node.name}"] = size
    assert long == {}


def test_the_docstring_of_a_function_does_not_begin_with_a_question_word() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").split("\n")[0]
                if first.startswith(("What ", "How ", "Who ", "Whoever ", "Whether ", "The same")):
                    found.append(f"{path.name}: {node.name}: {first}")
    assert found == [], "begin with a verb: Return …, Append …, Raise …"
