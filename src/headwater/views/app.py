"""An application: the projections, functions, queries and pipelines of a user's module. `runner` runs it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from headwater.errors import Conflict, Invalid, NotFound, TooLarge
from headwater.event import Content, Event
from headwater.format import names
from headwater.limits import VIEW_NAME_BYTES_MAX
from headwater.match.matcher import Selection
from headwater.views.pipeline import Mode, Pipeline, PipelineTarget, Schema, declared

if TYPE_CHECKING:
    from headwater.store import Store
    from headwater.views.aggregate import Aggregate
    from headwater.views.runner import Runner


Fold = Callable[[Any, Event], Any]
KeyOf = Callable[[Event], Any]
OnError = Literal["stop", "quarantine"]
F = TypeVar("F", bound=Callable[..., Any])


class Projection(msgspec.Struct, frozen=True):
    """Code that turns events into documents: `fold(doc, event)`, or with `many`, `fold(docs, event)`."""

    name: str
    topic: str
    binder: str
    fold: Fold
    key: str | KeyOf | None = None
    type: str | None = None
    match: Mapping[str, Any] | None = None
    many: bool = False
    unordered: bool = False
    version: int = 1
    on_error: OnError = "stop"

    @property
    def consumer(self) -> str:
        """Return the name under which its partitions are leased."""
        return f"projection.{self.name}"

    @property
    def by_event_key(self) -> bool:
        """Return whether its documents are those of the event's key: one partition has all events of a document."""
        return self.key is None and not self.many


class Function(msgspec.Struct, frozen=True):
    """Code that acts on events: `act(ctx, event)`."""

    name: str
    topic: str
    act: Callable[[Any, Event], Any]
    type: str | None = None
    match: Mapping[str, Any] | None = None
    tries: int = 5
    start: Literal["earliest", "latest"] = "earliest"
    batch: int = 1

    @property
    def consumer(self) -> str:
        """Return the name under which its place is kept, and its partitions are leased."""
        return f"function.{self.name}"


class NamedQuery(msgspec.Struct, frozen=True):
    """A named query: `ask(views, **arguments)`."""

    name: str
    ask: Callable[..., Any]


class Shelf(msgspec.Struct):
    """The requirements of an application for a binder."""

    name: str
    indexes: list[str] = []

    def index(self, field: str) -> Shelf:
        """Declare an index over a field, a path as `"by.name"`."""
        if field not in self.indexes:
            self.indexes.append(field)
        return self


