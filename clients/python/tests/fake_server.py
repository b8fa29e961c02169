"""A Quell server in memory, for tests: pull workers, triggers, results, and faults on demand.

It follows the protocol as far as the client can see it: leases expire, the claim of a process that
left ends, a repeat of a settlement is refused. Tests add faults per call: `drop` closes the
connection after the request has had its effect, `refuse` before it.
"""

from __future__ import annotations

import collections
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from quell._duration import to_seconds
from quell._json import raw_items, raw_members

STAMP = "2026-03-01T00:00:00Z"


class FakeJob:
    def __init__(self, id, task, payload_text, timeout):
        self.id, self.task, self.payload_text, self.timeout = id, task, payload_text, timeout
        self.state, self.attempt, self.starts, self.triggers = "scheduled", 0, 0, 1
        self.due, self.lease, self.lease_until = 0.0, None, 0.0
        self.output_text, self.error, self.key = "null", None, None
        self.settlements, self.progress, self.log = [], None, []
        self.most_attempts = 20

    @property
    def ended(self):
        return self.state in ("succeeded", "dead", "cancelled")


class FakeServer:
    """The state and the HTTP server. All fields are read and written under `changed`."""

    def __init__(self, token=None, port=0):
        self.token = token
        self.changed = threading.Condition()
        self.jobs, self.keys, self.leavers = {}, {}, set()
        self.requests = []
        self.faults = collections.defaultdict(collections.deque)
        self.claims_in_flight = 0
        self.hold_claims = False
        self.broken = None
        self.stopped = False
        self._leases = 0
        self.listen(port)

    def listen(self, port):
        fake = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass

        self.connections = set()
        self.stopped = False
        handler = type("Handler", (_Handler,), {"fake": fake})
        self.http = Server(("127.0.0.1", port), handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=lambda: self.http.serve_forever(0.02), daemon=True).start()

    def kill(self):
        """Ends the server with all its connections, as a killed process does."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        self.http.shutdown()
        self.http.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(2)
            except OSError:
                pass

    def restart(self):
        self.listen(self.port)

    def fault(self, call, *faults):
        """Makes the next calls fail: `drop`, `refuse`, a status, or seconds of delay."""
        with self.changed:
            self.faults[call].extend(faults)

    def add(self, task, payload="null", timeout=60.0, **fields):
        """Adds a due job with the text of a payload, and returns it."""
        with self.changed:
            job = FakeJob(str(len(self.jobs) + 1), task, payload, timeout)
            for name, value in fields.items():
                setattr(job, name, value)
            self.jobs[job.id] = job
            self.changed.notify_all()
            return job

    def wait_for(self, condition, seconds=20.0):
        """Waits until a condition of the state is true. Raises AssertionError after `seconds`."""
        until = time.monotonic() + seconds
        with self.changed:
            while not condition():
                left = until - time.monotonic()
                if left <= 0:
                    jobs = [(j.id, j.state, j.starts, j.settlements) for j in self.jobs.values()]
                    raise AssertionError(f"not true within {seconds} s: {jobs}, {self.faults}")
                self.changed.wait(min(left, 0.05))

    def calls(self, name):
        """Returns the bodies of the requests of one call."""
        with self.changed:
            return [body for call, body in self.requests if call == name]

    def lose(self, job):
        """Takes the lease of a running job away, as a cancellation does."""
        with self.changed:
            job.state, job.lease = "cancelled", None

    # Calls, under `changed`

    def claim(self, body, raw):
        me = body["process"]["incarnation"]
        until = time.monotonic() + to_seconds(body["wait"])
        self.claims_in_flight += 1
        self.changed.notify_all()
        try:
            while True:
                self._expire()
                due = [] if self.hold_claims else self._due(body["tasks"], body["limit"])
                left = until - time.monotonic()
                if due or left <= 0 or me in self.leavers or self.stopped:
                    break
                self.changed.wait(min(left, 0.02))
            return 200, '{"now":"%s","jobs":[%s]}' % (
                STAMP,
                ",".join(self._start(j, body) for j in due),
            )
        finally:
            self.claims_in_flight -= 1

    def _due(self, tasks, limit):
        now = time.monotonic()
        due = [j for j in self.jobs.values() if j.state == "scheduled" and j.due <= now]
        return [j for j in due if j.task in tasks][:limit]

    def _start(self, job, body):
        self._leases += 1
        job.state, job.lease = "running", f"lease-{self._leases}"
        job.attempt, job.starts = job.attempt + 1, job.starts + 1
        job.lease_until = time.monotonic() + to_seconds(body["lease"])
        self.changed.notify_all()
        facts = {
            "lease": job.lease,
            "id": job.id,
            "task": job.task,
            "queue": "default",
            "key": job.key,
            "attempt": job.attempt,
            "starts": job.starts,
            "fencing_token": f"{job.starts}-{self._leases:04x}",
            "triggers": job.triggers,
            "first_at": STAMP,
            "due_at": STAMP,
            "started_at": STAMP,
            "lease_until": STAMP,
            "timeout": f"{round(job.timeout * 1000)}ms",
            "traces": [],
        }
        # The payload stands in the middle, with spaces, so that slices are tested.
        head, tail = json.dumps(facts).split(', "attempt"')
        return f'{head} , "payload" : {job.payload_text} , "attempt"{tail}'

    def _expire(self):
        now = time.monotonic()
        for job in self.jobs.values():
            if job.state == "running" and job.lease_until < now:
                job.state, job.lease = "scheduled", None

    def _holder(self, lease):
        self._expire()
        return next((j for j in self.jobs.values() if j.lease == lease), None)

    def renew(self, body, raw):
        states = []
        for one in body["leases"]:
            assert set(one) <= {"lease", "progress", "log"}, one
            job = self._holder(one["lease"])
            if job is not None:
                job.lease_until = time.monotonic() + to_seconds(body["lease"])
                job.progress = one.get("progress", job.progress)
                job.log += one.get("log", [])
            state = "lost" if job is None else "held"
            states.append({"lease": one["lease"], "state": state, "until": STAMP})
        self.changed.notify_all()
        return 200, json.dumps({"now": STAMP, "leases": states})

    def settle(self, body, raw):
        texts = raw_items(raw_members(raw)["settlements"])
        assert len(texts) <= 1000
        if any(one.get("output") == "poison" for one in body["settlements"]):
            return self.problem(422, "invalid", "settlements", "poison")
        if any(self.broken and one.get("output") == self.broken for one in body["settlements"]):
            return self.problem(500, "internal", "settlements", "broken")
        settled = []
        for one, text in zip(body["settlements"], texts):
            job = self._holder(one["lease"])
            became = "refused" if job is None else self._end(job, one, raw_members(text))
            settled.append({"lease": one["lease"], "became": became, "due_at": None, "by": None})
        self.changed.notify_all()
        return 200, json.dumps({"settled": settled})

    def _end(self, job, one, members):
        job.settlements.append(one)
        job.lease = None
        outcome = one["outcome"]
        if outcome == "succeeded":
            job.state, job.output_text = "succeeded", members.get("output", "null")
        elif outcome == "failed":
            dead = one["permanent"] or job.attempt >= job.most_attempts
            job.state, job.error = "dead" if dead else "scheduled", one["error"]
            job.due = time.monotonic() + to_seconds(one.get("retry_in", "20ms"))
        elif outcome == "cancelled":
            job.state, job.error = "cancelled", one["reason"]
        else:
            job.state, job.attempt = "scheduled", job.attempt - 1
            job.due = time.monotonic() + to_seconds(one.get("delay", "0s"))
        return job.state

    def leave(self, body, raw):
        self.leavers.add(body["incarnation"])
        self.changed.notify_all()
        return 200, "{}"

    def triggers(self, task, body, raw):
        members = raw_members(raw) if isinstance(body, dict) else {}
        many = isinstance(body, list) or "triggers" in members
        texts = raw_items(members.get("triggers", raw)) if many else [raw]
        receipts = [self._trigger(task, json.loads(t), raw_members(t)["payload"]) for t in texts]
        return 202, json.dumps(receipts if many else receipts[0])

    def _trigger(self, task, one, payload):
        key = one.get("idempotency_key") or one.get("dedup")
        if key in self.keys:
            kind, job = "existing" if one.get("idempotency_key") else "duplicate", self.keys[key]
        else:
            kind, job = "accepted", self.add(task, payload)
            if key:
                self.keys[key] = job
        return {
            "receipt": kind,
            "task": task,
            "job": job.id,
            "trigger": f"{job.id}.1",
            "due": STAMP,
        }

    def job_call(self, method, id, rest, query):
        job = self.jobs.get(id)
        if job is None:
            return self.problem(404, "not_found", "job", f"job {id} does not exist")
        if rest == ["result"]:
            until = time.monotonic() + to_seconds(query.get("wait", ["0s"])[0])
            while not job.ended and time.monotonic() < until and not self.stopped:
                self.changed.wait(0.02)
            head = {"job": job.id, "state": job.state, "ended": job.ended, "error": job.error}
            return 200, f'{json.dumps(head)[:-1]}, "output": {job.output_text}}}'
        if rest == ["cancel"]:
            if job.ended:
                return self.problem(409, "illegal_move", "job", "the job has ended")
            job.state, job.lease = "cancelled", None
            return 200, json.dumps({"job": job.id, "state": "cancelled"})
        return 200, json.dumps({"job": {"id": job.id, "state": job.state}})

    def problem(self, status, kind, field, message):
        cause = {"kind": kind, "field": field, "message": message, "id": None}
        return status, json.dumps({"status": status, "detail": message, "error": cause})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeServer

    def setup(self):
        super().setup()
        self.fake.connections.add(self.connection)

    def finish(self):
        self.fake.connections.discard(self.connection)
        super().finish()

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        self.answer(None, "null")

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0)).decode() or "null"
        self.answer(json.loads(raw), raw)

    def answer(self, body, raw):
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.split("/")[2:]]
        call = parts[-1]
        with self.fake.changed:
            self.fake.requests.append((call, body))
            faults = self.fake.faults[call]
            fault = faults.popleft() if faults else None
        if isinstance(fault, float):
            time.sleep(fault)
        if fault == "refuse":
            self.close_connection = True
            return
        if isinstance(fault, int):
            status, text = self.fake.problem(fault, "unavailable", "request", "injected")
        elif self.fake.token and self.headers.get("authorization") != f"Bearer {self.fake.token}":
            status, text = self.fake.problem(401, "unauthorized", "authorization", "no token")
        else:
            with self.fake.changed:
                status, text = self.route(parts, parse_qs(url.query), body, raw)
        if fault == "drop" or self.fake.stopped:
            self.close_connection = True
            return
        if fault == "garbage":
            status, text = 200, "<html>proxy</html>"
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, parts, query, body, raw):
        if parts[0] == "workers":
            return getattr(self.fake, parts[2])(body, raw)
        if parts[0] == "tasks" and parts[2] == "triggers":
            return self.fake.triggers(parts[1], body, raw)
        if parts[0] == "tasks":
            return 200, json.dumps({"job": "1", "flushed": True})
        return self.fake.job_call(self.command, parts[1], parts[2:], query)
