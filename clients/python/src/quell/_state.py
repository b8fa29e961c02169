"""The state of a worker: slots, leases, deadlines and settlements that wait. I/O-free.

The engine calls it under its lock, with the current monotonic time, and does what it returns.
Invariants: a lease is settled at most once by decision of this module; a slot is free only after
its handler has ended; a settlement is kept until the server answers, or its attempt is long over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ._attempt import Attempt, NewRun, Pending, Renewal
from ._job import ClaimedJob
from ._settlement import RELEASED, Settlement, failed, timed_out
from ._wire import Settled, renewed_lease

MAX_BATCH = 1000
MAX_BATCH_BYTES = 512 * 1024
MAX_PENDING = 1000
"""The settlements that may wait before the worker claims no more."""
WIND_DOWN = 1.0
"""The seconds that handlers have to end after the shutdown has cancelled them."""
FLUSH = 5.0
"""The seconds that a shutdown goes on after the grace, to deliver the last settlements."""
RENEW_INTERVAL = 10.0
KEEP_LEASES = 10
KEEP_SECONDS = 600.0
"""A settlement is dropped this long, and this many leases, after its attempt's end."""
MIN_PAUSE, MAX_PAUSE = 0.1, 30.0
"""The seconds before a settlement that failed is repeated; doubled after each failure."""


