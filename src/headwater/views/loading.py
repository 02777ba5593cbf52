"""Loads the application that `--app` names: `shop.py`, `shop.py:app`, `package.module` or `package.module:app`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from headwater.errors import Invalid, NotFound
from headwater.views.app import App


def load(address: str) -> App:
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
    return from_text(path.stem, path)


def from_text(name: str, path: Path) -> ModuleType:
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
