"""User-defined code as part of a key: of a trial's, or of a simulation's draws.

A trial's has whole files, so that an edit makes it another one: those in which functions and
classes are defined, and the modules that these import, and so on. Python's own library, installed
packages and fedpriv are left out. Nothing is imported. Draws are of the functions and classes that
were given alone, so that an edit elsewhere moves none.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, MethodType
from typing import Any

import numpy as np

from fedpriv.datasets.digests import fingerprint
from fedpriv.hashes import document_sha256, file_sha256

_DEEPEST = 8
_MOST_ITEMS = 1000  # a larger container is data, whose digest is in the key by itself
_INSTALLED = {"site-packages", "dist-packages"}
_PYTHON = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[1])


def describe_code(parts: Iterable[Any]) -> list[Any]:
    """Return what tells functions and classes from others, as JSON values.

    Of a function that is in a file: its name, instructions, what it encloses and its defaults; of
    a class its name. What they call elsewhere is not looked at.

    Args:
        parts: As of `CodeReader.document`.
    """
    described = _Description(set())
    return [described.of(part, 0) for part in parts if part is not None]


class CodeReader:
    """Describes user-written code; reads each file once."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[str, frozenset[Path]]] = {}

    def document(self, parts: Iterable[Any]) -> dict[str, Any]:
        """Return what tells code from other code, as JSON values.

        Args:
            parts: Functions, classes, partial functions and callable objects. What they enclose,
                have as defaults or as attributes counts too; fedpriv's own count by their names.
        """
        found: set[Path] = set()
        described = _Description(found)
        code = [described.of(part, 0) for part in parts if part is not None]
        files = sorted([path.name, self._file(path)[0]] for path in self._imported(found))
        return {"code": code, **({"files": files} if files else {})}

    def _imported(self, paths: set[Path]) -> set[Path]:
        """Return files, and those that they import, and so on."""
        found, left = set[Path](), list(paths)
        while left:
            path = left.pop()
            if path not in found:
                found.add(path)
                left += self._file(path)[1]
        return found

    def _file(self, path: Path) -> tuple[str, frozenset[Path]]:
        """Return a file's digest, and the files that it imports itself."""
        if path not in self._read:
            self._read[path] = file_sha256(path), frozenset(_imports(path))
        return self._read[path]


def _imports(path: Path) -> Iterator[Path]:
    """Yield the user-written files that a file imports itself, anywhere in it."""
    package, folder = list[str](), path.parent
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # it is none that Python has loaded
        return
    for node in ast.walk(tree):
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
        for name in names:
            yield from _files_of(name, folder)


def _files_of(module: str, folder: Path) -> Iterator[Path]:
    """Yield the user-written files of a module and the packages around it, as far as there are."""
    places, name = [*sys.path, str(folder)], ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            return
        if (own := _own(spec.origin)) is not None:
            yield own
        if spec.submodule_search_locations is None:
            return
        places = list(spec.submodule_search_locations)


def _own(file: str | None) -> Path | None:
    """Return a file's path if it is neither installed, nor Python's own or fedpriv's."""
    if file is None or not file.endswith(".py") or not Path(file).is_file():
        return None
    path = Path(file).resolve()
    if _INSTALLED & set(path.parts) or any(path.is_relative_to(one) for one in _PYTHON):
        return None
    return path


