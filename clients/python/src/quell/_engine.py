"""The engine of both workers: threads that claim, renew, settle and watch deadlines.

The requests of each kind have a thread of their own, so that a slow one delays no other. All
decisions are `WorkerState`'s; the engine calls it under one lock and holds no lock during I/O.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from typing import Callable

from ._attempt import Attempt, NewRun, Pending, Renewal
from ._calls import WorkerCalls
from ._retry import Backoff
from ._settlement import RELEASED, Settlement
from ._state import WorkerState
from .errors import QuellError, Refused

log = logging.getLogger("quell")

REFUSED_CONTENT = (400, 413, 422)
"""The statuses of requests whose content is at fault: a repeat would fail the same way."""
OUTAGES = (401, 403, 408, 429, 502, 503, 504)
"""The statuses of a server that is away, overloaded, or refuses the token."""


class Engine:
    """One worker's threads. `new_run` makes a handler's run, which reports to `ended`."""

    def __init__(
        self, calls: WorkerCalls, state: WorkerState, new_run: NewRun, on_end: Callable[[], None]
    ) -> None:
        self._calls, self._state = calls, state
        self._new_run, self._on_end = new_run, on_end
        self._tasks: Collection[str] = ()
        self._lock = threading.Lock()
        self._slot_free = threading.Condition(self._lock)
        self._settle_due = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._claiming = False
        self.refused: Refused | None = None
        """Why the server refuses the very first claim, such as an unknown task: the worker ends."""

    def start(self, tasks: Collection[str]) -> None:
        """Starts the threads. They are daemons: they never keep a process from its exit."""
        self._tasks = tasks
        self._claiming = True
        for name, loop in (
            ("claim", self._claim_loop),
            ("renew", self._renew_loop),
            ("settle", self._settle_loop),
            ("watch", self._watch),
        ):
            self._spawn(name, loop)

    def stop(self, now: bool = False) -> None:
        """Begins the graceful shutdown, with `now` without a grace. Returns at once."""
        with self._lock:
            first = not self._state.stopping
            self._state.stop(time.monotonic())
            if now:
                self._state.cut_grace()
            self._stopping.set()
            self._slot_free.notify_all()
            self._changed.notify_all()
        if first:
            self._spawn("leave", self._leave_loop)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the worker has ended, and returns whether it has."""
        return self._ended.wait(timeout)

    def ended(self, attempt: Attempt, settlement: Settlement) -> None:
        """Takes the end of a handler."""
        with self._lock:
            self._state.ended(attempt, settlement, time.monotonic())
            self._slot_free.notify()
            self._settle_due.notify()
            if self._state.stopping:
                self._changed.notify()

    # Claims

    def _claim_loop(self) -> None:
        backoff, is_first = Backoff(), True
        try:
            while (limit := self._wait_for_slots()) > 0:
                sent_at = time.monotonic()
                try:
                    idle = not self._claim(limit)
                except QuellError as error:
                    if is_first and isinstance(error, Refused):
                        self.refused = error
                        self.stop(now=True)
                        return
                    level = logging.ERROR if isinstance(error, Refused) else logging.WARNING
                    log.log(level, "claim failed, backing off: %s", error)
                    self._stopping.wait(max(backoff.next(), error.retry_after or 0.0))
                    continue
                except Exception:
                    log.exception("claim failed, backing off")
                    self._stopping.wait(backoff.next())
                    continue
                is_first = False
                if idle and time.monotonic() - sent_at < 1.0:
                    # A server that shuts down answers at once. Do not spin until it has gone.
                    self._stopping.wait(backoff.next())
                else:
                    backoff.reset()
        finally:
            with self._lock:
                self._claiming = False
                self._changed.notify()

    def _wait_for_slots(self) -> int:
        """Returns the number of free slots as soon as there is one, or 0 after `stop`."""
        with self._lock:
            while not self._state.stopping:
                if (free := self._state.free()) > 0:
                    return free
                self._slot_free.wait(1.0)
            return 0

    def _claim(self, limit: int) -> bool:
        """Claims, and returns whether any job started."""
        jobs = self._calls.claim(self._tasks, limit, self._busy())
        with self._lock:
            attempts = self._state.claimed(jobs, self._new_run, time.monotonic())
            self._changed.notify()
            self._settle_due.notify()
        return any([self._start(attempt) for attempt in attempts])

    def _start(self, attempt: Attempt) -> bool:
        try:
            if attempt.run is not None:
                attempt.run.start()
            return True
        except Exception:
            log.exception("cannot start a handler, releasing job %s", attempt.job.id)
            self.ended(attempt, RELEASED)
            return False

    # Renewals

    def _renew_loop(self) -> None:
        wait = self._state.renew_interval
        backoff = Backoff()
        while not self._closed.wait(wait):
            started = time.monotonic()
            with self._lock:
                batches = self._state.renewals()
            failures = [error for batch in batches if (error := self._renew(batch))]
            took = time.monotonic() - started
            if failures:
                log.warning("renewal failed, backing off: %s", failures[0])
                wait = min(backoff.next(), self._state.renew_interval)
            else:
                backoff.reset()
                wait = max(0.0, self._state.renew_interval - took)

    def _renew(self, batch: list[Renewal]) -> Exception | None:
        sent_at = time.monotonic()
        try:
            states = self._calls.renew([one.text for one in batch], self._busy())
        except QuellError as error:
            if error.status in REFUSED_CONTENT:
                with self._lock:
                    self._state.renewal_refused(batch)
            return error
        except Exception as error:
            log.exception("renewal failed")
            return error
        with self._lock:
            lost = self._state.renewed(batch, states, sent_at)
        for attempt in lost:
            log.warning("lost the lease of job %s, cancelling its handler", attempt.job.id)
        self._cancel(lost)
        return None

    # Settlements

    def _settle_loop(self) -> None:
        backoff = Backoff()
        while not self._closed.is_set():
            with self._lock:
                now = time.monotonic()
                if not (batch := self._state.settlements(now)):
                    self._settle_due.wait(self._state.settle_after(now))
                    continue
            try:
                self._settle(batch)
                backoff.reset()
            except QuellError as error:
                log.warning("settlement failed, backing off: %s", error)
                if (error.status or 0) < 400 or error.status in OUTAGES:
                    self._closed.wait(max(backoff.next(), error.retry_after or 0.0))
                else:
                    self._settle_in_parts(batch, error)
            except Exception:
                log.exception("settlement failed, backing off")
                self._closed.wait(backoff.next())

    def _settle_in_parts(self, batch: list[Pending], error: QuellError) -> None:
        with self._lock:
            if error.status not in REFUSED_CONTENT:
                self._state.settlements_failed(batch, time.monotonic())
                return
            dropped = self._state.settlements_refused(batch, error.message)
            self._changed.notify()
        self._log_dropped(dropped)

    def _log_dropped(self, dropped: Iterable[Pending]) -> None:
        for pending in dropped:
            log.error("dropped the settlement of job %s", pending.attempt.job.id)

    def _settle(self, batch: list[Pending]) -> None:
        answers = self._calls.settle([one.text for one in batch])
        for pending in batch:
            answer = answers.get(pending.attempt.job.lease)
            if answer is not None and answer.became == "refused":
                log.info("settlement of job %s refused: lease over", pending.attempt.job.id)
            elif answer is not None and answer.why:
                log.warning("settlement of job %s not taken: %s", pending.attempt.job.id, answer.why)
        with self._lock:
            dropped = self._state.settled(batch, answers, time.monotonic())
            self._slot_free.notify()
            self._changed.notify()
        self._log_dropped(dropped)

    # Deadlines, and the shutdown

    def _watch(self) -> None:
        try:
            while not self._is_finished():
                self._cancel(self._wait_for_due())
        finally:
            self._close()

    def _wait_for_due(self) -> Iterable[Attempt]:
        with self._lock:
            now = time.monotonic()
            if not (cancelled := self._state.due(now)):
                self._changed.wait(max(0.0, self._state.next_due(now) - now))
                cancelled = self._state.due(time.monotonic())
            self._settle_due.notify()
        for attempt in cancelled:
            log.warning(
                "cancelling the handler of job %s: %s",
                attempt.job.id,
                "lease expired"
                if attempt.lost
                else "shutdown"
                if attempt.cancelling
                else "timeout",
            )
        return cancelled

    def _cancel(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            try:
                if attempt.run is not None:
                    attempt.run.cancel()
            except Exception:
                log.exception("cannot cancel the handler of job %s", attempt.job.id)

    def _is_finished(self) -> bool:
        with self._lock:
            return self._state.finished(self._claiming, time.monotonic())

    def _close(self) -> None:
        with self._lock:
            self._closed.set()
            self._settle_due.notify_all()
            if self._state.unsettled:
                log.error("%d settlements undelivered: leases expire", self._state.unsettled)
        try:
            self._leave()
        finally:
            self._calls.close()
            self._ended.set()
            self._on_end()

    def _leave_loop(self) -> None:
        """Leaves until no claim is in flight: one may reach the server after the first leave."""
        while not self._closed.is_set():
            self._leave()
            with self._lock:
                if not self._claiming:
                    return
            self._closed.wait(0.5)

    def _leave(self) -> None:
        try:
            self._calls.leave()
        except Exception as error:
            log.info("leave failed: %s", error)

    def _busy(self) -> int:
        with self._lock:
            return self._state.busy

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=f"quell-{name}", daemon=True).start()
