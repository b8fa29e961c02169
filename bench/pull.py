#!/usr/bin/env python3
"""How fast triggers come in and pull workers work over HTTP: `bench/pull.py QUELL [SECONDS]`.

QUELL is the program, best of `cargo build --profile dist -p quell-server`. It serves SQLite with
`synchronous=full`, in a temporary folder and on a free port of loopback.

- Triggers come from 64 connections, each with its next request after the answer to the last: of one
  trigger each, and of arrays of 10 and of 100. A line has the triggers a second, and the times of
  requests.
- Pull workers of two processes claim up to 1,000 no-op jobs at a time and settle them at once, until
  100,000 are done: by bare requests, and by the client in clients/python (200 slots each, no-op handlers).

The load runs in this process and its children, on the same cores as the server.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import time
import urllib.request

from serving import serving

CONNECTIONS = 64
JOBS = 100_000
SLOTS = 200
CONFIG = """
[server]
listen = "127.0.0.1:0"
[store]
url = "sqlite://{folder}/quell.db"
[tasks.noop]
pull = true
[tasks.wait]
pull = true
queue = "wait"
"""


def post(path, body):
    data = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def exchange(stream, request):
    reader, writer = stream
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    assert head.split(b" ")[1] in (b"200", b"202"), head + body
    return body


async def trigger(port, size, seconds):
    triggers = [{"payload": {"n": number}} for number in range(size)]
    request = post("/v1/tasks/wait/triggers", triggers if size > 1 else triggers[0])
    waits, end = [], time.perf_counter() + seconds

    async def caller():
        stream = await asyncio.open_connection("127.0.0.1", port)
        while (begun := time.perf_counter()) < end:
            await exchange(stream, request)
            waits.append(time.perf_counter() - begun)
        stream[1].close()

    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))
    waits.sort()
    times = {part: waits[len(waits) * part // 100] * 1000 for part in (50, 99)}
    shown = ", ".join(f"p{part} {value:.2f}" for part, value in times.items())
    rate = len(waits) * size / seconds
    print(f"triggers, {size} a request: {rate:,.0f} a second; ms: {shown}, max {waits[-1] * 1000:.2f}", flush=True)


def fill(port):
    batch = [{"payload": number} for number in range(5_000)]
    for _ in range(JOBS // len(batch)):
        data = json.dumps(batch).encode()
        url = f"http://127.0.0.1:{port}/v1/tasks/noop/triggers"
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        urllib.request.urlopen(request).read()


async def pull_bare(port, name):
    stream = await asyncio.open_connection("127.0.0.1", port)
    process = {"incarnation": 1, "slots": 1_000}
    claim = post(
        f"/v1/workers/{name}/claim",
        {"tasks": ["noop"], "limit": 1_000, "wait": "0s", "process": process},
    )
    done = 0
    while jobs := json.loads(await exchange(stream, claim))["jobs"]:
        ended = [{"lease": job["lease"], "outcome": "succeeded"} for job in jobs]
        settled = await exchange(stream, post(f"/v1/workers/{name}/settle", {"settlements": ended}))
        assert settled.count(b'"succeeded"') == len(jobs)
        done += len(jobs)
    return done


def bare(port, name):
    return asyncio.run(pull_bare(port, name))


def by_client(port, name):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../clients/python/src"))
    from quell import Quell

    quell, done = Quell(f"http://127.0.0.1:{port}"), 0
    worker = quell.worker(slots=SLOTS, name=name)

    @worker.task("noop")
    def noop(payload, job):
        nonlocal done
        done += 1

    worker.start()
    while any(one["state"] != "succeeded" for one in newest(port)):
        time.sleep(0.05)
    worker.stop()
    worker.join()
    return done


def newest(port):
    """Jobs of the task that have not ended, a few of them."""
    jobs = []
    for state in ("scheduled", "running"):
        url = f"http://127.0.0.1:{port}/v1/jobs?task=noop&state={state}&limit=1"
        jobs += json.load(urllib.request.urlopen(url))["jobs"]
    return jobs


def pull(port, how, label):
    fill(port)
    begun = time.perf_counter()
    with multiprocessing.Pool(2) as pool:
        done = pool.starmap(how, [(port, f"bench-{n}") for n in range(2)])
    took = time.perf_counter() - begun
    assert sum(done) == JOBS, done
    print(f"pull workers, 2 processes, {label}: {JOBS / took:,.0f} jobs a second", flush=True)


def main():
    program = os.path.abspath(sys.argv[1])
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with serving(program, CONFIG) as port:
        for size in (1, 10, 100):
            asyncio.run(trigger(port, size, seconds))
        pull(port, bare, "bare requests")
        pull(port, by_client, "the client for Python")


if __name__ == "__main__":
    main()