class _Description:
    """Describes objects, and collects the files that their code is in."""

    def __init__(self, files: set[Path]) -> None:
        self._files, self._open = files, set[int]()

    def of(self, value: Any, depth: int) -> Any:
        """Return what stands for an object, as JSON values."""
        if value is None or isinstance(value, bool | int | float | str | bytes | Path):
            return repr(value)
        if isinstance(value, np.ndarray):
            return str(value.dtype) if value.dtype.hasobject else fingerprint(value)
        if depth > _DEEPEST or id(value) in self._open:  # such as a function that names itself
            return type(value).__name__
        self._open.add(id(value))
        found = self._parts(value, depth + 1)
        self._open.remove(id(value))
        return found

    def _parts(self, value: Any, depth: int) -> Any:
        if isinstance(value, partial):
            return self._all((value.func, value.args, value.keywords), depth)
        if isinstance(value, MethodType):
            return self._all((value.__func__, value.__self__), depth)
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            items = list(value.items() if isinstance(value, Mapping) else value)
            if len(items) > _MOST_ITEMS:
                return [type(value).__name__, len(items)]
            found = self._all(items, depth)
            return sorted(found, key=repr) if isinstance(value, set | frozenset) else found
        if inspect.isfunction(value):
            return self._function(value, depth)
        if inspect.isclass(value):
            return self._class(value, depth)
        name = self._class(type(value), depth)
        if hasattr(value, "user_code"):  # a task that was made
            return [name, *self._all(value.user_code, depth)]
        if is_fedprivs(type(value)):
            return name
        if type(value).__module__.startswith("torch.nn."):  # a loss, with its options
            return [name, repr(value)]
        if is_dataclass(value):
            return [name, *self._all([getattr(value, f.name) for f in fields(value)], depth)]
        known = getattr(value, "__dict__", None)
        return name if isinstance(name, str) else [name, self.of(known, depth)]

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.of(value, depth) for value in values]

    def _function(self, function: Any, depth: int) -> Any:
        if is_fedprivs(function):
            return _name(function)
        given = list[Any]()
        for cell in function.__closure__ or ():
            try:
                given.append(cell.cell_contents)
            except ValueError:  # empty so far
                continue
        file, source = self._source(function)
        if file is None and source is None:  # a library's, perhaps around a user-written one
            return [_name(function), *self._all(given, depth)] if given else _name(function)
        given += [function.__defaults__, function.__kwdefaults__]
        if source is not None:  # in no file: what it names counts as if it were enclosed
            known = function.__globals__
            given += [known[name] for name in sorted(_names(function.__code__)) if name in known]
        code = _instructions(function.__code__) if source is None else source
        return [function.__qualname__, code, self._all(given, depth)]

    def _class(self, kind: type, depth: int) -> Any:
        """Return the name of a class of a library's, and more of a user-written one."""
        file, source = self._source(kind)
        if file is None and source is None:
            return _name(kind)
        methods = (
            [] if source is None else [f for f in vars(kind).values() if inspect.isfunction(f)]
        )
        return [kind.__qualname__, source, self._all((*kind.__bases__, *methods), depth)]

    def _source(self, code: Any) -> tuple[Path | None, str | None]:
        """Return the user-written file that code is in, or its source where that is no file.

        The latter is so in a notebook; code of a library's has neither.
        """
        module = sys.modules.get(code.__module__)  # None: executed under a name of no module
        file = getattr(module, "__file__", None)
        if module is not None and file is None and code.__module__ != "__main__":  # built in
            return None, None
        if file is not None and Path(file).is_file():
            if (own := _own(file)) is not None:
                self._files.add(own)
            return own, None
        try:
            return None, inspect.getsource(code)
        except (OSError, TypeError):  # typed into a console, or executed
            made = getattr(code, "__code__", None)
            return None, _name(code) if made is None else _instructions(made)


def _instructions(code: CodeType) -> str:
    """Return a digest of a function's instructions, names and constants."""
    own = [code.co_code.hex(), *code.co_names]
    own += [
        _instructions(one) if isinstance(one, CodeType) else repr(one)
        for one in code.co_consts
        if not isinstance(one, frozenset)  # in no order
    ]
    return document_sha256(own)


def _names(code: CodeType) -> set[str]:
    """Return the global names in a function's code and in those within it."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names}.union(*inner)


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_fedprivs(kind: Any) -> bool:
    """Return whether a function or class is fedpriv's own."""
    module = kind.__module__ or ""  # None where code was executed under no module's name
    return module.partition(".")[0] == "fedpriv"
