"""The errors of requests: one base class, and a subclass for each thing that a caller can do.

`_http` raises them from problem details and transport failures; `_retry` decides on them.
"""

from __future__ import annotations


class QuellError(Exception):
    """A request that failed.

    Attributes:
        kind: the server's word for it, such as ``invalid``, ``not_found`` or ``unavailable``;
            ``connection`` for failures of the transport.
        field: the field, parameter or header at fault, or None.
        message: what is wrong, for people.
        status: the HTTP status, or None without a response.
        id: the id under which the server's log has the error, or None.
        retry_after: the number of seconds after which the server wants a retry, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "connection",
        field: str | None = None,
        status: int | None = None,
        id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.field = field
        self.status = status
        self.id = id
        self.retry_after = retry_after

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        status = f", status {self.status}" if self.status else ""
        return f"{where}{self.message} ({self.kind}{status})"


class Unavailable(QuellError):
    """The server did nothing: it is unreachable, overloaded or without its store. Retry later."""


class UnknownOutcome(QuellError):
    """The request was sent and its answer is missing: it took effect, or it did not.

    Repeat a trigger only with the same `idempotency_key` or `dedup`.
    """


class ServerError(QuellError):
    """The server failed with a status that it should not send, such as 500. Its log has `id`.

    A trigger may have been accepted all the same.
    """


class Refused(QuellError):
    """The server refused the request, and nothing changed. The same request fails again."""


class NotFound(Refused):
    """The job, task or window does not exist (404)."""


class Unauthorized(Refused):
    """The token is missing or wrong (401), or lacks the right (403)."""
