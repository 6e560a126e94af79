"""User-defined code as part of the key of a simulation's draws.

Draws are of the functions and classes that were given, and of what these name, so that an edit
elsewhere moves none. Python's own library, installed packages and fedpriv are left out.
"""

from __future__ import annotations

import inspect
import secrets
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from fedpriv.datasets.digests import fingerprint
from fedpriv.hashes import document_sha256

_DEEPEST = 24
_MOST_ITEMS = 1000  # a larger container is data, whose digest is in the key by itself
_INSTALLED = {"site-packages", "dist-packages"}
_PYTHON = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[1])


def describe_code(parts: Iterable[Any]) -> list[Any]:
    """Return what tells trained code from other code, as JSON values.

    Of user-defined functions and classes these are the instructions, what they enclose, defaults,
    attributes and the globals that they name, and so on; of a library's and of fedpriv's the name.

    Guarantees:
        * Equal values are of equal code, as far as it is reached by names. Where something is met
          whose value is not known (a large container, a generator, a user-written module that is
          named as a whole, `globals()`), fresh entropy is among them, so that no two are equal.

    Args:
        parts: Functions, classes, partial functions and callable objects.
    """
    described = _Description()
    found = [described.of(part, 0) for part in parts if part is not None]
    return found if described.whole else [*found, secrets.token_hex(16)]


def _own(file: str | None) -> Path | None:
    """Return a file's path if it is neither installed, nor Python's own or fedpriv's."""
    if file is None or not file.endswith(".py") or not Path(file).is_file():
        return None
    path = Path(file).resolve()
    if _INSTALLED & set(path.parts) or any(path.is_relative_to(one) for one in _PYTHON):
        return None
    return path


class _Description:
    """Describes objects by their values and code.

    Attributes:
        whole: Whether equal descriptions are of equal objects. It is False once something was met
            that is not known by its value, such as a generator or a large container.
    """

    def __init__(self) -> None:
        self._open = set[int]()
        self.whole = True

    def of(self, value: Any, depth: int) -> Any:
        """Return the substitute of an object, as JSON values."""
        if type(value) in _PLAIN or isinstance(value, np.generic | np.dtype | Path):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, np.ufunc):
            return f"numpy.{value.__name__}"
        if type(value).__module__.startswith("torch"):
            import torch

            if isinstance(value, torch.Tensor):
                bytes_of = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                return f"{value.dtype} {tuple(value.shape)} {fingerprint(bytes_of)}"
            if isinstance(value, torch.dtype):
                return repr(value)
        if isinstance(value, np.ndarray):
            return self._unknown(value) if value.dtype.hasobject else fingerprint(value)
        if id(value) in self._open:  # such as a function that names itself
            return type(value).__name__
        if depth > _DEEPEST:
            return self._unknown(value)
        self._open.add(id(value))
        found = self._parts(value, depth + 1)
        self._open.remove(id(value))
        return found

    def _unknown(self, value: Any) -> str:
        self.whole = False
        return type(value).__name__

    def _module(self, module: ModuleType) -> str:
        """Return a module's name; what a user-written one holds is not known."""
        if _own(getattr(module, "__file__", None)) is not None:
            self.whole = False
        return module.__name__

    def _parts(self, value: Any, depth: int) -> Any:
        if type(value) is partial:
            return self._all((value.func, value.args, value.keywords), depth)
        if isinstance(value, MethodType):
            return self._all((value.__func__, value.__self__), depth)
        if type(value) in _CONTAINERS:
            items = list(value.items() if isinstance(value, Mapping) else value)
            if len(items) > _MOST_ITEMS:
                self.whole = False
                return [type(value).__name__, len(items)]
            found = self._all(items, depth)
            found = sorted(found, key=repr) if isinstance(value, set | frozenset) else found
            return [type(value).__name__, found]
        if inspect.isfunction(value):
            return self._function(value, depth)
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self.of(value.__func__, depth)]
        if isinstance(value, property):
            return self._all((value.fget, value.fset, value.fdel), depth)
        if inspect.isclass(value):
            return self._class(value, depth)
        if isinstance(value, _COMPILED):
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, ModuleType | type):
                self.whole &= type(owner).__module__.startswith("torch")  # as torch.relu has one
            return _name(value)
        return self._instance(value, depth)

    def _instance(self, value: Any, depth: int) -> Any:
        """Return an object's class, and its state as `copy.copy` would take it."""
        name = self._class(type(value), depth)
        if hasattr(value, "user_code"):  # a task that was made
            return [name, *self._all(value.user_code, depth)]
        if is_fedprivs(type(value)):
            return name
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # such as of a cache
            return [name, self.of(wrapped, depth)]
        try:
            state = value.__reduce_ex__(2)
        except Exception:  # a lock, a generator, a file
            return [name, self._unknown(value)]
        if isinstance(state, str):
            return [name, self._unknown(value)]
        items = [list(one) if isinstance(one, Iterator) else one for one in state]
        return [name, *self._all(items, depth)]

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
        file, source = _source(function)
        if file is None and source is None:  # a library's, perhaps around a user-written one
            return [_name(function), *self._all(given, depth)] if given else _name(function)
        given += [function.__defaults__, function.__kwdefaults__]
        known, named = function.__globals__, _names(function.__code__)
        # What a function names counts as if it were enclosed.
        given += [known[name] for name in sorted(named) if name in known]
        self.whole &= not named & _OUT_OF_SIGHT
        given += [{n: v for n, v in vars(function).items() if n != "__wrapped__"}]
        code = [_instructions(function.__code__), source]
        return [function.__qualname__, code, self._all(given, depth)]

    def _class(self, kind: type, depth: int) -> Any:
        """Return the name of a class of a library's, and more of a user-written one."""
        file, source = _source(kind)
        if is_fedprivs(kind) or (file is None and source is None):
            return _name(kind)
        held = {
            n: v
            for n, v in vars(kind).items()
            if n not in _OF_EVERY_CLASS and not inspect.ismemberdescriptor(v)
        }
        return [kind.__qualname__, source, self._all((*kind.__bases__, held), depth)]


