"""What is wrong with a value: one error for each kind, raised where it is made.

::

    InvalidValue
    ├── InvalidName
    ├── InvalidSource
    ├── InvalidCheckpoint
    ├── InvalidRequest
    ├── InvalidTransition
    ├── InvalidDocument          documents, and pages and places of their inventory
    ├── InvalidSnapshot
    ├── InvalidShard
    ├── InvalidManifest
    └── InvalidIndexCheckpoint
"""

from __future__ import annotations

from rebuilder.errors import InvalidValue


class InvalidName(InvalidValue):
    """A projection's or a shard's name is not one."""

    code = "invalid-name"


class InvalidSource(InvalidValue):
    """A log's incarnation, position or fingerprint is not one."""

    code = "invalid-source"


class InvalidCheckpoint(InvalidValue):
    """A checkpoint is not one, or runs backwards."""

    code = "invalid-checkpoint"


class InvalidRequest(InvalidValue):
    """A request for a rebuild is not one."""

    code = "invalid-request"


class InvalidTransition(InvalidValue):
    """A ticket has no such step in its stage."""

    code = "invalid-transition"


class InvalidDocument(InvalidValue):
    """A document's key or value is not one."""

    code = "invalid-document"


class InvalidSnapshot(InvalidValue):
    """A snapshot is not one."""

    code = "invalid-snapshot"


class InvalidShard(InvalidValue):
    """A shard of an archive is not one."""

    code = "invalid-shard"


class InvalidManifest(InvalidValue):
    """A manifest's shards do not fit together."""

    code = "invalid-manifest"


class InvalidIndexCheckpoint(InvalidValue):
    """A checkpoint over an archive's shards is not one."""

    code = "invalid-index-checkpoint"
