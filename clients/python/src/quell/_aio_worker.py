"""The worker whose handlers are tasks of an event loop.

It uses the engine of the threads, so that a handler that blocks the event loop delays no renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Iterator
from typing import Any, Callable, TypeVar

from . import _settlement
from ._attempt import Attempt, Run
from ._engine import Engine
from ._http import Transport
from ._job import AsyncJob
from ._json import loads
from ._settlement import RELEASED, Settlement
from ._worker import SIGNALS, Settings, add_handler

log = logging.getLogger("quell")

AsyncHandler = Callable[[Any, AsyncJob], Awaitable[Any]]
H = TypeVar("H", bound=AsyncHandler)


class AsyncWorker:
    """Claims jobs and runs their handlers as tasks of an event loop.

    A lost lease, a cancelled job and a timeout cancel the handler's task. The slot stays in use
    until the task has ended.

    Example:
        >>> worker = quell.worker(slots=100)
        >>> @worker.task("fetch")
        ... async def fetch(payload, job):
        ...     return {"ok": True}
        >>> await worker.run()
    """

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self._handlers: dict[str, AsyncHandler] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._signals: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._settings = settings
        self._engine = settings.engine(transport, self._new_run, self._on_end)

    @property
    def name(self) -> str:
        """The worker's name, as the server lists it."""
        return self._settings.name

    def task(self, name: str) -> Callable[[H], H]:
        """Registers the handler of a task: ``async def handler(payload, job)``.

        Outputs and exceptions are those of `Worker.task`.
        """

        def register(handler: H) -> H:
            called = getattr(handler, "__call__", handler)  # noqa: B004 - an object's own method
            if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)):
                raise TypeError(f"the handler of {name!r} is not async: use Quell.worker")
            add_handler(self._handlers, name, handler, self._loop is not None)
            return handler

        return register

    async def run(self) -> None:
        """Works until `stop`, or in the main thread until SIGTERM or SIGINT.

        The first signal begins the graceful shutdown, a second one ends at once with SystemExit.
        Cancelling `run` cancels the handlers, releases their jobs and ends without a grace.

        Raises `Refused` where the server refuses the first claim: an unknown task, a wrong token.
        """
        with self._catch_signals():
            await self.start()
            try:
                await self.join()
            except asyncio.CancelledError:
                self._engine.stop(now=True)
                await self.join()
                raise
        if len(self._signals) > 1:
            raise SystemExit(128 + self._signals[1])
        if self._engine.refused:
            raise self._engine.refused

    async def start(self) -> None:
        """Starts to work on the running event loop and returns. A worker starts once."""
        if self._loop is not None:
            raise RuntimeError("the worker was started before: make a new one")
        if not self._handlers:
            raise RuntimeError("the worker has no tasks: register one with @worker.task(name)")
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._engine.start(tuple(self._handlers))

    def stop(self) -> None:
        """Begins the graceful shutdown and returns. Safe in any thread, and repeatable."""
        self._engine.stop()

    async def join(self) -> None:
        """Waits until the worker has ended."""
        if self._end is None:
            raise RuntimeError("the worker was not started")
        await self._end.wait()
        for task in self._tasks:
            task.cancel()

    def _new_run(self, attempt: Attempt) -> Run:
        return _TaskRun(attempt, self._handlers, self._engine, self)

    def _on_end(self) -> None:
        if self._loop is not None and self._end is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                self._loop.call_soon_threadsafe(self._end.set)

    def has_ended(self) -> bool:
        """Returns whether the worker has ended, gracefully or by a second signal."""
        return self._end is not None and self._end.is_set()

    def call_in_loop(self, function: Callable[[], None]) -> None:
        """Calls a function in the worker's event loop. Raises RuntimeError after its end."""
        if self._loop is None:
            raise RuntimeError("the worker was not started")
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: no handler can run any more
            self._engine.stop(now=True)
            raise

    def keep(self, task: asyncio.Task[None]) -> None:
        """Owns a handler's task until it has ended: the event loop keeps only weak references."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_signal(self, number: int) -> None:
        log.info("signal %d: shutting down", number)
        self._signals.append(number)
        if len(self._signals) > 1 and self._end is not None:
            self._end.set()
        else:
            self.stop()

    @contextlib.contextmanager
    def _catch_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def on_signal(number: int, _: object) -> None:
            loop.call_soon_threadsafe(self._on_signal, number)

        before = {one: signal.signal(one, on_signal) for one in SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler if handler is not None else signal.SIG_DFL)


class _TaskRun:
    """One handler as a task. The engine's threads call it; all else happens in the loop."""

    def __init__(
        self,
        attempt: Attempt,
        handlers: dict[str, AsyncHandler],
        engine: Engine,
        worker: AsyncWorker,
    ) -> None:
        self._attempt, self._handlers, self._engine = attempt, handlers, engine
        self._worker = worker
        self._job: AsyncJob | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    def start(self) -> None:
        self._worker.call_in_loop(self._start)

    def cancel(self) -> None:
        self._worker.call_in_loop(self._cancel)

    def _start(self) -> None:
        self._job = AsyncJob(self._attempt.job, self._attempt.report)
        name = f"quell-{self._job.task}-{self._job.id}"
        self._task = asyncio.get_running_loop().create_task(self._run(self._job), name=name)
        self._worker.keep(self._task)
        if self._cancelled:
            self._cancel()

    def _cancel(self) -> None:
        self._cancelled = True
        if self._job is not None and self._task is not None:
            self._job.cancelled.set()
            self._task.cancel()

    async def _run(self, job: AsyncJob) -> None:
        settlement = RELEASED
        try:
            settlement = await self._call(job)
        finally:
            self._engine.ended(self._attempt, settlement)

    async def _call(self, job: AsyncJob) -> Settlement:
        try:
            payload = loads(job.payload_text)
            return _settlement.succeeded(await self._handlers[job.task](payload, job))
        except GeneratorExit:
            raise  # the event loop is closed
        except asyncio.CancelledError as error:
            # Not a failure where the program cancelled the task, as asyncio.run does at its end.
            return RELEASED if self._is_cancelled() else _settlement.raised(error)
        except BaseException as error:  # SystemExit ends a handler, never the worker
            return _settlement.raised(error)

    def _is_cancelled(self) -> bool:
        # Python 3.11 counts the cancellations of a task; before, only the worker's are known.
        cancelling = getattr(self._task, "cancelling", None)
        asked = cancelling is not None and cancelling() > 0
        return self._cancelled or self._worker.has_ended() or asked
