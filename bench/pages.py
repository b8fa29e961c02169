#!/usr/bin/env python3
"""How long each page takes with many jobs: `bench/pages.py QUELL [JOBS] [KEYS]`.

QUELL is the program, best of `cargo build --release`. It serves SQLite in a temporary folder and on a free port of
loopback. The store gets JOBS (1,000,000) of fifty tasks: windows of KEYS (100,000) keys, and plain jobs. 20,000 jobs
of one more task die of fifty causes. Then each page is loaded 20 times over one connection. The goal is 200 ms.
"""

import http.client
import json
import os
import sys
import time

from serving import serving

LOADS = 20
BATCH = 10_000
TASKS = 50
DEAD, CAUSES, CLAIM = 20_000, 50, 1_000
TASK = """
[tasks.tNUMBER]
key = "{{{{ k }}}}"
debounce = {{ min = "1h", max = "2h" }}
pull = true
"""
CONFIG = """
[server]
listen = "127.0.0.1:0"
max_body = "16MiB"
[store]
url = "sqlite://{folder}/quell.db"
synchronous = "normal"
""" + "".join(
    TASK.replace("NUMBER", str(number)) for number in range(TASKS)
) + """
[tasks.dies]
queue = "dies"
pull = true
"""
PAGES = [
    "/",
    "/timeline?task=t7",
    "/timeline?task=t7&key=7",
    "/jobs",
    "/jobs?task=t7&state=scheduled",
    "/jobs?key=77&task=t7",
    "/jobs/77",
    "/tasks",
    "/tasks/t7",
    "/what-if?task=t7",
    "/queues",
    "/queues/default",
    "/dead",
    "/dead?task=dies",
    "/tasks/dies",
    "/jobs?task=dies&state=dead",
    "/schedules",
    "/workers",
    "/sources",
    "/actions",
    "/audit",
    "/settings",
]


def main():
    program = os.path.abspath(sys.argv[1])
    jobs, keys = (int(text) for text in (sys.argv[2:] + ["1000000", "100000"][len(sys.argv) - 2 :]))
    with serving(program, CONFIG) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def ask(method, path, body=None):
            headers = {"accept": "text/html", "content-type": "application/json"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, text

        each = (jobs - keys) // TASKS
        for task in range(TASKS):
            own = keys // TASKS
            triggers = [{"payload": {"k": str(number)}} for number in range(own)]
            triggers += [{"payload": {"k": ""}, "debounce": False} for _ in range(each)]
            for begin in range(0, len(triggers), BATCH):
                status, text = ask("POST", f"/v1/tasks/t{task}/triggers", json.dumps(triggers[begin : begin + BATCH]))
                assert status == 202, text
        for _ in range(DEAD // BATCH):
            status, text = ask("POST", "/v1/tasks/dies/triggers", json.dumps([{"payload": 1}] * BATCH))
            assert status == 202, text
        process = {"incarnation": 1, "slots": CLAIM}
        claim = json.dumps({"tasks": ["dies"], "limit": CLAIM, "wait": "0s", "process": process})
        for _ in range(DEAD // CLAIM):
            claimed = json.loads(ask("POST", "/v1/workers/bench/claim", claim)[1])["jobs"]
            ends = [
                {"lease": job["lease"], "outcome": "failed", "permanent": True, "error": f"service {number % CAUSES} is away"}
                for number, job in enumerate(claimed)
            ]
            status, text = ask("POST", "/v1/workers/bench/settle", json.dumps({"settlements": ends}))
            assert status == 200, text
        print(f"{jobs} jobs, {keys} keys, {DEAD} dead jobs")
        for page in PAGES:
            times = []
            for _ in range(LOADS):
                begun = time.perf_counter()
                status, text = ask("GET", page)
                times.append((time.perf_counter() - begun) * 1_000)
                assert status == 200, (page, status, text[:500])
            times.sort()
            print(f"{page}: median {times[LOADS // 2]:.1f} ms, slowest {times[-1]:.1f} ms, {len(text) / 1_024:.0f} KiB", flush=True)


main()