class WorkerState:
    """All decisions of a worker. Times are monotonic seconds."""

    def __init__(self, slots: int, lease: float, grace: float) -> None:
        self._slots, self._lease, self._grace = slots, lease, grace
        self._running: dict[str, Attempt] = {}
        self._pending: dict[str, Pending] = {}
        self._stopped_at: float | None = None

    @property
    def busy(self) -> int:
        """The number of slots in use."""
        return len(self._running)

    @property
    def stopping(self) -> bool:
        """Whether the shutdown has begun."""
        return self._stopped_at is not None

    @property
    def unsettled(self) -> int:
        """The number of settlements that wait."""
        return len(self._pending)

    def free(self) -> int:
        """Returns the number of jobs to claim; 0 where none fits, or after `stop`."""
        if self.stopping or len(self._pending) >= MAX_PENDING:
            return 0
        return max(0, min(MAX_BATCH, self._slots - len(self._running)))

    def claimed(self, jobs: Iterable[ClaimedJob], new_run: NewRun, now: float) -> list[Attempt]:
        """Takes the jobs of a claim and returns the attempts to start.

        Jobs that come after `stop` are released.
        """
        started = []
        for job in jobs:
            deadline = None if job.timeout is None else now + job.timeout
            attempt = Attempt(job, now + self._lease, deadline)
            if self.stopping:
                self._settle(attempt, RELEASED, now)
                continue
            attempt.run = new_run(attempt)
            self._running[job.lease] = attempt
            started.append(attempt)
        return started

    def ended(self, attempt: Attempt, settlement: Settlement, now: float) -> None:
        """Records that a handler ended: its slot is free, its report is settled or dropped."""
        self._running.pop(attempt.job.lease, None)
        if attempt.decided:
            return
        if attempt.cancelling and settlement.outcome in ("succeeded", "failed"):
            # A handler that returns because it was told to stop has not done its work.
            settlement = RELEASED
        self._settle(attempt, settlement, now)

    def stop(self, now: float) -> None:
        """Begins the shutdown: the grace counts from the first call."""
        if self._stopped_at is None:
            self._stopped_at = now

    def cut_grace(self) -> None:
        """Ends the grace now, so that `due` cancels the handlers that still run."""
        self._grace = 0.0

    def due(self, now: float) -> list[Attempt]:
        """Decides what its time has come for, and returns the attempts to cancel."""
        cancelled = [one for one in self._running.values() if self._is_over(one, now)]
        kept = {lease: one for lease, one in self._pending.items() if now < one.drop_at}
        self._pending = kept
        return cancelled

    def _is_over(self, attempt: Attempt, now: float) -> bool:
        if attempt.decided:
            return False
        if now >= attempt.expires:
            attempt.decided = attempt.lost = True
            return True
        if attempt.deadline is not None and now >= attempt.deadline:
            self._settle(attempt, timed_out(attempt.job.timeout or 0.0), now)
            return True
        if self._stopped_at is None or now < self._stopped_at + self._grace:
            return False
        if not attempt.cancelling:
            attempt.cancelling = True
            return True
        if now >= self._stopped_at + self._grace + WIND_DOWN:
            self._settle(attempt, RELEASED, now)
        return False

    def next_due(self, now: float) -> float:
        """Returns when to call `due` next, at most a second from now."""
        return min(self._times(now), default=now + 1.0)

    def _times(self, now: float) -> Iterator[float]:
        yield now + 1.0
        if self._stopped_at is not None:
            for after in (0.0, WIND_DOWN, FLUSH):
                if (time := self._stopped_at + self._grace + after) > now:
                    yield time
        for attempt in self._running.values():
            if not attempt.decided:
                yield attempt.expires
                if attempt.deadline is not None:
                    yield attempt.deadline

    def finished(self, claiming: bool, now: float) -> bool:
        """Returns whether the shutdown is over: all is settled, or its time is.

        `claiming` is whether a claim is in flight, as it may bring jobs to release.
        """
        if self._stopped_at is None:
            return False
        end = self._stopped_at + self._grace
        handlers = self._running and now < end + WIND_DOWN
        work = handlers or self._pending or claiming
        return not work or now >= end + FLUSH

    @property
    def renew_interval(self) -> float:
        """The seconds between renewals."""
        return min(self._lease / 3, RENEW_INTERVAL)

    def renewals(self) -> list[list[Renewal]]:
        """Returns all leases to renew, in batches."""
        renewals = []
        for attempt in self._running.values():
            if attempt.decided:
                continue
            progress, lines, mark = attempt.report.read()
            if attempt.bare:
                progress, lines = None, []
            text = renewed_lease(attempt.job.lease, progress, lines)
            renewals.append(Renewal(attempt, text, mark))
        for pending in self._pending.values():
            if not pending.attempt.lost:
                text = renewed_lease(pending.attempt.job.lease, None, [])
                renewals.append(Renewal(pending.attempt, text, 0))
        batches = []
        while renewals:
            size = _batch_size([one.text for one in renewals])
            batches.append(renewals[:size])
            renewals = renewals[size:]
        return batches

    def renewed(
        self, batch: Sequence[Renewal], states: Mapping[str, str], sent_at: float
    ) -> list[Attempt]:
        """Takes the answer of a renewal, and returns the attempts to cancel.

        A lease counts from `sent_at`, the earliest time at which the server can have renewed it.
        """
        lost = []
        for renewal in batch:
            attempt = renewal.attempt
            state = states.get(attempt.job.lease)
            if state == "held":
                attempt.report.delivered(renewal.mark)
                attempt.expires = max(attempt.expires, sent_at + self._lease)
            elif state == "lost":
                attempt.lost = True
                if not attempt.decided and attempt.job.lease in self._running:
                    attempt.decided = True
                    lost.append(attempt)
        return lost

    def renewal_refused(self, batch: Sequence[Renewal]) -> None:
        """Leaves progress and log out of further renewals: the server refused a request."""
        for renewal in batch:
            renewal.attempt.bare = True

    def settlements(self, now: float) -> list[Pending]:
        """Returns the settlements of the next request; they stay until `settled`.

        One of a request that failed is sent with others of such requests only.
        """
        due = [one for one in self._pending.values() if one.due <= now]
        batch = [one for one in due if one.size == due[0].size]
        batch = batch[: batch[0].size] if batch else []
        return batch[: _batch_size([one.text for one in batch])]

    def settle_after(self, now: float) -> float:
        """Returns the seconds until a settlement is due, at most one."""
        return min([1.0, *(one.due - now for one in self._pending.values())])

    def settled(
        self, batch: Sequence[Pending], answers: Mapping[str, Settled], now: float
    ) -> list[Pending]:
        """Forgets the settlements that the server has taken or refused for good.

        One that is wrong is handled as if it was refused alone, and returned if it is dropped. One
        that the store failed for is repeated later.
        """
        dropped: list[Pending] = []
        for pending in batch:
            lease = pending.attempt.job.lease
            if (answer := answers.get(lease)) is None:
                continue
            if answer.became == "invalid":
                dropped += self.settlements_refused([pending], answer.why)
            elif answer.became == "unknown":
                self.settlements_failed([pending], now)
            else:
                self._pending.pop(lease, None)
        return dropped

    def settlements_failed(self, batch: Sequence[Pending], now: float) -> None:
        """Repeats settlements in halves, where a repeat of the request would fail as well.

        Each has a pause of its own, so that one that always fails holds up no other.
        """
        for pending in batch:
            pending.size = (len(batch) + 1) // 2
            pending.due = now + min(MAX_PAUSE, MIN_PAUSE * 2.0 ** min(pending.failures, 16))
            pending.failures += 1

    def settlements_refused(self, batch: Sequence[Pending], why: str) -> list[Pending]:
        """Sends settlements in halves, where the server refuses the content of the request.

        One that is refused alone becomes a failure that says so, and is dropped and returned if
        that is refused, too: its lease expires.
        """
        for pending in batch:
            pending.size = (len(batch) + 1) // 2
        if len(batch) > 1:
            return []
        (pending,) = batch
        lease = pending.attempt.job.lease
        if pending.replaced:
            self._pending.pop(lease, None)
            return [pending]
        error = failed(f"the server refused the settlement: {why}", pending.permanent)
        pending.text, pending.replaced = error.text(lease), True
        return []

    def _settle(self, attempt: Attempt, settlement: Settlement, now: float) -> None:
        assert not attempt.decided, "an attempt is settled once"
        attempt.decided = True
        _, lines, _ = attempt.report.read()
        lease = attempt.job.lease
        text, keep = settlement.text(lease, lines), max(KEEP_SECONDS, KEEP_LEASES * self._lease)
        self._pending[lease] = Pending(attempt, text, settlement.permanent, now + keep, MAX_BATCH)


def _batch_size(texts: Sequence[str]) -> int:
    """Returns how many of the first texts one request takes: at least one."""
    size = 0
    for index, text in enumerate(texts):
        size += len(text) + 1
        if index == MAX_BATCH or (size > MAX_BATCH_BYTES and index > 0):
            return index
    return len(texts)
