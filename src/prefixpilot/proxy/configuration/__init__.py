"""Settings as frozen dataclasses, read once from flags, the environment and one TOML file, and printed again.

A field is a key of the file, a variable of the environment and a flag; a field that is itself a dataclass is a table.
A new section of settings is one dataclass with an ``Attributes:`` docstring, and nothing else.
"""

from prefixpilot.proxy.configuration.loading import Loaded, Sources, load
from prefixpilot.proxy.configuration.printing import as_toml
from prefixpilot.proxy.configuration.schema import Setting, schema
from prefixpilot.proxy.configuration.values import Secret

__all__ = ["Loaded", "Secret", "Setting", "Sources", "as_toml", "load", "schema"]
