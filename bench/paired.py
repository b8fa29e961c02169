#!/usr/bin/env python3
"""Compares two builds of Quell, in turn on the same machine: `bench/paired.py BEFORE AFTER [ROUNDS]`.

BEFORE and AFTER are folders with the programs quell-bench, quell-postgres-bench and quell-redis-bench,
each built by one profile at one commit. Every round runs a workload with both, and which one begins
changes from round to round. A line has the workload, the median of each build and the median of the
rounds' ratios: above 1, AFTER is better. Needs redis-server and PostgreSQL's initdb and postgres (of
Debian's packages); both are started on free ports in a temporary folder and stopped at the end.
"""

import contextlib
import glob
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# The arguments of the programs, and whether a smaller value is better.
REDIS = [
    ("batch --count 200000", False),
    ("single --callers 32 --count 40000", False),
    ("single --callers 512 --count 100000", False),
    ("debounced --callers 512 --keys 100 --count 150000", False),
    ("windows --count 100000", False),
    ("drain --count 100000", False),
    ("latency --samples 200", True),
]
POSTGRES = [
    ("batch --count 60000", False),
    ("single --callers 32 --count 8000", False),
    ("single --callers 512 --count 20000", False),
    ("debounced --callers 512 --keys 100 --count 40000", False),
    ("drain --count 30000", False),
    ("latency --samples 200", True),
]


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def stopped_at_end(command, port, **options):
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def redis():
    """A server of its own for each measurement, durable as the benchmark's page says."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--dir", folder, "--appendonly", "yes",
                   "--appendfsync", "everysec", "--save", ""]
        with stopped_at_end(command, port):
            yield f"redis://127.0.0.1:{port}/"


@contextlib.contextmanager
def postgres():
    """One server for all measurements: each program makes databases of its own."""
    tools = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        # The server refuses to run as root.
        user = {"user": "postgres"} if os.getuid() == 0 else {}
        data = os.path.join(folder, "data")
        if user:
            subprocess.run(["chown", "postgres", folder], check=True)
        subprocess.run([f"{tools}/initdb", "-D", data, "-U", "postgres", "-A", "trust"], check=True,
                       stdout=subprocess.DEVNULL, cwd=folder, **user)
        command = [f"{tools}/postgres", "-D", data, "-p", str(port), "-k", folder]
        with stopped_at_end(command, port, cwd=folder, **user):
            time.sleep(2)
            yield f"postgres://postgres@127.0.0.1:{port}/postgres"


def printed(program, arguments):
    ran = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    return json.loads(ran.stdout.strip().splitlines()[-1])


def on_redis(folder, arguments):
    count = arguments[-1]
    with redis() as url:
        program = os.path.join(folder, "quell-redis-bench")
        if arguments[0] == "drain":
            printed(program, ["batch", "--count", count, "--url", url])
        return printed(program, [*arguments, "--url", url])["value"]


def on_postgres(url):
    def measure(folder, arguments):
        program = os.path.join(folder, "quell-postgres-bench")
        found = printed(program, [*arguments, "--rounds", "1", "--url", url])
        return found["median"]
    return measure


def on_sqlite(folder):
    """All workloads of a quick run: values by name."""
    with tempfile.TemporaryDirectory() as place:
        lines = os.path.join(place, "lines")
        program = os.path.abspath(os.path.join(folder, "quell-bench"))
        subprocess.run([program, "sqlite", "--quick", "--json", lines], check=True, cwd=place,
                       stdout=subprocess.DEVNULL)
        with open(lines, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def in_turn(builds, rounds, measure):
    """The values of both builds, round by round."""
    found = []
    for number in range(rounds):
        pair = {}
        for folder in builds if number % 2 == 0 else builds[::-1]:
            pair[folder] = measure(folder)
        found.append([pair[folder] for folder in builds])
    return found


def report(name, pairs, less_is_better):
    ratios = [before / after if less_is_better else after / before for before, after in pairs]
    before, after = (statistics.median(values) for values in zip(*pairs))
    print(f"| {name} | {before:,.1f} | {after:,.1f} | {statistics.median(ratios):.2f} |", flush=True)


def main():
    builds = [os.path.abspath(folder) for folder in sys.argv[1:3]]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print("| workload | before | after | ratio |\n| --- | --- | --- | --- |")
    for text, less in REDIS:
        pairs = in_turn(builds, rounds, lambda folder: on_redis(folder, text.split()))
        report(f"redis: {text}", pairs, less)
    with postgres() as url:
        for text, less in POSTGRES:
            measure = on_postgres(url)
            pairs = in_turn(builds, rounds, lambda folder: measure(folder, text.split()))
            report(f"postgres: {text}", pairs, less)
    runs = in_turn(builds, rounds, on_sqlite)
    for number, (first, _) in enumerate(zip(*runs[0])):
        name, less = f"{first['workload']}, {first['mode']}", first["unit"] != "per second"
        pairs = [[before[number]["quell"], after[number]["quell"]] for before, after in runs]
        report(f"sqlite: {name}", pairs, less)


if __name__ == "__main__":
    main()
