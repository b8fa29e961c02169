"""The requests of callers, as data: both clients send them, and neither knows a path.

A `Request` has everything that its sender needs: the bytes, how to read the response, and whether
a repeat is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar
from urllib.parse import quote, urlencode

from ._duration import Duration, to_text
from ._json import dumps, loads
from ._trigger import Receipt, Result, Trigger, batch_text, keeps_key
from .errors import UnknownOutcome

T = TypeVar("T")

MAX_RESULT_WAIT = 20.0
"""The seconds that the server lets one request wait for a result."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """One request.

    Attributes:
        decode: reads the text of the response.
        repeatable: whether a repeat after an unknown outcome has no effect.
        wait: seconds that the server may take longer than the client's timeout.
    """

    method: str
    path: str
    decode: Callable[[str], T]
    body: str | None = None
    repeatable: bool = False
    wait: float = 0.0

    @property
    def read(self) -> bool:
        """Whether the request only reads."""
        return self.method == "GET"

    def answer(self, text: str) -> T:
        """Reads the response. Raises UnknownOutcome where it is malformed, as a proxy's is."""
        try:
            return self.decode(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{self.method} {self.path}: malformed response: {error}"
            raise UnknownOutcome(message, kind="malformed") from error


def path(*segments: str) -> str:
    """Builds a path below `/v1` of percent-encoded segments."""
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def trigger(task: str, one: Trigger) -> Request[Receipt]:
    """Triggers a task once."""
    return Request(
        "POST",
        path("tasks", task, "triggers"),
        lambda text: Receipt.read(loads(text)),
        one.text(),
        repeatable=one.is_repeatable(),
    )


def trigger_many(
    task: str,
    triggers: list[Trigger],
    dedup: str | None,
    dedup_ttl: Duration | None,
    dedup_until: str | None,
) -> Request[list[Receipt]]:
    """Triggers a task with a batch, which is accepted whole or not at all."""
    each = bool(triggers) and all(one.is_repeatable() for one in triggers)
    return Request(
        "POST",
        path("tasks", task, "triggers"),
        lambda text: [Receipt.read(raw) for raw in loads(text)],
        batch_text(triggers, dedup, dedup_ttl, dedup_until),
        repeatable=each or keeps_key(dedup, dedup_ttl, dedup_until),
    )


def result(job: str, wait: float) -> Request[Result]:
    """Reads the result of a job, after at most `wait` seconds."""
    wait = min(wait, MAX_RESULT_WAIT)
    # The server refuses a wait of zero.
    query = "?" + urlencode({"wait": to_text(wait)}) if wait >= 0.001 else ""
    return Request("GET", path("jobs", job, "result") + query, Result.read, wait=wait)


def job(job: str) -> Request[dict[str, Any]]:
    """Shows a job with its attempts."""
    return Request("GET", path("jobs", job), _object)


def explain(key: str, task: str | None) -> Request[dict[str, Any]]:
    """Shows the newest job of a debounce key."""
    members = {"key": key} if task is None else {"key": key, "task": task}
    return Request("GET", path("explain") + "?" + urlencode(members), _object)


def cancel(job: str) -> Request[str]:
    """Cancels a job."""
    return Request("POST", path("jobs", job, "cancel"), lambda text: str(_object(text)["state"]))


def window(task: str, key: str, action: str) -> Request[str]:
    """Flushes or cancels the open window of a key."""
    return Request(
        "POST",
        path("tasks", task, "windows", action),
        lambda text: str(_object(text)["job"]),
        dumps({"key": key}),
    )


def _object(text: str) -> dict[str, Any]:
    value = loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
