"""The client for asyncio: the requests and the transport of `Quell`, run in a small thread pool.

Cancelling a task that waits for a request ends the request.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from . import _api
from ._aio_worker import AsyncWorker
from ._client import Connection
from ._duration import Duration, to_seconds
from ._http import Call
from ._trigger import Receipt, Result, Trigger
from ._worker import Settings
from .errors import QuellError

MAX_REQUESTS = 32
"""The requests that one client has in flight; further ones wait for a thread."""


class AsyncQuell:
    """A client of a Quell server for asyncio: `Quell` with the same arguments, and `await`.

    Example:
        >>> async with AsyncQuell() as quell:
        ...     receipt = await quell.trigger("resize", {"id": 1})
        ...     result = await quell.result(receipt.job, wait=30)
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
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, "quell-request")

    async def __aenter__(self) -> AsyncQuell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the requests in flight and closes the connections. Workers have their own."""
        self._connection.transport.close()
        self._threads.shutdown(wait=False)

    async def trigger(
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
        """As `Quell.trigger`."""
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
        return await self._send(_api.trigger(task, one))

    async def trigger_many(
        self,
        task: str,
        triggers: Sequence[Trigger],
        *,
        dedup: str | None = None,
        dedup_ttl: Duration | None = None,
        dedup_until: str | None = None,
    ) -> list[Receipt]:
        """As `Quell.trigger_many`."""
        triggers = list(triggers)
        return await self._send(_api.trigger_many(task, triggers, dedup, dedup_ttl, dedup_until))

    async def result(self, job: str, wait: Duration = 0) -> Result:
        """As `Quell.result`."""
        until = time.monotonic() + to_seconds(wait)
        while True:
            left = max(0.0, until - time.monotonic())
            result = await self._send(_api.result(job, left))
            if result.ended or time.monotonic() >= until:
                return result

    async def job(self, job: str) -> dict[str, Any]:
        """As `Quell.job`."""
        return await self._send(_api.job(job))

    async def explain(self, key: str, task: str | None = None) -> dict[str, Any]:
        """As `Quell.explain`."""
        return await self._send(_api.explain(key, task))

    async def cancel(self, job: str) -> str:
        """As `Quell.cancel`."""
        return await self._send(_api.cancel(job))

    async def flush(self, task: str, key: str) -> str:
        """As `Quell.flush`."""
        return await self._send(_api.window(task, key, "flush"))

    async def cancel_window(self, task: str, key: str) -> str:
        """As `Quell.cancel_window`."""
        return await self._send(_api.window(task, key, "cancel"))

    def worker(
        self, slots: int = 8, name: str | None = None, lease: Duration = 30, grace: Duration = 30
    ) -> AsyncWorker:
        """Makes a worker of pull tasks with async handlers; arguments as `Quell.worker`."""
        settings = Settings(slots, name, lease, grace)
        return AsyncWorker(self._connection.new_transport(), settings)

    async def _send(self, request: _api.Request[_api.T]) -> _api.T:
        retries = self._connection.retries(request)
        while True:
            try:
                return await self._exchange(request)
            except QuellError as error:
                delay = retries.delay(error, time.monotonic())
                if delay is None:
                    raise retries.failure(error) from error.__cause__
            await asyncio.sleep(delay)

    async def _exchange(self, request: _api.Request[_api.T]) -> _api.T:
        call = Call()
        loop = asyncio.get_running_loop()
        exchange = self._connection.exchange
        try:
            return await loop.run_in_executor(self._threads, lambda: exchange(request, call))
        except asyncio.CancelledError:
            call.abort()
            raise
