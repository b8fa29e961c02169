"""When to repeat a request: backoff with jitter, and only where a repeat is safe.

I/O-free: both clients and the worker sleep for the delays that this module returns.
"""

from __future__ import annotations

import random

from .errors import QuellError, Unavailable, UnknownOutcome

MIN_DELAY = 0.1
MAX_DELAY = 5.0


class Backoff:
    """Exponential backoff from 100 ms to 5 s with equal jitter."""

    def __init__(self) -> None:
        self._failures = 0

    def next(self) -> float:
        """Returns the seconds to wait after one more failure."""
        delay = min(MAX_DELAY, MIN_DELAY * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Starts again at 100 ms, after a success."""
        self._failures = 0


class Retries:
    """The retries of one request, within `budget` seconds of `now`.

    A request that is not `repeatable` is repeated only while it surely had no effect. A `read`
    has no effect, so its outcome is never unknown.
    """

    def __init__(self, repeatable: bool, read: bool, budget: float, now: float) -> None:
        self._repeatable = repeatable or read
        self._read = read
        self._until = now + budget
        self._backoff = Backoff()
        self._unknown = False

    def delay(self, error: QuellError, now: float) -> float | None:
        """Returns the seconds until the next try, or None where `failure` is to be raised."""
        unknown = isinstance(error, UnknownOutcome)
        self._unknown = self._unknown or unknown
        if not (isinstance(error, Unavailable) or (unknown and self._repeatable)):
            return None
        delay = max(self._backoff.next(), error.retry_after or 0.0)
        return delay if now + delay < self._until else None

    def failure(self, error: QuellError) -> QuellError:
        """Returns the error to raise: any try of unknown outcome makes the whole unknown."""
        if not isinstance(error, (Unavailable, UnknownOutcome)):
            return error
        kind = UnknownOutcome if self._unknown and not self._read else Unavailable
        if isinstance(error, kind):
            return error
        return kind(
            error.message, kind=error.kind, field=error.field, status=error.status, id=error.id
        )
