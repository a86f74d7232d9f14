"""Enumerations as conditions of SQL."""

from __future__ import annotations

from enum import StrEnum


def one_of(column: str, words: type[StrEnum]) -> str:
    """A CHECK that a column is one of an enumeration's words, and not NULL (which a plain IN lets through)."""
    return f"{column} IS NOT NULL AND {column} IN ({', '.join(repr(str(word)) for word in words)})"
