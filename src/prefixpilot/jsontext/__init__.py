"""JSON as the text it came in: edits are put into it, every other character stays as it was written. Pure."""

from prefixpilot.jsontext.edits import Edit, InsertElement, Permute, Pointer, RemoveMember, SetMember, SetText
from prefixpilot.jsontext.known import KnownElements
from prefixpilot.jsontext.naming import kind_of, written
from prefixpilot.jsontext.text import JsonText, NoObjectError, UnreadableError

__all__ = [
    "Edit",
    "InsertElement",
    "JsonText",
    "KnownElements",
    "NoObjectError",
    "Permute",
    "Pointer",
    "RemoveMember",
    "SetMember",
    "SetText",
    "UnreadableError",
    "kind_of",
    "written",
]
