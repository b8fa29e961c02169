"""What a scrape of `/metrics` takes with few and with many jobs in the store.

    python3 bench/metrics.py target/release/quell [--jobs 1000000] [--store sqlite://{folder}/q.db]

Run it from `bench`, or with that folder in `PYTHONPATH`.
"""

import argparse
import http.client
import json
import statistics
import time

from serving import serving

CONFIG = """
[server]
listen = "127.0.0.1:0"
[store]
url = "STORE"
SYNCHRONOUS
[tasks.waits]
pull = true
"""
FEW = 10
BATCH = 10_000
SCRAPES = 200


def trigger(connection, jobs):
    body = json.dumps([{"payload": number} for number in range(jobs)])
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/tasks/waits/triggers", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 202, text


def scrape(connection, jobs):
    """Return the milliseconds of each scrape, in order."""
    taken = []
    for _ in range(SCRAPES):
        begun = time.perf_counter()
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        taken.append((time.perf_counter() - begun) * 1_000)
    line = f'quell_jobs{{queue="default",task="waits",state="scheduled"}} {jobs}\n'
    assert line in page, page
    return sorted(taken)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--jobs", type=int, default=1_000_000)
    arguments.add_argument("--store", default="sqlite://{folder}/q.db")
    given = arguments.parse_args()
    synchronous = 'synchronous = "normal"' if given.store.startswith("sqlite") else ""
    config = CONFIG.replace("STORE", given.store).replace("SYNCHRONOUS", synchronous)
    with serving(given.program, config) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        trigger(connection, FEW)
        done = FEW
        for jobs in (FEW, given.jobs):
            while done < jobs:
                more = min(BATCH, jobs - done)
                trigger(connection, more)
                done += more
            taken = scrape(connection, jobs)
            p99 = taken[len(taken) * 99 // 100 - 1]
            print(f"{jobs} jobs: median {statistics.median(taken):.2f} ms, p99 {p99:.2f} ms")


if __name__ == "__main__":
    main()
