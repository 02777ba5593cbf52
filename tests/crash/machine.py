"""What a crash leaves: a model of files and directories that knows what is cached and what is on the disk.

`Machine` replays a trace of `recording`. After any operation it tells

- `cached()`: what every process sees, and so what is left when they are all killed;
- `after_power_loss()`: one of the many things that may be left when the power goes. What was synced is there:
  `fdatasync` covers the content and size of a file, a sync of a directory covers its entries. Of the rest, each
  write survives, vanishes or is torn between sectors, in any order; a file may have grown without its data;
  a mapped slot may hold any version it ever had; and of the operations on a directory a prefix survives, or, on
  an adversary's file system, a prefix for each name alone.

A tree is a nested dict of names to bytes or trees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

from tests.crash.recording import Op

Tree = dict[str, "bytes | Tree"]

SECTOR = 512
WORD = 8  # what the processor stores at once
HINTS = slice(8, 20)  # of a mapped tail: words that may hold anything


class Change(NamedTuple):
    """A write, a store into a map, or a truncation (`data` is None) that is not on the disk for sure."""

    position: int
    data: bytes | None
    mapped: bool = False


class File:
    """A file's content, as processes see it and as the disk surely has it."""

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number = number
        self.durable = content
        self.cached = bytearray(content)
        self.pending: list[Change] = []

    def change(self, change: Change) -> None:
        _apply(self.cached, change)
        self.pending.append(change)

    def sync(self) -> None:
        """Only what is pending goes to the disk: after a failed sync that is not all that the cache has."""
        content = bytearray(self.durable)
        for change in self.pending:
            _apply(content, change)
        self.durable = bytes(content)
        self.pending.clear()


class Entry(NamedTuple):
    """A name that was given to a node, or taken away (`node` is None)."""

    number: int  # its place in the order of all
    name: str
    node: File | Directory | None
    follows: tuple[Directory, int] | None = None  # a rename takes the old name away only if the new one is there


class Directory:
    """Entries, as processes see them and as the disk surely has them."""

    def __init__(self) -> None:
        self.durable: dict[str, File | Directory] = {}
        self.cached: dict[str, File | Directory] = {}
        self.pending: list[Entry] = []

    def enter(self, entry: Entry) -> None:
        _enter(self.cached, entry)
        self.pending.append(entry)

    def sync(self) -> None:
        self.durable = dict(self.cached)
        self.pending.clear()


class Loss(NamedTuple):
    """How a power loss treats what was not synced."""

    data: str  # "dropped", "kept" or "random"
    entries: str  # "dropped", "kept", "ordered" or "adversarial"
    seed: int = 0

    def __str__(self) -> str:
        return f"power loss (data {self.data}, entries {self.entries}, seed {self.seed})"


class Machine:
    """One directory tree and what has happened to it."""

    def __init__(self, tree: Tree | None = None) -> None:
        """`tree` is what the disk holds at first."""
        self._files: dict[int, File] = {}
        self._count = 0
        self.root = self._grow(tree or {})

    def apply(self, op: Op) -> None:
        """Replay one operation."""
        self._count += 1
        match op.kind:
            case "write" | "store":
                self._files[op.file].change(Change(op.position, op.data, op.kind == "store"))
            case "truncate":
                self._files[op.file].change(Change(op.position, None))
            case "sync":
                self._files[op.file].sync()
            case "failed sync":  # the cache calls these pages clean from now on, and the disk never gets them
                self._files[op.file].pending.clear()
            case "create":
                file = self._files[op.file] = File(op.file)
                self._enter(op.path, file)
            case "mkdir":
                self._enter(op.path, Directory())
            case "link":
                self._enter(op.target, self._find(op.path))
            case "unlink":
                self._enter(op.path, None)
            case "rename":
                node = self._find(op.path)
                self._enter(op.target, node)
                directory, _ = self._parent(op.target)
                self._enter(op.path, None, (directory, self._count))
            case "sync directory":
                found = self._find(op.path)
                assert isinstance(found, Directory)
                found.sync()
            case "mark":
                pass
            case _:
                raise AssertionError(op.kind)

    def cached(self) -> Tree:
        """What processes see."""
        return _tree(self.root)

    def cached_with(self, op: Op) -> Tree:
        """What processes would see after one more write or store, which does not take place."""
        file = self._files[op.file]
        cached = bytearray(file.cached)
        _apply(file.cached, Change(op.position, op.data))
        try:
            return self.cached()
        finally:
            file.cached = cached

    def after_power_loss(self, loss: Loss) -> Tree:
        """One of the things that the disk may hold when the power goes now."""
        return _Choice(loss).tree(self.root)

    def unsynced(self) -> bool:
        """Whether a power loss could take anything away."""
        return any(node.pending for node in _nodes(self.root))

    def numbers(self) -> dict[str, int]:
        """The number of each file, by its path."""
        return {path: node.number for path, node in _paths(self.root) if isinstance(node, File)}

    def _grow(self, tree: Tree) -> Directory:
        directory = Directory()
        for name, child in sorted(tree.items()):
            node: File | Directory
            if isinstance(child, bytes):
                number = len(self._files) + 1
                node = self._files[number] = File(number, child)
            else:
                node = self._grow(child)
            directory.durable[name] = directory.cached[name] = node
        return directory

    def _find(self, path: str) -> File | Directory:
        node: File | Directory = self.root
        for name in path.split("/"):
            if name != ".":
                node = cast(Directory, node).cached[name]
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return cast(Directory, self._find(parent or ".")), name

    def _enter(self, path: str, node: File | Directory | None, follows: tuple[Directory, int] | None = None) -> None:
        directory, name = self._parent(path)
        directory.enter(Entry(self._count, name, node, follows))


