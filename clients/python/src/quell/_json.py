"""JSON without loss: exact texts of payloads and outputs beside their decoded values.

Python's floats cannot hold every JSON number (`1e400`, twenty decimals). So the client keeps the
exact text, and `RawJson` sends one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn


class RawJson:
    """An exact JSON text, to send as a payload or to return as an output.

    Raises ValueError where the text is not JSON, or cannot be written as UTF-8.

    Example:
        >>> RawJson('{"amount": 0.10000000000000000001}').text
        '{"amount": 0.10000000000000000001}'
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        _scan_all(text)
        text.encode()
        self.text = text

    def __repr__(self) -> str:
        return f"RawJson({self.text!r})"


def written(text: str) -> RawJson:
    """Returns a text that this package wrote or split off itself, without a second scan."""
    raw = object.__new__(RawJson)
    raw.text = text
    return raw


def dumps(value: Any) -> str:
    """Writes JSON in ASCII. Raises ValueError for NaN and infinity, TypeError for other types."""
    if isinstance(value, RawJson):
        return value.text
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def write_object(members: Mapping[str, Any]) -> str:
    """Writes an object whose values may be `RawJson`, without the members that are None."""
    written = (
        f"{dumps(key)}:{dumps(value)}" for key, value in members.items() if value is not None
    )
    return "{" + ",".join(written) + "}"


def loads(text: str) -> Any:
    """Reads JSON. An integer longer than Python's limit on digits becomes a `Decimal`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_integer)


def _integer(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:
        return Decimal(text)


def _skip_number(_: str) -> None:
    """Leaves numbers undecoded, so that a scan cannot fail on their length."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(
    parse_int=_skip_number, parse_float=_skip_number, parse_constant=_no_constant
).raw_decode
_skip_space = re.compile(r"[ \t\n\r]*").match


def _after_space(text: str, at: int) -> int:
    match = _skip_space(text, at)
    return match.end() if match else at


def _scan_all(text: str) -> None:
    _, end = _decode(text, _after_space(text, 0))
    if _after_space(text, end) != len(text):
        raise ValueError("text after the end of the JSON value")


def _expect(text: str, at: int, characters: str) -> str:
    found = text[at : at + 1]
    if not found or found not in characters:
        raise ValueError(f"expected one of {characters!r} at {at}, found {found!r}")
    return found


def raw_members(text: str) -> dict[str, str]:
    """Splits a JSON object into the exact texts of its members. Raises ValueError."""
    members: dict[str, str] = {}
    at = _after_space(text, 0)
    _expect(text, at, "{")
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "}":
        return members
    while True:
        _expect(text, at, '"')
        key, at = _decode(text, at)
        at = _after_space(text, at)
        _expect(text, at, ":")
        start = _after_space(text, at + 1)
        _, end = _decode(text, start)
        members[key] = text[start:end]
        at = _after_space(text, end)
        if _expect(text, at, ",}") == "}":
            return members
        at = _after_space(text, at + 1)


def raw_items(text: str) -> list[str]:
    """Splits a JSON array into the exact texts of its items. Raises ValueError."""
    items: list[str] = []
    at = _after_space(text, 0)
    _expect(text, at, "[")
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "]":
        return items
    while True:
        _, end = _decode(text, at)
        items.append(text[at:end])
        at = _after_space(text, end)
        if _expect(text, at, ",]") == "]":
            return items
        at = _after_space(text, at + 1)
