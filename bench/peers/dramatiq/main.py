"""dramatiq, measured the way `bench` measures Quell: takes the arguments of
`bench/peers/redis-common` and prints the same line. Jobs run in processes of their own with threads
in them, as its command line starts them: one for each core."""

import argparse
import json
import multiprocessing
import os
import threading
import time
from importlib.metadata import version

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

HOUR = 3_600_000
NOTE = "has no debounce: each trigger is a delayed message of its own"
TUNED = {
    "defaults": "a process for each core with 8 threads, middleware and prefetch as shipped",
    "best": "a process for each core with 8 threads, retries only, prefetch 1,000, idle for 5 ms, "
    "connections for all callers",
}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--url", default="redis://127.0.0.1/")
    parser.add_argument("--settings", choices=TUNED, default="defaults")
    for name, value in (
        ("callers", 32),
        ("keys", 100),
        ("count", 0),
        ("samples", 0),
        ("budget", 30),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


class Program:
    """One broker and one actor, whose handler says when it started."""

    def __init__(self, args, started=lambda: None):
        middleware = [Retries()] if args.settings == "best" else None
        # A hundred connections at most, as shipped.
        query = "?max_connections=1000" if args.settings == "best" else ""
        self.broker = RedisBroker(url=args.url + query, middleware=middleware)
        self.noop = dramatiq.actor(lambda n: started(), actor_name="noop", broker=self.broker)

    def unfinished(self):
        """Messages that no worker has acknowledged."""
        return self.broker.client.hlen(f"{self.broker.namespace}:default.msgs")


def serve(args, starts, times, stop):
    """A worker process: counts handlers that started, or tells their times."""
    lock = threading.Lock()

    def started():
        if times is not None:
            times.put(time.monotonic())
        with lock:
            starts.value += 1

    program = Program(args, started)
    if args.settings == "best":
        worker = dramatiq.Worker(program.broker, worker_threads=8, worker_timeout=5)
    else:
        worker = dramatiq.Worker(program.broker, worker_threads=8)
    worker.start()
    stop.wait()
    worker.stop()


class Workers:
    """As many processes as its command line would start."""

    def __init__(self, args, times=None):
        if args.settings == "best":
            # Read when a process imports it.
            os.environ["dramatiq_queue_prefetch"] = "1000"
        context = multiprocessing.get_context("spawn")
        self.stop_event = context.Event()
        self.times = context.SimpleQueue() if times else None
        self.starts = [context.Value("q", 0, lock=False) for _ in range(os.cpu_count())]
        self.processes = [
            context.Process(target=serve, args=(args, starts, self.times, self.stop_event))
            for starts in self.starts
        ]
        for process in self.processes:
            process.start()

    def started(self):
        return sum(starts.value for starts in self.starts)

    def stop(self, by_force=False):
        self.stop_event.set()
        for process in self.processes:
            if by_force:
                process.kill()
            process.join()


def per_second(jobs, since):
    return {"value": jobs / (time.monotonic() - since), "jobs": jobs}


def batch(args):
    """It has no bulk call: one after the other."""
    program = Program(args)
    since = time.monotonic()
    for n in range(args.count):
        program.noop.send(n)
    return per_second(args.count, since)


def callers(args, call, at_once):
    each = -(-args.count // at_once)
    failed = []

    def run(caller):
        try:
            for n in range(each):
                call(n * at_once + caller)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(caller,)) for caller in range(at_once)]
    since = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"Error: {len(failed)} of {at_once} callers failed: {failed[0]!r}")
    return per_second(each * at_once, since)


def single(args):
    return callers(args, Program(args).noop.send, args.callers)


def delayed(args):
    program = Program(args)
    at_once = 32 if args.workload == "windows" else args.callers
    return callers(args, lambda n: program.noop.send_with_options(args=(n,), delay=HOUR), at_once)


def drain(args):
    to_the_end = args.workload == "drain"
    program = Program(args)
    if to_the_end and program.unfinished() != args.count:
        raise SystemExit("Error: the jobs are not all queued")
    # Interpreters take longer to start than workers of others; that is no part of the drain.
    since = time.monotonic()
    workers = Workers(args)
    while workers.started() == 0:
        since = time.monotonic()
        time.sleep(0.001)
    while workers.started() < args.count:
        time.sleep(0.001)
    while to_the_end and program.unfinished() > 0:
        time.sleep(0.001)
    found = per_second(args.count, since)
    workers.stop(by_force=not to_the_end)
    return found


def latency(args):
    program = Program(args)
    workers = Workers(args, times=True)
    # The first one tells that they are up.
    program.noop.send(0)
    workers.times.get()
    time.sleep(2)
    waits = []
    began = time.monotonic()
    for n in range(args.samples):
        if time.monotonic() - began > args.budget:
            break
        since = time.monotonic()
        program.noop.send(n)
        waits.append((workers.times.get() - since) * 1e3)
        # Not in step with anybody's polls.
        time.sleep(0.010 * (1 + n * 7 % 16 / 10))
    workers.stop()
    waits.sort()
    at = lambda share: waits[(len(waits) - 1) * share // 100]
    return {"value": at(50), "p99": at(99), "jobs": len(waits)}


WORKLOADS = {
    "batch": batch,
    "single": single,
    "debounced": delayed,
    "windows": delayed,
    "drain": drain,
    "head": drain,
    "latency": latency,
}


def main():
    args = arguments()
    found = WORKLOADS[args.workload](args)
    about = {"peer": f"dramatiq {version('dramatiq')}", "tuned": TUNED[args.settings]}
    if args.workload in ("debounced", "windows"):
        about["note"] = NOTE
    print(json.dumps({**about, **found}))


if __name__ == "__main__":
    main()
