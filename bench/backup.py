#!/usr/bin/env python3
"""How long triggers wait while a store is copied: `bench/backup.py QUELL [MEGABYTES] [OPTION...]`.

QUELL is the program, best of `cargo build --profile dist -p quell-server`. It serves SQLite with
`synchronous=full`, in a temporary folder and on a free port of loopback, and records its history. The
store is filled with jobs of 2 KB first (1,000 megabytes).

- Triggers come at a fixed rate, 1,000 a second, whether earlier ones were answered or not, so a wait of one
  is seen in those behind it: for 15 s before `quell backup`, for as long as it copies, and for 5 s after it.
  OPTIONs, such as `--rate 50`, go to that command. A line has the number of answers by status and the times from when each
  was due.
- Then the server stops, `quell restore` puts the copy in the place of the store, a new server takes some
  more triggers, and `quell check` judges what happened before the copy and after it.

The load runs in this process, on the same cores as the server and the copy.
"""

import asyncio
import collections
import json
import os
import subprocess
import sys
import tempfile
import time

from serving import serving

RATE = 1_000
BEFORE = 15
AFTER = 5
FILLING = 100
CONFIG = """
[server]
listen = "127.0.0.1:0"
[store]
url = "sqlite://STORE"
[tasks.work]
pull = true
"""
PAYLOAD = "x" * 2_000


def request(body):
    data = json.dumps(body, separators=(",", ":")).encode()
    head = (
        "POST /v1/tasks/work/triggers HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Connections:
    """Connections that stay open; more are made when all are in use."""

    def __init__(self, port):
        self.port = port
        self.free = []

    async def send(self, data):
        while True:
            reused = bool(self.free)
            reader, writer = self.free.pop() if reused else await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                break
            except (asyncio.IncompleteReadError, ConnectionError):
                # The server closes connections that were idle for 10 s.
                if not reused:
                    raise
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        self.free.append((reader, writer))
        return int(head.split(b" ")[1])


async def fill(port, store, megabytes):
    connections, one = Connections(port), request([{"payload": PAYLOAD}] * FILLING)

    async def send():
        while os.path.getsize(store) < megabytes * 1_000_000:
            assert await connections.send(one) == 202

    await asyncio.gather(*(send() for _ in range(4)))


async def load(port, until):
    """Triggers until `until` is done; prints how long they waited."""
    connections, waits, statuses = Connections(port), [], collections.Counter()
    one, begun, number, sent = request({"payload": PAYLOAD}), time.perf_counter(), 0, set()

    async def deliver(due):
        statuses[await connections.send(one)] += 1
        waits.append(time.perf_counter() - due)

    ended = asyncio.ensure_future(until)
    while not ended.done():
        due = begun + number / RATE
        await asyncio.sleep(max(0, due - time.perf_counter()))
        task = asyncio.ensure_future(deliver(due))
        sent.add(task)
        task.add_done_callback(sent.discard)
        number += 1
    await asyncio.gather(*sent)
    took = time.perf_counter() - begun
    waits.sort()
    shown = {f"p{part}": waits[min(len(waits) - 1, len(waits) * part // 100)] * 1000 for part in (50, 90, 99)}
    shown["max"] = waits[-1] * 1000
    times = ", ".join(f"{name} {value:.2f}" for name, value in shown.items())
    print(f"{number / took:.0f} a second for {took:.0f} s: {dict(statuses)}; ms: {times}", flush=True)
    return await ended


async def run(*command):
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output.decode().strip()


def main():
    program, options = os.path.abspath(sys.argv[1]), sys.argv[2:]
    megabytes = int(options.pop(0)) if options and options[0].isdigit() else 1_000
    with tempfile.TemporaryDirectory() as folder:
        store, copy = f"{folder}/quell.db", f"{folder}/quell.bak"
        config, url = CONFIG.replace("STORE", store), f"sqlite://{store}"
        before, cut, after = (f"{folder}/{name}.jsonl" for name in ("before", "cut", "after"))
        with serving(program, config, ["--history", before]) as port:
            asyncio.run(fill(port, store, megabytes))
            print("before the copy: ", end="", flush=True)
            asyncio.run(load(port, asyncio.sleep(BEFORE)))
            recorded = os.path.getsize(before)
            print("while it is made: ", end="", flush=True)
            print(asyncio.run(load(port, run(program, "backup", "--store", url, copy, *options))))
            # The next commits move the log into the file.
            print("after it: ", end="", flush=True)
            asyncio.run(load(port, asyncio.sleep(AFTER)))
        begun = time.perf_counter()
        print(subprocess.check_output([program, "restore", "--store", url, copy, "--discard"], text=True), end="")
        print(f"restored in {time.perf_counter() - begun:.1f} s")
        with serving(program, config, ["--history", after]) as port:
            asyncio.run(load(port, asyncio.sleep(1)))
        with open(before, "rb") as whole, open(cut, "wb") as part:
            part.write(whole.read(recorded))
        checked = subprocess.run([program, "check", cut, after, "--partial"], stdout=subprocess.PIPE, text=True)
        print(checked.stdout.splitlines()[-1])
        assert checked.returncode == 0, checked.stdout


if __name__ == "__main__":
    main()
