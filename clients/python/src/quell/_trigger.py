"""Triggers, receipts and results: what a caller sends and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ._duration import Duration, time_text, to_seconds, to_text
from ._json import RawJson, loads, raw_members, write_object, written

SHORTEST_SAFE_TTL = 120.0
"""Seconds that a dedup key must be kept so that every repeat of its trigger meets it."""


@dataclass
class Trigger:
    """One trigger of a batch, with options of its own.

    Args:
        payload: any JSON value, or `RawJson` for an exact text.
        delay: run no earlier than this long from now.
        run_at: run no earlier than this time (a `datetime` with a zone, or RFC 3339).
        priority: higher runs first.
        partition: the partition of the queue.
        dedup: a key under which the trigger counts once.
        dedup_ttl: how long that key is kept.
        dedup_until: ``"started"`` or ``"done"``: keep the key until the job started, or ended.
        debounce: False to run alone, or ``{"min": duration, "max": duration}``.
        idempotency_key: a repeat with this key gets the first trigger's job and output.
        trace: a `traceparent`, or a mapping with `traceparent` and `tracestate`.

    Durations are seconds, a `timedelta`, or a text such as ``"10s"``.
    """

    payload: Any = None
    delay: Duration | None = None
    run_at: str | datetime | None = None
    priority: int | None = None
    partition: str | None = None
    dedup: str | None = None
    dedup_ttl: Duration | None = None
    dedup_until: str | None = None
    debounce: None | bool | Mapping[str, Duration] = None
    idempotency_key: str | None = None
    trace: None | str | Mapping[str, Any] = None

    def text(self) -> str:
        """Writes it as JSON. Raises ValueError or TypeError where the payload is no JSON."""
        debounce: Any = self.debounce
        if isinstance(debounce, Mapping):
            debounce = {name: to_text(value) for name, value in debounce.items()}
        options = write_object(
            {
                # A delay of zero is none: the server takes only durations above zero.
                "delay": None if self.delay in (None, 0) else to_text(self.delay or 0),
                "run_at": None if self.run_at is None else time_text(self.run_at),
                "priority": self.priority,
                "partition": self.partition,
                **_dedup(self.dedup, self.dedup_ttl, self.dedup_until),
                "debounce": debounce,
                "idempotency_key": self.idempotency_key,
                "trace": {"traceparent": self.trace} if isinstance(self.trace, str) else self.trace,
            }
        )
        payload = write_object(
            {"payload": RawJson("null") if self.payload is None else self.payload}
        )
        return payload if options == "{}" else f"{payload[:-1]},{options[1:]}"

    def is_repeatable(self) -> bool:
        """Returns whether a second send of the same trigger has no effect."""
        if self.idempotency_key is not None:
            return True
        return keeps_key(self.dedup, self.dedup_ttl, self.dedup_until)


def keeps_key(dedup: str | None, ttl: Duration | None, until: str | None) -> bool:
    """Returns whether a dedup key outlives the repeats of its request.

    One that is kept until the job started or ended may be free again before the first repeat.
    """
    if dedup is None or until is not None:
        return False
    return ttl is None or to_seconds(ttl) >= SHORTEST_SAFE_TTL


def _dedup(dedup: str | None, ttl: Duration | None, until: str | None) -> dict[str, str | None]:
    ttl_text = None if ttl is None else to_text(ttl)
    return {"dedup": dedup, "dedup_ttl": ttl_text, "dedup_until": until}


def batch_text(
    triggers: list[Trigger], dedup: str | None, ttl: Duration | None, until: str | None
) -> str:
    """Writes a batch, as an array or with a dedup key of its own."""
    array = "[" + ",".join(trigger.text() for trigger in triggers) + "]"
    if dedup is None:
        return array
    return write_object({"triggers": written(array), **_dedup(dedup, ttl, until)})


@dataclass(frozen=True)
class Receipt:
    """What became of a trigger.

    Attributes:
        kind: ``accepted``, ``debounced``, ``duplicate``, ``existing`` or ``pending``.
        task: the task.
        job: the id of the job that has the trigger; None for ``pending``.
        trigger: the id of the trigger, or None.
        due: when the job is due (RFC 3339), where the server says so.
        triggers: the number of triggers in the window, for ``debounced``.
        state: the job's state, for ``existing``.
        output: the job's output, for ``existing``.
        raw: the whole receipt as decoded JSON.
    """

    kind: str
    task: str
    job: str | None
    trigger: str | None
    due: str | None = None
    triggers: int | None = None
    state: str | None = None
    output: Any = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def read(raw: Mapping[str, Any]) -> Receipt:
        """Reads a receipt of the server."""
        names = ("job", "trigger", "due", "triggers", "state", "output")
        known: dict[str, Any] = {name: raw.get(name) for name in names}
        return Receipt(kind=raw["receipt"], task=raw["task"], raw=raw, **known)


@dataclass(frozen=True)
class Result:
    """The state of a job, and its output once it has ended.

    Attributes:
        job: the job's id.
        state: ``scheduled``, ``running``, ``succeeded``, ``dead``, ``cancelled``, ``absorbed``
            or ``unreadable``.
        ended: whether the job has ended.
        output: what the handler returned, or None.
        output_text: the exact JSON text of the output; ``"null"`` where there is none.
        error: the last error, or None.
    """

    job: str
    state: str
    ended: bool
    output: Any
    output_text: str
    error: str | None

    @staticmethod
    def read(text: str) -> Result:
        """Reads a result of the server."""
        members = raw_members(text)
        output = members.get("output", "null")
        return Result(
            job=loads(members["job"]),
            state=loads(members["state"]),
            ended=loads(members["ended"]),
            output=loads(output),
            output_text=output,
            error=loads(members.get("error", "null")),
        )
