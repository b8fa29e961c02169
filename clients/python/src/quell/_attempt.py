"""An attempt of this worker, and what waits to be sent about it. Plain data.

`WorkerState` owns these records; the engine starts and cancels the runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Protocol

from ._job import ClaimedJob, Report


class Run(Protocol):
    """A handler's run: a thread or a task. The engine starts and cancels it."""

    def start(self) -> None:
        """Starts the handler; its end is reported to the engine."""

    def cancel(self) -> None:
        """Signals the handler to stop. May be called before `start`, and more than once."""


@dataclass(eq=False)
class Attempt:
    """One job that this worker started, until its handler has ended and its end is recorded."""

    job: ClaimedJob
    expires: float
    deadline: float | None
    report: Report = field(default_factory=Report)
    decided: bool = False
    """Whether its end is decided: a later report of the handler is dropped."""
    cancelling: bool = False
    """Whether the shutdown has cancelled it; what it returns or raises does not count then."""
    lost: bool = False
    bare: bool = False
    """Whether the server refused its progress or log, so that renewals leave them out."""
    run: Run | None = None


@dataclass(eq=False)
class Pending:
    """A settlement that the server has not acknowledged."""

    attempt: Attempt
    text: str
    permanent: bool
    """Whether it makes the job dead."""
    drop_at: float
    size: int
    """The most settlements of a request with it: fewer after each request that failed."""
    failures: int = 0
    due: float = 0.0
    replaced: bool = False


@dataclass(eq=False)
class Renewal:
    """One lease of a renewal request, and the mark of the log lines that it carries."""

    attempt: Attempt
    text: str
    mark: int


NewRun = Callable[[Attempt], Run]
"""Makes the run of an attempt without starting it."""
