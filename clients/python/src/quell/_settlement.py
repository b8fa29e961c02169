"""How an attempt ends: the exceptions that handlers raise, and the settlement of each.

Invariant: every settlement that this module builds can be written as UTF-8 and is within the
server's limits, whatever the handler returned or raised.
"""

from __future__ import annotations

import traceback
from typing import Any

from ._duration import Duration, above_zero, to_text
from ._json import dumps, write_object, written

MAX_OUTPUT = 256 * 1024
MAX_ERROR = 16 * 1024


class Outcome(Exception):
    """The base of the exceptions with which a handler ends its attempt in its own way."""


class Permanent(Outcome):
    """The job cannot succeed: it is dead at once, without further attempts."""


class Retry(Outcome):
    """The attempt failed; the next one starts after `delay` instead of the task's backoff.

    Args:
        delay: seconds, a `timedelta` or a text such as ``"30s"``.
        message: the error to record.
    """

    def __init__(self, delay: Duration, message: str = "the handler asked for a retry") -> None:
        super().__init__(message)
        self.delay = above_zero(delay)


class Snooze(Outcome):
    """The job runs again after `delay`, and no attempt is spent."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = above_zero(delay)


class Cancel(Outcome):
    """The job is cancelled, with a reason."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Settlement:
    """One ending of an attempt: an outcome and its fields."""

    def __init__(self, outcome: str, **fields: Any) -> None:
        self.outcome = outcome
        self._fields = fields

    @property
    def permanent(self) -> bool:
        """Whether it makes the job dead."""
        return bool(self._fields.get("permanent"))

    def text(self, lease: str, log: list[str] | None = None) -> str:
        """Writes it for a lease. `log` is the lines that no renewal has delivered."""
        fields = dict(self._fields)
        if log:
            fields["log"] = log
        return write_object({"lease": lease, "outcome": self.outcome, **fields})


RELEASED = Settlement("released")


def timed_out(timeout: float) -> Settlement:
    """Returns the end of an attempt that took longer than its `timeout` in seconds."""
    error = f"the attempt timed out after {to_text(timeout)}"
    return Settlement("failed", error=error, permanent=False, timed_out=True)


def failed(error: str, permanent: bool = False, retry_in: str | None = None) -> Settlement:
    """Returns the end of an attempt that failed with a text."""
    fields: dict[str, Any] = {"error": bounded(error, MAX_ERROR), "permanent": permanent}
    return Settlement("failed", **fields, retry_in=retry_in, timed_out=False)


def succeeded(output: Any) -> Settlement:
    """Returns the end of an attempt whose handler returned `output`.

    An output that is not JSON fails the attempt, and one that is too large fails it for good.
    """
    if output is None:
        return Settlement("succeeded")
    try:
        text = dumps(output)
    except Exception as error:  # dumps runs code of the output's own types
        return failed(f"the output is not JSON: {_summary(error)}")
    if (length := len(text.encode())) > MAX_OUTPUT:
        # The server's words for the same failure.
        size = f"output has {length} bytes, the limit is {MAX_OUTPUT}"
        cure = "keep it elsewhere and return where it is"
        return failed(f"the worker's output cannot be kept: {size}: {cure}", permanent=True)
    return Settlement("succeeded", output=written(text))


def raised(error: BaseException) -> Settlement:
    """Returns the end of an attempt whose handler raised `error`."""
    if isinstance(error, Snooze):
        return Settlement("snoozed", delay=error.delay)
    if isinstance(error, Cancel):
        return Settlement("cancelled", reason=bounded(error.reason, MAX_ERROR))
    if isinstance(error, Retry):
        return failed(_message(error), retry_in=error.delay)
    if isinstance(error, Permanent):
        return failed(_message(error), permanent=True)
    # The outermost frame is the worker's own.
    handler = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return failed(_stack(error.with_traceback(handler or error.__traceback__)))


def bounded(text: str, limit: int) -> str:
    """Cuts the middle out of a long text, and replaces what UTF-8 cannot hold."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[…]\n{text[-limit // 2 :]}"


def _message(error: BaseException) -> str:
    """Returns the text of one of Quell's own exceptions, with the cause that it was raised from."""
    text = str(error) or type(error).__name__
    return f"{text}\n{_stack(error.__cause__)}" if error.__cause__ is not None else text


def _summary(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _stack(error: BaseException) -> str:
    """Returns the exception's own line first, as dead jobs are grouped by it, then its stack."""
    try:
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return f"{_summary(error)}\n{stack}".rstrip()
    except Exception:  # an exception whose own methods fail
        return type(error).__name__
