"""The four requests of a worker. Each is sent once; the engine decides on repeats."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Callable

from . import _wire
from ._api import Request, T, path
from ._http import Transport
from ._job import ClaimedJob
from ._wire import Settled

SETTLE_TIMEOUT = 15.0
LEAVE_TIMEOUT = 3.0


class WorkerCalls:
    """The requests of one worker. All raise `QuellError`."""

    def __init__(self, transport: Transport, name: str, slots: int, lease: float) -> None:
        self._transport, self.name, self._lease = transport, name, lease
        self._process = _wire.Process(slots)

    def claim(self, tasks: Collection[str], limit: int, busy: int) -> list[ClaimedJob]:
        """Claims at most `limit` jobs, and waits for 20 s where none is due."""
        body = _wire.claim_body(tasks, limit, self._lease, self._process.facts(busy))
        return self._post("claim", body, _wire.CLAIM_WAIT + 10.0, _wire.read_claim)

    def renew(self, leases: Sequence[str], busy: int) -> dict[str, str]:
        """Renews leases, given as JSON texts, and returns the state of each."""
        body = _wire.renew_body(leases, self._lease, self._process.facts(busy))
        # Short, so that a lost renewal can be repeated while the lease lasts.
        return self._post("renew", body, min(max(self._lease / 2, 1.0), 10.0), _wire.read_states)

    def settle(self, settlements: Sequence[str]) -> dict[str, Settled]:
        """Settles jobs, given as JSON texts, and returns the answer to each, by lease."""
        body = _wire.settle_body(settlements)
        return self._post("settle", body, SETTLE_TIMEOUT, _wire.read_settled)

    def leave(self) -> None:
        """Ends the claims of this process that wait at the server."""
        body = f'{{"incarnation":{self._process.incarnation}}}'
        self._post("leave", body, LEAVE_TIMEOUT, lambda _: None)

    def close(self) -> None:
        """Closes the connections and ends the requests in flight."""
        self._transport.close()

    def _post(self, call: str, body: str, timeout: float, read: Callable[[str], T]) -> T:
        request = Request("POST", path("workers", self.name, call), read, body)
        return request.answer(self._transport.exchange("POST", request.path, body, timeout))
