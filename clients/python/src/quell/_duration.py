"""Durations and times between Python and the wire: `10s`, `1h30m`, RFC 3339."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Union

Duration = Union[str, int, float, timedelta]
"""A number of seconds, a `timedelta`, or a text such as ``250ms``, ``10s`` or ``1h30m``."""

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(d|h|ms|m|s|us|ns)")


def to_text(duration: Duration) -> str:
    """Writes a duration for the server, rounded to microseconds.

    Raises ValueError for a negative duration, and for infinity and NaN.
    """
    if isinstance(duration, str):
        return duration
    seconds = to_seconds(duration)
    micros = round(seconds * 1e6)
    if micros % 1_000_000 == 0:
        return f"{micros // 1_000_000}s"
    return f"{micros // 1000}ms" if micros % 1000 == 0 else f"{micros}us"


def above_zero(duration: Duration) -> str:
    """Writes a duration where the server refuses zero: the shortest one is a millisecond."""
    text = to_text(duration)
    return "1ms" if text == "0s" else text


def to_seconds(duration: Duration) -> float:
    """Reads a duration as seconds. Raises ValueError where it is malformed or negative."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _parse(duration)
    else:
        seconds = float(duration)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{duration!r} is no duration: give a finite one of at least zero")
    return seconds


def _parse(text: str) -> float:
    total, at = 0.0, 0
    while match := _PART.match(text, at):
        total += float(match[1]) * _UNITS[match[2]]
        at = match.end()
    if at == 0 or text[at:].strip():
        raise ValueError(f"{text!r} is no duration: give a text such as 250ms, 10s or 1h30m")
    return total


def time_text(time: str | datetime) -> str:
    """Writes a time as RFC 3339 in UTC. Raises ValueError for a time without a zone."""
    if isinstance(time, str):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone: pass one, such as timezone.utc")
    return time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
