#!/usr/bin/env python3
"""How long a webhook waits for its 2xx: `bench/webhooks.py QUELL [RATE] [SECONDS]`.

QUELL is the program, best of `cargo build --profile dist -p quell-server`. It serves a GitHub source on SQLite
with `synchronous=full`, in a temporary folder and on a free port of loopback. Signed pushes of 1,000 repositories
come at a fixed rate (200 a second, for 20 s), whether earlier ones were answered or not, so a wait of one is seen
in those behind it. A line has the number of answers by status and the times from when each was due.
"""

import asyncio
import collections
import hashlib
import hmac
import json
import os
import sys
import time

from serving import serving

SECRET = "bench"
CONFIG = """
[server]
listen = "127.0.0.1:0"
[store]
url = "sqlite://{folder}/quell.db"
[tasks.build]
key = "{{{{ repository.full_name }}}}"
debounce = {{ min = "1h", max = "2h" }}
exec = {{ command = ["true"] }}
[sources.github]
verify = "github"
secret_file = "secret"
filter = "headers['x-github-event'] == 'push'"
task = "build"
"""


def request(number):
    repository = {"full_name": f"acme/repository-{number % 1000}", "description": "x" * 500}
    commits = [{"id": hashlib.sha1(str(number * 10 + at).encode()).hexdigest()} for at in range(5)]
    body = json.dumps({"ref": "refs/heads/main", "repository": repository, "commits": commits}).encode()
    code = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    head = (
        "POST /in/github HTTP/1.1\r\nhost: hooks.example.com\r\ncontent-type: application/json\r\n"
        f"x-github-event: push\r\nx-github-delivery: {number}\r\nx-hub-signature-256: sha256={code}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connections:
    """Connections that stay open; more are made when all are in use."""

    def __init__(self, port):
        self.port = port
        self.free = []

    async def send(self, data):
        reader, writer = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        await reader.readexactly(int(fields.get("content-length", 0)))
        self.free.append((reader, writer))
        return int(head.split(b" ")[1])


async def measure(port, rate, seconds):
    connections, waits, statuses = Connections(port), [], collections.Counter()
    requests = [request(number) for number in range(rate * seconds)]
    begun = time.perf_counter()

    async def deliver(number):
        due = begun + number / rate
        await asyncio.sleep(max(0, due - time.perf_counter()))
        statuses[await connections.send(requests[number])] += 1
        waits.append(time.perf_counter() - due)

    await asyncio.gather(*(deliver(number) for number in range(len(requests))))
    waits.sort()
    shown = {f"p{part}": waits[min(len(waits) - 1, len(waits) * part // 100)] * 1000 for part in (50, 90, 99)}
    shown["max"] = waits[-1] * 1000
    times = ", ".join(f"{name} {value:.2f}" for name, value in shown.items())
    print(f"{rate} a second for {seconds} s: {dict(statuses)}; ms: {times}")


def main():
    program = os.path.abspath(sys.argv[1])
    rate = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    with serving(program, CONFIG, secret=SECRET) as port:
        asyncio.run(measure(port, rate, seconds))


main()
