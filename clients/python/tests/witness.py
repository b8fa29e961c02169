"""A worker for chaos tests: it records each start and each end of the task `stamp` in a file.

`python witness.py FILE [--asyncio]` works until SIGTERM for the server of QUELL_SERVER. The payload
is `{"ms": N}`, or a list of these: the handler sleeps for the longest between its two lines.
"""

import argparse
import asyncio
import json
import logging
import os
import time

from quell import AsyncQuell, Quell

SLOTS = 8
LEASE = 2


def stamp(file, event, payload, job):
    line = {
        "job": job.id,
        "fencing_token": job.fencing_token,
        "starts": job.starts,
        "payload": payload,
        "event": event,
    }
    data = (json.dumps(line) + "\n").encode()
    # One write on O_APPEND, so that the lines of several processes do not mix.
    assert os.write(file, data) == len(data)


def length(payload):
    """The time between the two lines, in seconds."""
    parts = payload if isinstance(payload, list) else [payload]
    return max(part["ms"] for part in parts) / 1000


def run(file):
    worker = Quell().worker(slots=SLOTS, lease=LEASE)

    @worker.task("stamp")
    def handler(payload, job):
        stamp(file, "start", payload, job)
        time.sleep(length(payload))
        stamp(file, "end", payload, job)

    worker.run()


async def run_async(file):
    worker = AsyncQuell().worker(slots=SLOTS, lease=LEASE)

    @worker.task("stamp")
    async def handler(payload, job):
        stamp(file, "start", payload, job)
        await asyncio.sleep(length(payload))
        stamp(file, "end", payload, job)

    await worker.run()


def main():
    parser = argparse.ArgumentParser(description="record the starts and ends of the task stamp")
    parser.add_argument("file")
    parser.add_argument("--asyncio", action="store_true", help="run the asyncio worker")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    file = os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if args.asyncio:
        asyncio.run(run_async(file))
    else:
        run(file)


if __name__ == "__main__":
    main()
