#!/usr/bin/env python3
"""How long triggers wait while many people look: `bench/viewers.py QUELL [VIEWERS] [SECONDS]`.

QUELL is the program, best of `cargo build --release`. It serves SQLite with `synchronous=normal` in a temporary
folder and on a free port of loopback. 5,000 triggers a second come for 1,000 keys, in 500 calls of ten, each when it
is due, whether earlier ones were answered or not: first with nobody who looks, then with VIEWERS (200) who follow
`/live`, each for SECONDS (30). A line has the times of calls from when each was due, the events that viewers got, and
the server's memory at the end.

The load and the viewers run in this process, on the same cores as the server.
"""

import asyncio
import json
import os
import sys
import time

from serving import process

RATE = 500
BATCH = 10
KEYS = 1_000
CONFIG = """
[server]
listen = "127.0.0.1:0"
[store]
url = "sqlite://{folder}/quell.db"
synchronous = "normal"
[tasks.meter]
key = "{{{{ k }}}}"
debounce = {{ min = "5s", max = "30s" }}
pull = true
"""


def request(number):
    triggers = [{"payload": {"k": str((number * BATCH + one) % KEYS)}} for one in range(BATCH)]
    data = json.dumps(triggers).encode()
    head = (
        "POST /v1/tasks/meter/triggers HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Calls:
    """Connections that stay open; more are made when all are in use."""

    def __init__(self, port):
        self.port, self.free, self.waits = port, [], []

    async def call(self, number, due):
        while True:
            reused = bool(self.free)
            reader, writer = self.free.pop() if reused else await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request(number))
                head = await reader.readuntil(b"\r\n\r\n")
                break
            except (asyncio.IncompleteReadError, ConnectionError):
                # The server closes connections that were idle for 10 s.
                if not reused:
                    raise
        assert head.startswith(b"HTTP/1.1 202"), head
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        self.free.append((reader, writer))
        self.waits.append((time.perf_counter() - due) * 1_000)


async def trigger(port, seconds):
    calls, begun, sent = Calls(port), time.perf_counter(), set()
    for number in range(RATE * seconds):
        due = begun + number / RATE
        await asyncio.sleep(max(0, due - time.perf_counter()))
        task = asyncio.ensure_future(calls.call(number, due))
        sent.add(task)
        task.add_done_callback(sent.discard)
    await asyncio.gather(*sent)
    for _, writer in calls.free:
        writer.close()
    return sorted(calls.waits)


async def view(port, seen):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(b"GET /live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    try:
        while data := await reader.read(1 << 16):
            seen[0] += data.count(b"event: overview")
            seen[1] += len(data)
    finally:
        writer.close()


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1_024 for line in file if line.startswith("VmRSS"))


async def measure(port, pid, viewers, seconds):
    seen = [0, 0]
    looking = [asyncio.ensure_future(view(port, seen)) for _ in range(viewers)]
    waits = await trigger(port, seconds)
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
    times = ", ".join(f"p{part} {waits[len(waits) * part // 100]:.2f}" for part in (50, 90, 99))
    print(
        f"{viewers} viewers: {len(waits) * BATCH / seconds:.0f} triggers a second; ms: {times}, max {waits[-1]:.2f}; "
        f"{seen[0]} events, {seen[1] / 1e6:.1f} MB; memory {memory(pid):.0f} MB",
        flush=True,
    )


async def main():
    program = os.path.abspath(sys.argv[1])
    viewers, seconds = (int(text) for text in (sys.argv[2:] + ["200", "30"][len(sys.argv) - 2 :]))
    with process(program, CONFIG) as (port, pid):
        for number in (0, viewers, viewers):
            await measure(port, pid, number, seconds)


asyncio.run(main())
