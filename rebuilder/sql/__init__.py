"""The words we say: named, described queries in ``*.sql`` files, and statement builders in ``ddl``.

A file is a sequence of blocks. Each begins with a line ``-- name: description`` (the name in lower case, with
underscores); what follows up to the next such line is the query. Other comments are ordinary SQL comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import LiteralString

_HEADER = re.compile(r"^-- ([a-z][a-z0-9_]*): (.+)$")


@cache
def load(name: str) -> Mapping[str, LiteralString]:
    """The queries of ``<name>.sql`` by name.

    They count as literals: the files are part of the package, as if they stood in a module.
    """
    text = files(__package__ or "rebuilder.sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            if header[1] in blocks:
                raise ValueError(f"{name}.sql has two queries called {header[1]!r}.")
            current = blocks[header[1]] = []
        elif current is not None:
            current.append(line)
    return MappingProxyType({key: "\n".join(lines).strip() for key, lines in blocks.items()})
