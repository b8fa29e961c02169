"""The worker whose handlers run in threads, one thread for each job."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any, Callable, TypeVar

from . import _settlement
from ._attempt import Attempt, NewRun, Run
from ._calls import WorkerCalls
from ._duration import Duration, to_seconds
from ._engine import Engine
from ._http import Transport
from ._job import Job
from ._json import loads
from ._settlement import Settlement
from ._state import WorkerState
from ._wire import default_name

log = logging.getLogger("quell")

Handler = Callable[[Any, Job], Any]
H = TypeVar("H", bound=Handler)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Settings:
    """The checked settings of a worker."""

    def __init__(self, slots: int, name: str | None, lease: Duration, grace: Duration) -> None:
        self.slots = slots
        self.name = default_name() if name is None else name
        self.lease = to_seconds(lease)
        self.grace = to_seconds(grace)
        if slots < 1:
            raise ValueError(f"slots is {slots}: a worker needs at least one")
        if not re.fullmatch(r"[A-Za-z0-9_.:/-]{1,255}", self.name):
            rule = "give 1 to 255 letters, digits and _ - . : /"
            raise ValueError(f"{self.name!r} is no name of a worker: {rule}")
        if not 1 <= self.lease <= 3600:
            raise ValueError(f"the lease is {self.lease} s: the server takes 1 s to 1 h")

    def engine(self, transport: Transport, new_run: NewRun, on_end: Callable[[], None]) -> Engine:
        """Makes the engine of a worker with these settings."""
        calls = WorkerCalls(transport, self.name, self.slots, self.lease)
        return Engine(calls, WorkerState(self.slots, self.lease, self.grace), new_run, on_end)


class Worker:
    """Claims jobs and runs their handlers in threads; `Quell.worker` makes it.

    Example:
        >>> worker = quell.worker(slots=8)
        >>> @worker.task("resize")
        ... def resize(payload, job):
        ...     return {"ok": True}
        >>> worker.run()
    """

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self._handlers: dict[str, Handler] = {}
        self._started = False
        self._settings = settings
        self._engine = settings.engine(transport, self._new_run, lambda: None)

    @property
    def name(self) -> str:
        """The worker's name, as the server lists it."""
        return self._settings.name

    def task(self, name: str) -> Callable[[H], H]:
        """Registers the handler of a task: ``handler(payload, job)``.

        What it returns is the job's output: JSON up to 256 KiB, or None. An exception fails the
        attempt; `Permanent`, `Retry`, `Snooze` and `Cancel` end it otherwise.
        """

        def register(handler: H) -> H:
            if inspect.iscoroutinefunction(handler):
                raise TypeError(f"the handler of {name!r} is async: use AsyncQuell.worker")
            add_handler(self._handlers, name, handler, self._started)
            return handler

        return register

    def run(self) -> None:
        """Works until `stop`, or in the main thread until SIGTERM or SIGINT.

        The first signal begins the graceful shutdown: running handlers have the grace to end. A
        second one ends at once with SystemExit; the leases of running jobs then expire.

        Raises `Refused` where the server refuses the first claim: an unknown task, a wrong token.
        """
        with _catch_signals() as caught:
            self.start()
            stopped = False
            while not self._engine.join(0.1):
                if caught and not stopped:
                    log.info("signal %d: shutting down", caught[0])
                    stopped = True
                    self.stop()
                if len(caught) > 1:
                    raise SystemExit(128 + caught[1])
        if self._engine.refused:
            raise self._engine.refused

    def start(self) -> None:
        """Starts to work in threads of its own and returns. A worker starts once."""
        if self._started:
            raise RuntimeError("the worker was started before: make a new one")
        if not self._handlers:
            raise RuntimeError("the worker has no tasks: register one with @worker.task(name)")
        self._started = True
        self._engine.start(tuple(self._handlers))

    def stop(self) -> None:
        """Begins the graceful shutdown and returns. Safe in any thread, and repeatable."""
        self._engine.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end, at most `timeout` seconds, and returns whether it has come.

        Raises RuntimeError where the worker was not started.
        """
        if not self._started:
            raise RuntimeError("the worker was not started")
        return self._engine.join(timeout)

    def _new_run(self, attempt: Attempt) -> Run:
        return _ThreadRun(attempt, self._handlers, self._engine)


class _ThreadRun:
    """One handler in a thread of its own. Nothing can end the thread but the handler."""

    def __init__(self, attempt: Attempt, handlers: dict[str, Handler], engine: Engine) -> None:
        self._attempt, self._handlers, self._engine = attempt, handlers, engine
        self._job = Job(attempt.job, attempt.report)

    def start(self) -> None:
        name = f"quell-{self._job.task}-{self._job.id}"
        # A daemon, so that a handler that never returns cannot keep the process alive.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def cancel(self) -> None:
        self._job.cancelled.set()

    def _run(self) -> None:
        settlement = _settlement.failed("the handler's thread ended without a report")
        try:
            settlement = self._call()
        finally:
            self._engine.ended(self._attempt, settlement)

    def _call(self) -> Settlement:
        try:
            payload = loads(self._job.payload_text)
            return _settlement.succeeded(self._handlers[self._job.task](payload, self._job))
        except BaseException as error:  # SystemExit ends a handler, never the worker
            return _settlement.raised(error)


def add_handler(handlers: dict[str, Any], name: str, handler: Any, started: bool) -> None:
    """Registers a handler. Raises where the worker has started, or has one for the task."""
    if started:
        raise RuntimeError(f"the worker has started: register {name!r} before")
    if name in handlers:
        raise ValueError(f"the task {name!r} has a handler already")
    if len(handlers) == 100:
        raise ValueError("a worker runs at most 100 tasks")
    handlers[name] = handler


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collects signals while in the main thread, and restores the handlers afterwards.

    The handler only appends: taking a lock in it could deadlock with the code that it interrupts.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {one: signal.signal(one, lambda number, _: caught.append(number)) for one in SIGNALS}
    try:
        yield caught
    finally:
        for one, handler in before.items():
            signal.signal(one, handler if handler is not None else signal.SIG_DFL)
