"""The one exception tree.

::

    PrefixPilotError
    ├── InvalidInputError (ValueError)     something the caller gave is wrong: names field and remedy
    │   ├── ConfigError                    a setting
    │   ├── InvalidRequestError            a request, a context block, a chat body
    │   ├── TraceError                     a line of a file
    │   └── EventError                     a batch of an engine's cache events
    ├── InvariantError (AssertionError)    a structure of ours is broken: a bug
    ├── MissingExtraError (ImportError)    an optional dependency is not installed: names the install line
    ├── EngineError (RuntimeError)         an engine that we start or call did not do its part
    └── RetrieverError (RuntimeError)      an index or a search server failed: names what and the remedy
"""

from __future__ import annotations


class PrefixPilotError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidInputError(PrefixPilotError, ValueError):
    """Input that cannot be used.

    Attributes:
        field: where it stands, as the caller would write it (``context_blocks[2].text``).
        reason: what is wrong with it.
        remedy: what to do instead.
    """

    def __init__(self, field: str, reason: str, remedy: str) -> None:
        self.field = field
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{field}: {reason}; {remedy}")

    def __reduce__(self) -> tuple[type[InvalidInputError], tuple[str, str, str]]:
        """So that it comes back whole from another process."""
        return type(self), (self.field, self.reason, self.remedy)


class ConfigError(InvalidInputError):
    """A setting that cannot be used."""


class InvalidRequestError(InvalidInputError):
    """A request, one of its context blocks, or a chat body that cannot be used."""


class TraceError(InvalidInputError):
    """A workload file, or one line of it, that cannot be used; ``field`` is ``file:line: name``."""


class EventError(InvalidInputError):
    """A batch of an engine's cache events that cannot be read; ``field`` is the place in its payload."""


class InvariantError(PrefixPilotError, AssertionError):
    """A structure of ours does not hold what it promises. Always a bug, never the caller's fault."""


class MissingExtraError(PrefixPilotError, ImportError):
    """An optional dependency is missing; the message is the line that installs it."""

    def __init__(self, package: str, install: str) -> None:
        self.package = package
        self.install = install
        super().__init__(f"{package} is not installed; run: {install}")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        """So that it comes back whole from another process."""
        return type(self), (self.package, self.install)


class EngineError(PrefixPilotError, RuntimeError):
    """An engine that we start or call did not do its part."""


class RetrieverError(PrefixPilotError, RuntimeError):
    """An index of a retriever, or the server behind it, failed; the message names it and the remedy."""
