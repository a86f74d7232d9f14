"""Finds the application: which module, which attribute, and what is wrong with it."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rebuilder.app import Rebuilder
from rebuilder.errors import DefinitionError, RebuilderError

_HOW = '--app module:attr, REBUILDER_APP, or app = "module:attr" under [tool.rebuilder] in pyproject.toml'


@dataclass(frozen=True, slots=True)
class Named:
    """The text ``module:attr`` and who gave it."""

    text: str
    source: str


def find_application(option: str | None) -> Named | None:
    """Who names the application, the first of the option, the environment and the project file."""
    if option:
        return Named(option, "--app")
    if text := os.environ.get("REBUILDER_APP"):
        return Named(text, "REBUILDER_APP")
    return _of_project(Path("pyproject.toml"))


def _of_project(path: Path) -> Named | None:
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DefinitionError(f"{path} cannot be read: {error}.", hint="mend it, or pass --app module:attr") from error
    text = settings.get("tool", {}).get("rebuilder", {}).get("app")
    if text is None:
        return None
    if not isinstance(text, str) or not text:
        raise DefinitionError(f"[tool.rebuilder] app in {path} is {text!r}; it must be a text.",
                              hint='write app = "module:attr"')
    return Named(text, str(path))


def load_application(named: Named | None) -> Rebuilder:
    """Import the application. Raises :class:`~rebuilder.errors.DefinitionError` with what Python said."""
    if named is None:
        raise DefinitionError("No application is named, and the projections are defined in its code.",
                              hint=f"name it by {_HOW}")
    module_name, colon, attribute = named.text.partition(":")
    if not (colon and module_name and attribute):
        raise DefinitionError(f"The application is {named.text!r} (from {named.source}); it must be module:attr.",
                              hint="as in --app shop.projections:rebuilder")
    found: Any = _import(module_name, named.source)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            there = sorted(name for name, value in vars(sys.modules[module_name]).items()
                           if isinstance(value, Rebuilder))
            hint = f"--app {module_name}:{there[0]}" if there else f"make a Rebuilder in {module_name}"
            raise DefinitionError(f"Module {module_name!r} has no attribute {attribute!r} (from {named.source}).",
                                  hint=hint) from error
    if not isinstance(found, Rebuilder):
        raise DefinitionError(f"{named.text} (from {named.source}) is a {type(found).__name__}, not a Rebuilder.",
                              hint="name the object that Rebuilder(...) made")
    return found


def _import(name: str, source: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except RebuilderError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise DefinitionError(
                f"The application's module {name!r} (from {source}) was not found: {error}. Looked in "
                f"{', '.join(path or '.' for path in sys.path)}.",
                hint="run this where the module can be imported, or install the application in this environment",
                module=name, path=list(sys.path)) from error
        raise _broken(name, source, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, source, error) from error


def _broken(name: str, source: str, error: BaseException) -> DefinitionError:
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        # The innermost line of the application's own: where it called the library that raised.
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())] or frames
        where = f"{own[-1].filename}, line {own[-1].lineno}"
    return DefinitionError(
        f"The application's module {name!r} (from {source}) cannot be imported: {type(error).__name__}: {error} "
        f"({where}). sys.path begins with {', '.join(path or '.' for path in sys.path[:3])}.",
        hint=f"mend it until `python -c 'import {name}'` works; REBUILDER_DEBUG=1 shows the traceback", module=name)
