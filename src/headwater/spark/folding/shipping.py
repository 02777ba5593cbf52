"""Sends user code to the workers: functions by reference to their modules, or by value.

What is in the main program, a notebook or another function has no module, and is sent as it is. What a module has is
imported there, from the same places as here; if a worker that served before has another file of that name, or an older
text of it, it is reloaded, so that a job never runs with code that it was not started with.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from headwater.errors import Invalid
from headwater.views.app import module_from_text


class Module(msgspec.Struct, frozen=True):
    """The file of a module, and its text."""

    name: str
    file: str
    digest: str


class Parcel(msgspec.Struct, frozen=True):
    """Objects that hold functions, and the modules that a worker needs to restore them."""

    path: list[str]
    modules: list[Module]
    pickled: bytes


_loaded: dict[str, str] = {}  # in a worker: the digest of each module when it was loaded


def pack(objects: Any, functions: Iterable[Any]) -> bytes:
    """Return objects as bytes, with the modules of their functions. Raises Invalid for what cannot be pickled."""
    from pyspark import cloudpickle

    names = sorted({getattr(each, "__module__", None) or "__main__" for each in functions} - {"__main__"})
    try:
        pickled: bytes = cloudpickle.dumps(objects)  # type: ignore[no-untyped-call]  # it is untyped
    except Exception as error:  # whatever the objects of a user raise
        raise Invalid(
            f"the code cannot be sent to Spark's workers: {type(error).__name__}: {error}",
            hint="open logs and locks cannot be sent: create them inside the function that uses them",
            code="cannot_be_sent",
        ) from error
    modules = [found for name in names if (found := _described(name)) is not None]
    return msgspec.msgpack.encode(Parcel([*sys.path], modules, pickled))


def unpack(data: bytes) -> Any:
    """Return the objects again, in a worker of this user's own: nothing else ever makes such bytes."""
    from pyspark import cloudpickle

    parcel = msgspec.msgpack.decode(data, type=Parcel)
    sys.path.extend(each for each in parcel.path if each not in sys.path)
    for module in parcel.modules:
        _ensure(module)
    return cloudpickle.loads(parcel.pickled)


def _described(name: str) -> Module | None:
    """Return a module that has a file; None for others, and for those that are installed, which every worker has."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None or "site-packages" in Path(file).parts or not Path(file).is_file():
        return None
    return Module(name, str(Path(file).absolute()), _digest(Path(file)))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _ensure(wanted: Module) -> None:
    """Load the module that was sent, unless it is already loaded."""
    file = Path(wanted.file)
    if not file.is_file():
        return  # a worker on another machine: it has the module where its own path says, or the import fails
    there = sys.modules.get(wanted.name)
    if getattr(there, "__file__", None) == wanted.file and _loaded.get(wanted.name, wanted.digest) == wanted.digest:
        return
    package, _, _ = wanted.name.rpartition(".")
    if package:
        with contextlib.suppress(ImportError):  # what needs it will say so
            importlib.import_module(package)
    module_from_text(wanted.name, file)
    _loaded[wanted.name] = wanted.digest
