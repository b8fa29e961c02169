"""The client for threads."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from . import _api
from ._duration import Duration, to_seconds
from ._http import Call, Transport
from ._retry import Retries
from ._trigger import Receipt, Result, Trigger
from ._worker import Settings, Worker
from .errors import QuellError

DEFAULT_URL = "http://127.0.0.1:7777"


class Connection:
    """A server and the settings of its requests, for both clients."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        timeout: float,
        retry_for: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._url = url or os.environ.get("QUELL_SERVER") or DEFAULT_URL
        self._token = token or os.environ.get("QUELL_TOKEN")
        self._ssl_context = ssl_context
        self._timeout, self._retry_for = timeout, retry_for
        self.transport = self.new_transport()

    def new_transport(self) -> Transport:
        """Makes a pool of connections of its own, as each worker has one."""
        return Transport(self._url, self._token, self._ssl_context)

    def retries(self, request: _api.Request[Any]) -> Retries:
        """Begins the retries of a request."""
        return Retries(request.repeatable, request.read, self._retry_for, time.monotonic())

    def exchange(self, request: _api.Request[_api.T], call: Call | None = None) -> _api.T:
        """Sends a request once."""
        timeout = self._timeout + request.wait
        text = self.transport.exchange(request.method, request.path, request.body, timeout, call)
        return request.answer(text)


class Quell:
    """A client of a Quell server. Threads may share it.

    Args:
        url: the server; by default the variable `QUELL_SERVER`, else ``http://127.0.0.1:7777``.
        token: the bearer token; by default the variable `QUELL_TOKEN`.
        timeout: seconds that a request may take without progress.
        retry_for: seconds for which a failed request is repeated, where that is safe; 0 for none.
        ssl_context: for ``https``, in place of the default one.

    Every method raises a `QuellError`: `Unavailable` where the server stays away, `Refused` where
    it refuses the request. A trigger raises `UnknownOutcome` where its answer is lost and it has
    neither an `idempotency_key` nor a `dedup` key that outlives a repeat.

    Example:
        >>> quell = Quell("http://127.0.0.1:7777")
        >>> receipt = quell.trigger("resize", {"id": 1}, delay="10s")
        >>> quell.result(receipt.job, wait=30).output
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        retry_for: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._connection = Connection(url, token, timeout, retry_for, ssl_context)

    def __enter__(self) -> Quell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Workers have their own."""
        self._connection.transport.close()

    def trigger(
        self,
        task: str,
        payload: Any = None,
        *,
        delay: Duration | None = None,
        run_at: str | datetime | None = None,
        priority: int | None = None,
        partition: str | None = None,
        dedup: str | None = None,
        dedup_ttl: Duration | None = None,
        dedup_until: str | None = None,
        debounce: None | bool | Mapping[str, Duration] = None,
        idempotency_key: str | None = None,
        trace: None | str | Mapping[str, Any] = None,
    ) -> Receipt:
        """Triggers a task once; `Trigger` documents the options.

        Example:
            >>> quell.trigger("resize", {"id": 1}, delay=10, idempotency_key="upload-1")
        """
        one = Trigger(
            payload,
            delay,
            run_at,
            priority,
            partition,
            dedup,
            dedup_ttl,
            dedup_until,
            debounce,
            idempotency_key,
            trace,
        )
        return self._send(_api.trigger(task, one))

    def trigger_many(
        self,
        task: str,
        triggers: Sequence[Trigger],
        *,
        dedup: str | None = None,
        dedup_ttl: Duration | None = None,
        dedup_until: str | None = None,
    ) -> list[Receipt]:
        """Triggers a task up to 10,000 times; the batch is accepted whole or not at all.

        A `dedup` key of the batch makes the whole batch count once.

        Example:
            >>> quell.trigger_many("resize", [Trigger({"id": 1}), Trigger({"id": 2}, delay=5)])
        """
        triggers = list(triggers)
        return self._send(_api.trigger_many(task, triggers, dedup, dedup_ttl, dedup_until))

    def result(self, job: str, wait: Duration = 0) -> Result:
        """Returns the result of a job: when it has ended, or after `wait` (seconds or a text).

        Look at `Result.ended`; a job that has not ended raises nothing.
        """
        until = time.monotonic() + to_seconds(wait)
        while True:
            left = max(0.0, until - time.monotonic())
            result = self._send(_api.result(job, left))
            if result.ended or time.monotonic() >= until:
                return result

    def job(self, job: str) -> dict[str, Any]:
        """Returns a job with its attempts, and while it runs its progress (`running`)."""
        return self._send(_api.job(job))

    def explain(self, key: str, task: str | None = None) -> dict[str, Any]:
        """Returns the newest job of a debounce key, and why it ran when it did."""
        return self._send(_api.explain(key, task))

    def cancel(self, job: str) -> str:
        """Cancels a job that waits or runs, and returns its state.

        Raises `Refused` for a job that has ended, `NotFound` for one that does not exist.
        """
        return self._send(_api.cancel(job))

    def flush(self, task: str, key: str) -> str:
        """Makes the open window of a key due now, and returns its job. Raises `NotFound`."""
        return self._send(_api.window(task, key, "flush"))

    def cancel_window(self, task: str, key: str) -> str:
        """Cancels the open window of a key, and returns its job. Raises `NotFound`."""
        return self._send(_api.window(task, key, "cancel"))

    def worker(
        self, slots: int = 8, name: str | None = None, lease: Duration = 30, grace: Duration = 30
    ) -> Worker:
        """Makes a worker of pull tasks, which `run` or `start` starts.

        Args:
            slots: the number of jobs at once.
            name: the worker's name, unique to the process; by default host, pid and random text.
            lease: how long a job waits for another worker after this one died (1 s to 1 h).
            grace: the time that running handlers have to end in a shutdown.
        """
        settings = Settings(slots, name, lease, grace)
        return Worker(self._connection.new_transport(), settings)

    def _send(self, request: _api.Request[_api.T]) -> _api.T:
        retries = self._connection.retries(request)
        while True:
            try:
                return self._connection.exchange(request)
            except QuellError as error:
                delay = retries.delay(error, time.monotonic())
                if delay is None:
                    raise retries.failure(error) from error.__cause__
            time.sleep(delay)