class App:
    """Projections, functions, queries and pipelines. Made once, in a module, at its top."""

    def __init__(self) -> None:
        self.projections: dict[str, Projection] = {}
        self.functions: dict[str, Function] = {}
        self.queries: dict[str, NamedQuery] = {}
        self.binders: dict[str, Shelf] = {}
        self.pipelines: dict[str, Pipeline] = {}

    def binder(self, name: str) -> Shelf:
        """Return the declaration of a binder: `app.binder("baskets").index("total")`."""
        return self.binders.setdefault(name, Shelf(name, []))

    def projection(
        self,
        topic: str,
        binder: str,
        *,
        key: str | KeyOf | None = None,
        type: str | None = None,
        match: Mapping[str, Any] | None = None,
        many: bool = False,
        unordered: bool = False,
        version: int = 1,
        name: str | None = None,
        on_error: OnError = "stop",
    ) -> Callable[[F], F]:
        """Declare a projection: put on `fold(doc, event) -> doc | None`. docs/VIEWS.md tells what each argument is."""
        Selection(type, None, match)  # raises for a bad one, where it is written
        if many and key is not None:
            raise Invalid("a projection of many documents takes no key", hint="its function chooses the documents")
        if on_error not in ("stop", "quarantine"):
            raise Invalid(f"unknown on_error {on_error!r}", hint="use 'stop' or 'quarantine'")
        if version < 1:
            raise Invalid("a projection's version must be at least 1")
        self.binder(binder)

        def declare(fold: F) -> F:
            found = Projection(
                _name(name, fold), topic, binder, fold, key, type, match, many, unordered, version, on_error
            )
            self._check_alone(found)
            _add(self.projections, found.name, found, "projection")
            return fold

        return declare

    def function(
        self,
        topic: str,
        *,
        type: str | None = None,
        match: Mapping[str, Any] | None = None,
        name: str | None = None,
        tries: int = 5,
        start: Literal["earliest", "latest"] = "earliest",
        batch: int = 1,
    ) -> Callable[[F], F]:
        """Declare a function: put on `act(ctx, event)`. docs/VIEWS.md tells what each argument does."""
        Selection(type, None, match)
        if tries < 1 or batch < 1:
            raise Invalid("tries and batch must be at least 1")

        def declare(act: F) -> F:
            _check_plain(act)
            found = Function(_name(name, act), topic, act, type, match, tries, start, batch)
            _add(self.functions, found.name, found, "function")
            return act

        return declare

    def query(self, name: str | None = None) -> Callable[[F], F]:
        """Declare a query with a name: put on `ask(views, **arguments)`, which returns documents, or JSON's types."""

        def declare(ask: F) -> F:
            found = NamedQuery(_name(name, ask), ask)
            _add(self.queries, found.name, found, "query")
            return ask

        return declare

    def pipeline(
        self,
        *topics: str,
        to: str,
        mode: Mode = "batch",
        schema: Schema = None,
        start: str | int = "earliest",
        every: float | None = None,
        partition_by: str | Sequence[str] = (),
        content: Content | None = None,
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Declare a pipeline: put on `compute(*frames) -> frame`, with a DataFrame of Spark's for each topic.

        It is run by `headwater pipeline run`. docs/PIPELINES.md tells what each argument is.
        """

        def declare(compute: F) -> F:
            found = declared(
                _name(name, compute),
                topics,
                compute,
                to=to,
                mode=mode,
                schema=schema,
                start=start,
                every=every,
                partition_by=partition_by,
                content=content,
                options=options,
                version=version,
            )
            self._check_alone(found)
            _add(self.pipelines, found.name, found, "pipeline")
            if found.target.kind == "binder":
                self.binder(found.target.place)
            return compute

        return declare

    def aggregate(
        self, topic: str, cls: type[Aggregate], binder: str, *, version: int = 1, name: str | None = None
    ) -> None:
        """Declare a projection that keeps the state of each aggregate of a topic in a binder, as snapshots.

        It is named as the binder, unless a name is given. When `cls` changes, give a higher `version`.
        """
        from headwater.views.aggregate import snapshot_fold

        self.projection(topic, binder, version=version, name=name or binder)(snapshot_fold(cls))

    def _check_alone(self, found: Projection | Pipeline) -> None:
        """Raise Conflict if what a pipeline fills would be filled by something else, too."""
        to = found.target if isinstance(found, Pipeline) else PipelineTarget("binder", found.binder)
        if to.kind == "topic":
            return  # which many may append to
        others = [each.name for each in self.pipelines.values() if each.target == to and each.name != found.name]
        if isinstance(found, Pipeline) and to.kind == "binder":
            others += [each.name for each in self.projections.values() if each.binder == to.place]
        if others:
            raise Conflict(f"{found.name!r} and {others[0]!r} would both fill {to}", hint="give each its own target")

    def ask(self, hw: Store, name: str, /, **arguments: Any) -> Any:
        """Return the result of a named query. Raises NotFound if there is none, Invalid if it takes other arguments."""
        from headwater.views.context import Views

        query = self.queries.get(name)
        if query is None:
            known = ", ".join(sorted(self.queries))
            hint = f"it has {known}" if known else "declare it with @app.query"
            raise NotFound(f"the application has no query {name!r}", hint=hint, code="no_such_query")
        views = Views(hw)
        signature = inspect.signature(query.ask)
        try:
            signature.bind(views, **arguments)
        except TypeError as error:
            parameters = ", ".join(str(each) for each in list(signature.parameters.values())[1:])
            raise Invalid(
                f"query {name!r}: {error}",
                hint=f"arguments of the query: {parameters or 'none'}",
                code="wrong_arguments",
            ) from None
        return query.ask(views, **arguments)

    def of_binder(self, binder: str) -> list[Projection]:
        """Return the projections that fill a binder; raises NotFound if there are none."""
        found = [each for each in self.projections.values() if each.binder == binder]
        if not found:
            raise NotFound(
                f"no projection of this application fills the binder {binder!r}",
                hint=f"it has {', '.join(sorted({each.binder for each in self.projections.values()})) or 'none'}",
                code="no_such_binder",
            )
        return found

    def running(self, hw: Store) -> Runner:
        """Run it in threads of this process: `with app.running(hw): …`. Ends with the block."""
        from headwater.views.runner import Runner

        return Runner(hw, self)

    def catch_up(self, hw: Store, timeout: float = 60.0) -> None:
        """Run it until nothing is left to do. Raises Unavailable if that takes longer, or something has stopped."""
        with self.running(hw) as runner:
            runner.settle(timeout)


def _name(given: str | None, code: Callable[..., Any]) -> str:
    name = given if given is not None else getattr(code, "__name__", "")
    if not name or name == "<lambda>":
        raise Invalid("the function has no name", hint="give name=")
    if len(names.directory_of(name)) > VIEW_NAME_BYTES_MAX:
        raise TooLarge(f"the name {name!r} is too long", limit="view_name_bytes_max", maximum=VIEW_NAME_BYTES_MAX)
    return name


def _check_plain(code: Callable[..., Any]) -> None:
    """Refuse code that would not run when it is called."""
    if inspect.iscoroutinefunction(code) or inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise Invalid("a function cannot be async or a generator", hint="write it without async and yield")


def _add(kind: dict[str, Any], name: str, found: Any, what: str) -> None:
    if name in kind:
        raise Conflict(f"duplicate {what} name {name!r}", hint="give one of them another name=")
    kind[name] = found


def load_app(address: str) -> App:
    """Import the module, and find the `App` in it. This runs the user's code.

    Raises NotFound if there is no such module or name, Invalid if it holds no App, or several and none was named.
    """
    where, _, name = address.partition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise NotFound(f"{where} has no App named {name!r}", hint=f"add {name} = App()", code="no_such_app")
        return found
    apps = {id(value): (key, value) for key, value in vars(module).items() if isinstance(value, App)}
    if len(apps) != 1:
        listed = ", ".join(sorted(key for key, _ in apps.values()))
        hint = f"choose one, as in {where}:{listed.split(', ')[0]}" if apps else "add app = headwater.App()"
        raise Invalid(f"{where} has {f'several Apps: {listed}' if apps else 'no App'}", hint=hint, code="no_such_app")
    return next(iter(apps.values()))[1]


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"no such file: {path}", hint="--app takes a file, or package.module:app", code="no_such_app")
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)  # as if it had been run: its neighbours can be imported
    return module_from_text(path.stem, path)


def module_from_text(name: str, path: Path) -> ModuleType:
    """Return the module that a file says now, under a name that it then has. This runs the user's code."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromText(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _FromText(SourceFileLoader):
    """Takes no compiled module, which may be of an older text: one of the same second and the same length."""

    def get_code(self, _fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _from_name(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that it imports is missing: raised unchanged
        raise NotFound(f"no such module: {name!r}", hint="for a file, use --app shop.py", code="no_such_app") from None