def _source(code: Any) -> tuple[Path | None, str | None]:
    """Return the user-written file that code is in, or its source where that is no file.

    The latter is so in a notebook; code of a library's has neither.
    """
    module = sys.modules.get(code.__module__)  # None: executed under a name of no module
    file = getattr(module, "__file__", None)
    if file is not None and Path(file).is_file() and not _is_executed(code):
        return _own(file), None
    made = getattr(code, "__code__", None)
    built_in = module is not None and file is None and code.__module__ != "__main__"
    if built_in and made is None and not _is_of_python(code):
        return None, None
    try:
        return None, inspect.getsource(code)
    except (OSError, TypeError):  # typed into a console, or executed
        return None, _name(code) if made is None else _instructions(made)


_PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes, slice, range, type(...)])
_COMPILED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType,
             ClassMethodDescriptorType, MethodWrapperType)  # fmt: skip
_CONTAINERS = (dict, list, tuple, set, frozenset, OrderedDict, MappingProxyType)
_OF_EVERY_CLASS = frozenset([
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__",
    "__qualname__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__slotnames__",
])  # fmt: skip
#: By which a function reaches what its code does not name.
_OUT_OF_SIGHT = frozenset({"globals", "locals", "vars", "eval", "exec", "__import__", "open",
                           "import_module", "getenv", "environ"})  # fmt: skip


def _is_of_python(kind: Any) -> bool:
    """Return whether a class is of a class statement, and not of compiled code."""
    held = vars(kind)
    return bool({"__weakref__", "__slots__"} & set(held)) or any(
        map(inspect.isfunction, held.values())
    )


def _is_executed(code: Any) -> bool:
    """Return whether a function or class is of a text that is no file, whatever module it names."""
    functions = [code, *(vars(code).values() if inspect.isclass(code) else ())]
    made = [one.__code__ for one in functions if inspect.isfunction(one)]
    return bool(made) and made[0].co_filename.startswith("<string")


def _instructions(code: CodeType) -> str:
    """Return a digest of a function's instructions, names and constants."""
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    own: list[Any] = [code.co_code.hex(), *code.co_names, "/", *code.co_varnames, "/"]
    own += [*code.co_freevars, *arguments, code.co_exceptiontable.hex()]
    for one in code.co_consts:
        if isinstance(one, CodeType):
            own.append(_instructions(one))
        else:  # a set of constants is in no order
            own.append(sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one))
    return document_sha256(own)


def _names(code: CodeType) -> set[str]:
    """Return the global names in a function's code and in those within it."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names}.union(*inner)


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', None)}.{kind.__qualname__}"


def is_fedprivs(kind: Any) -> bool:
    """Return whether a function or class is fedpriv's own."""
    module = kind.__module__ or ""  # None where code was executed under no module's name
    return module.partition(".")[0] == "fedpriv"
