"""The worker protocol on the wire: bodies of claim, renew, settle and leave, and their responses.

I/O-free. Decoders raise ValueError, KeyError, TypeError or AttributeError where a response is
malformed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import re
import secrets
import socket
import string
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ._duration import to_seconds, to_text
from ._http import VERSION
from ._job import ClaimedJob
from ._json import dumps, loads, raw_items, raw_members, write_object, written

log = logging.getLogger("quell")

CLAIM_WAIT = 20.0
"""The seconds that a claim waits at the server where no job is due."""


@dataclasses.dataclass(frozen=True)
class Settled:
    """The answer to one settlement: what the job became, and why it was not taken."""

    became: str
    why: str = ""


def default_name() -> str:
    """Returns a name for this process that no other has: host, process id, random letters."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "", socket.gethostname())[:100] or "host"
    letters = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(6))
    return f"{host}-{os.getpid()}-{letters}"


class Process:
    """This worker process, as its heartbeats describe it."""

    def __init__(self, slots: int) -> None:
        self.incarnation = random.SystemRandom().getrandbits(32)
        self._host = socket.gethostname()[:255]
        self._slots = slots
        self._started = time.monotonic()

    def facts(self, busy: int) -> dict[str, Any]:
        """Returns the heartbeat, with the number of slots in use."""
        return {
            "incarnation": self.incarnation,
            "host": self._host,
            "pid": os.getpid(),
            "version": VERSION,
            "slots": self._slots,
            "busy": busy,
            "age": to_text(max(0.001, round(time.monotonic() - self._started, 3))),
        }


def claim_body(tasks: Iterable[str], limit: int, lease: float, process: dict[str, Any]) -> str:
    """Writes the body of a claim for at most `limit` jobs."""
    return write_object(
        {
            "tasks": sorted(tasks),
            "limit": limit,
            "wait": to_text(CLAIM_WAIT),
            "lease": to_text(lease),
            "process": process,
        }
    )


def renew_body(leases: Sequence[str], lease: float, process: dict[str, Any]) -> str:
    """Writes the body of a renewal; `leases` are JSON texts."""
    array = ",".join(leases)
    return f'{{"lease":{dumps(to_text(lease))},"process":{dumps(process)},"leases":[{array}]}}'


def renewed_lease(lease: str, progress: str | None, lines: list[str]) -> str:
    """Writes one lease of a renewal, with its progress (a JSON text) and log lines."""
    value = written(progress) if progress is not None else None
    return write_object({"lease": lease, "progress": value, "log": lines or None})


def settle_body(settlements: Iterable[str]) -> str:
    """Writes the body of a settlement request; `settlements` are JSON texts."""
    return f'{{"settlements":[{",".join(settlements)}]}}'


def read_claim(text: str) -> list[ClaimedJob]:
    """Reads the jobs of a claim, each payload with its exact text."""
    jobs = []
    for item in raw_items(raw_members(text)["jobs"]):
        try:
            jobs.append(_read_job(raw_members(item)))
        except (ValueError, KeyError, TypeError, AttributeError):
            # The others of the claim are leased, too: they must run.
            log.exception("malformed job in a claim, skipping it: its lease will expire")
    return jobs


def _read_job(members: dict[str, str]) -> ClaimedJob:
    known = {field.name for field in dataclasses.fields(ClaimedJob)}
    facts = {name: loads(text) for name, text in members.items() if name in known}
    facts["timeout"] = _read_timeout(facts.get("timeout"))
    return ClaimedJob(**facts, payload_text=members["payload"])


def _read_timeout(text: str | None) -> float | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return to_seconds(text)
    log.error("malformed timeout %r in a claim, running without one", text)
    return None


def read_states(text: str) -> dict[str, str]:
    """Reads the state of each lease of a renewal: `held`, `lost` or `unknown`."""
    return {one["lease"]: one["state"] for one in loads(text)["leases"]}


def read_settled(text: str) -> dict[str, Settled]:
    """Reads the answer to each settlement, by lease."""
    return {one["lease"]: _read_one_settled(one) for one in loads(text)["settled"]}


def _read_one_settled(answer: dict[str, Any]) -> Settled:
    error = answer.get("error") or {}
    return Settled(answer["became"], error.get("message", ""))
