"""The job as its handler sees it, and its progress and log on the way to the server."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._json import dumps
from ._settlement import bounded

MAX_PROGRESS = 4 * 1024
MAX_LOG = 8 * 1024
MAX_LINE = 2 * 1024


@dataclass(frozen=True)
class ClaimedJob:
    """A job of a claim: its facts, the exact text of its payload, and the lease on it."""

    lease: str
    id: str
    task: str
    payload_text: str
    queue: str = "default"
    key: str | None = None
    attempt: int = 1
    starts: int = 1
    fencing_token: str = ""
    triggers: int = 1
    first_at: str | None = None
    due_at: str | None = None
    started_at: str | None = None
    timeout: float | None = None
    traces: list[Mapping[str, Any]] = field(default_factory=list)


class Report:
    """The progress and the log of a running attempt. Handlers write, renewals read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: str | None = None
        self._lines: deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def set_progress(self, value: Any) -> None:
        """Replaces the progress. Raises ValueError where it is no JSON or above 4 KiB."""
        text = dumps(value)
        if len(text) > MAX_PROGRESS:
            raise ValueError(f"the progress has {len(text)} bytes, the limit is {MAX_PROGRESS}")
        self._progress = text

    def add_line(self, line: str) -> None:
        """Adds a line, and drops the oldest above 8 KiB."""
        line = bounded(line, MAX_LINE)
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            while self._size > MAX_LOG:
                self._size -= len(self._lines.popleft())
                self._dropped += 1

    def read(self) -> tuple[str | None, list[str], int]:
        """Returns the progress, the lines, and a mark for `delivered`."""
        with self._lock:
            return self._progress, list(self._lines), self._dropped + len(self._lines)

    def delivered(self, mark: int) -> None:
        """Removes the lines that a call of `read` returned."""
        with self._lock:
            while self._lines and self._dropped < mark:
                self._size -= len(self._lines.popleft())
                self._dropped += 1


class _Facts:
    """What both kinds of jobs have in common."""

    def __init__(self, claimed: ClaimedJob, report: Report) -> None:
        self.id = claimed.id
        self.task = claimed.task
        self.queue = claimed.queue
        self.key = claimed.key
        self.attempt = claimed.attempt
        self.starts = claimed.starts
        self.fencing_token = claimed.fencing_token
        self.triggers = claimed.triggers
        self.first_at = claimed.first_at
        self.due_at = claimed.due_at
        self.started_at = claimed.started_at
        self.timeout = claimed.timeout
        self.traces = claimed.traces
        self.payload_text = claimed.payload_text
        self._report = report

    def progress(self, value: Any) -> None:
        """Publishes the progress: any JSON up to 4 KiB, replacing the earlier one.

        The worker sends it with its next renewal. Raises ValueError and TypeError.
        """
        self._report.set_progress(value)

    def log(self, line: str) -> None:
        """Adds a line to the attempt's log, of which the newest 8 KiB are kept."""
        self._report.add_line(str(line))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, task={self.task!r}, starts={self.starts})"


class Job(_Facts):
    """The job that a handler of a `Worker` runs.

    Attributes:
        id, task, queue, key: the job, its task, its queue and its debounce key (or None).
        attempt: the number of this attempt, from 1.
        starts: the number of starts, those included that spent no attempt.
        fencing_token: unique to this attempt, and begins with `starts`.
        triggers: the number of triggers that this run covers.
        first_at, due_at, started_at: times of the server (RFC 3339, UTC).
        timeout: the seconds that the attempt may take, or None.
        traces: the trace contexts of its triggers: `traceparent` and `tracestate`.
        payload_text: the exact JSON text of the payload.
        cancelled: set when the handler should stop: the lease is lost, the job was cancelled,
            its time is over, or the worker shuts down. What the handler then reports is dropped,
            except a success during the shutdown.

    Example:
        >>> def resize(payload, job):
        ...     for n, size in enumerate(payload["sizes"]):
        ...         if job.cancelled.is_set():
        ...             return
        ...         job.progress({"done": n})
    """

    def __init__(self, claimed: ClaimedJob, report: Report) -> None:
        super().__init__(claimed, report)
        self.cancelled = threading.Event()


class AsyncJob(_Facts):
    """The job that a handler of an `AsyncWorker` runs: as `Job`, with an `asyncio.Event`.

    The worker also cancels the handler's task when it sets `cancelled`.
    """

    def __init__(self, claimed: ClaimedJob, report: Report) -> None:
        super().__init__(claimed, report)
        self.cancelled = asyncio.Event()
