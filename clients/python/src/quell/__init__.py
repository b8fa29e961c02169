"""Client and workers for Quell: durable, debounced background jobs.

`Quell` triggers tasks and reads results; `Quell.worker` runs the tasks that the server declares
with ``pull = true``. `AsyncQuell` is the same for asyncio.
"""

from ._aio_client import AsyncQuell
from ._aio_worker import AsyncWorker
from ._client import Quell
from ._duration import Duration
from ._job import AsyncJob, Job
from ._json import RawJson
from ._settlement import Cancel, Permanent, Retry, Snooze
from ._trigger import Receipt, Result, Trigger
from ._worker import Worker
from .errors import (
    NotFound,
    QuellError,
    Refused,
    ServerError,
    Unauthorized,
    Unavailable,
    UnknownOutcome,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncJob",
    "AsyncQuell",
    "AsyncWorker",
    "Cancel",
    "Duration",
    "Job",
    "NotFound",
    "Permanent",
    "Quell",
    "QuellError",
    "RawJson",
    "Receipt",
    "Refused",
    "Result",
    "Retry",
    "ServerError",
    "Snooze",
    "Trigger",
    "Unauthorized",
    "Unavailable",
    "UnknownOutcome",
    "Worker",
]