class _Choice:
    """One way in which a power loss may go: each decision is made once."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._random = Random(loss.seed)
        self._ends: dict[tuple[int, str], float] = {}
        self._files: dict[int, bytes] = {}

    def tree(self, directory: Directory) -> Tree:
        entries = dict(directory.durable)
        for entry in directory.pending:
            if self._survives(directory, entry):
                _enter(entries, entry)
        return {
            name: self._content(node) if isinstance(node, File) else self.tree(node)
            for name, node in sorted(entries.items())
        }

    def _survives(self, directory: Directory, entry: Entry) -> bool:
        if entry.follows is not None:
            target, number = entry.follows
            new = [each for each in target.pending if each.number == number and each.node is not None]
            if new and not self._survives(target, new[0]):
                return False
        match self._loss.entries:
            case "dropped":
                return False
            case "kept":
                return True
        key = id(directory), entry.name if self._loss.entries == "adversarial" else ""
        if key not in self._ends:
            numbers = [each.number for each in directory.pending if key[1] in ("", each.name)]
            self._ends[key] = self._random.choice([0, *numbers])
        return entry.number <= self._ends[key]

    def _content(self, file: File) -> bytes:
        if id(file) not in self._files:
            self._files[id(file)] = self._choose(file)
        return self._files[id(file)]

    def _choose(self, file: File) -> bytes:
        if self._loss.data == "dropped" or not file.pending:
            return file.durable
        if self._loss.data == "kept":
            return bytes(file.cached)
        random = self._random
        content = bytearray(file.durable)
        for change in file.pending:
            if not change.mapped and random.random() < 0.7:
                _apply(content, change if random.random() < 0.6 else self._torn(content, change, SECTOR))
        size = random.choice([len(content), len(content), len(file.durable), len(file.cached)])
        content = content[:size] + bytes(max(0, size - len(content)))
        self._store(content, [change for change in file.pending if change.mapped])
        return bytes(content)

    def _store(self, content: bytearray, stores: list[Change]) -> None:
        """Each slot of a map holds one of the versions it had, or is torn between two of them."""
        if stores and len(content) >= HINTS.stop:
            content[HINTS] = self._random.randbytes(HINTS.stop - HINTS.start)
        for position in sorted({store.position for store in stores}):
            versions = [store for store in stores if store.position == position]
            chosen = self._random.choice([None, *versions, *versions[-2:]])
            if chosen is not None and len(content) >= position + len(chosen.data or b""):
                _apply(content, chosen)
                if self._random.random() < 0.2:
                    _apply(content, self._torn(content, self._random.choice(versions), WORD))

    def _torn(self, content: bytearray, change: Change, unit: int) -> Change:
        """The change without some of its sectors, where what was there before stays."""
        if change.data is None:
            return change
        start, end = change.position, change.position + len(change.data)
        before = content[start:end] + bytes(end - max(start, len(content)) if end > len(content) else 0)
        mixed = bytearray(change.data)
        for at in range(start - start % unit, end, unit):
            if self._random.random() < 0.5:
                lo, hi = max(at, start) - start, min(at + unit, end) - start
                mixed[lo:hi] = before[lo:hi]
        return Change(start, bytes(mixed), change.mapped)


def write_tree(tree: Tree, path: Path) -> dict[str, int]:
    """Make the tree real, in a new directory; returns the inode of each file, by its path in the tree."""
    inodes: dict[str, int] = {}
    _write(tree, os.fspath(path), "", inodes)
    return inodes


def fingerprint(tree: Tree) -> int:
    """A number that tells two trees apart."""
    return hash(
        tuple((name, child if isinstance(child, bytes) else fingerprint(child)) for name, child in sorted(tree.items()))
    )


def read_tree(path: str | Path) -> Tree:
    """The tree that a directory holds."""
    return {entry.name: read_tree(entry.path) if entry.is_dir() else _read(entry.path) for entry in os.scandir(path)}


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _write(tree: Tree, path: str, prefix: str, inodes: dict[str, int]) -> None:
    os.mkdir(path)
    for name, child in tree.items():
        if isinstance(child, bytes):
            fd = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(fd, child)
            inodes[f"{prefix}{name}"] = os.fstat(fd).st_ino
            os.close(fd)
        else:
            _write(child, f"{path}/{name}", f"{prefix}{name}/", inodes)


def _apply(content: bytearray, change: Change) -> None:
    position, data, _ = change
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
    else:
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data


def _enter(entries: dict[str, File | Directory], entry: Entry) -> None:
    if entry.node is None:
        entries.pop(entry.name, None)
    else:
        entries[entry.name] = entry.node


def _tree(directory: Directory) -> Tree:
    return {
        name: bytes(node.cached) if isinstance(node, File) else _tree(node)
        for name, node in sorted(directory.cached.items())
    }


def _paths(directory: Directory, prefix: str = "") -> Iterator[tuple[str, File | Directory]]:
    for name, node in directory.cached.items():
        yield prefix + name, node
        if isinstance(node, Directory):
            yield from _paths(node, f"{prefix}{name}/")


def _nodes(root: Directory) -> Iterator[File | Directory]:
    yield root
    for _, node in _paths(root):
        yield node
