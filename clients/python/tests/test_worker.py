"""The worker of threads and the worker of asyncio: one suite, run for both.

A `Kit` hides the difference: it makes handlers from a small script of steps, so that each case is
written once.
"""

import asyncio
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

from fake_server import FakeServer
from parallel import load_tests  # noqa: F401 - unittest calls it

from quell import AsyncQuell, Cancel, Permanent, Quell, RawJson, Refused, Retry, Snooze

# Faults are what these tests are about: their warnings would hide the output.
logging.getLogger("quell").setLevel(logging.CRITICAL)

WITNESS = pathlib.Path(__file__).with_name("witness.py")


class ThreadKit:
    """Handlers as functions, the worker in its own threads."""

    def __init__(self, url, **options):
        self.worker = Quell(url).worker(**options)

    def handle(self, task, body):
        self.worker.task(task)(body)

    def block(self, task, started, release):
        """Registers a handler that runs until `release` and heeds no cancellation."""

        @self.worker.task(task)
        def handler(payload, job):
            started.append(job)
            release.wait(60)
            return "late"

    def heed(self, task, started):
        """Registers a handler that ends when it is cancelled."""

        @self.worker.task(task)
        def handler(payload, job):
            started.append(job)
            job.cancelled.wait(60)
            raise RuntimeError("cancelled")

    def start(self):
        self.worker.start()

    def join(self, timeout):
        return self.worker.join(timeout)


class AsyncKit:
    """Handlers as coroutines, the worker in an event loop of another thread."""

    def __init__(self, url, **options):
        self.worker = AsyncQuell(url).worker(**options)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.worker.run()), daemon=True)

    def handle(self, task, body):
        @self.worker.task(task)
        async def handler(payload, job):
            return body(payload, job)

    def block(self, task, started, release):
        @self.worker.task(task)
        async def handler(payload, job):
            started.append(job)
            while not release.is_set():
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    pass
            return "late"

    def heed(self, task, started):
        @self.worker.task(task)
        async def handler(payload, job):
            started.append(job)
            await asyncio.sleep(60)

    def start(self):
        self._thread.start()

    def join(self, timeout):
        self._thread.join(timeout)
        return not self._thread.is_alive()


class Suite:
    """The cases of both workers."""

    Kit = None

    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.kill)
        self.kits, self.release = [], threading.Event()
        self.addCleanup(self.end)

    def end(self):
        self.release.set()
        for kit in self.kits:
            kit.worker.stop()
        for kit in self.kits:
            self.assertTrue(kit.join(30))

    def kit(self, **options):
        kit = self.Kit(self.server.url, **{"lease": 30, "grace": 0, **options})
        self.kits.append(kit)
        return kit

    def begin(self, style, **options):
        """A job whose handler runs until it is cancelled, or until `release` is set."""
        kit, started, release = self.kit(**options), [], threading.Event()
        if style == "heed":
            kit.heed("t", started)
        else:
            kit.block("t", started, release)
        job = self.server.add("t")
        kit.start()
        self.wait(lambda: started)
        return kit, job, started, release

    def wait(self, condition, seconds=20):
        self.server.wait_for(condition, seconds)

    def finish(self):
        """Stops the last worker and waits for its end, so that it claims no job of the next."""
        kit = self.kits.pop()
        kit.worker.stop()
        self.assertTrue(kit.join(30))

    def run_one(self, body, payload="null", **fields):
        """Runs one job with a handler, and returns it when it has been settled."""
        kit = self.kit()
        kit.handle("t", body)
        job = self.server.add("t", payload, **fields)
        kit.start()
        self.wait(lambda: job.settlements)
        with self.server.changed:
            job.task = "done"
        return job

    def test_a_job_runs_and_its_output_is_settled(self):
        seen = []

        def body(payload, job):
            facts = (job.id, job.task, job.key, job.attempt, job.starts, job.triggers)
            seen.append((payload, facts, job.fencing_token, job.first_at, job.due_at, job.traces))
            return {"ok": True}

        job = self.run_one(body, '{"id": 1}', key="7")
        expected = ({"id": 1}, ("1", "t", "7", 1, 1, 1), "1-0001")
        self.assertEqual(seen[0][:3], expected)
        self.assertEqual((job.state, job.output_text), ("succeeded", '{"ok":true}'))
        claim = self.server.calls("claim")[0]
        self.assertEqual((claim["tasks"], claim["limit"], claim["wait"]), (["t"], 8, "20s"))
        self.assertEqual((claim["process"]["slots"], claim["process"]["pid"]), (8, os.getpid()))

    def test_a_payload_text_is_exact(self):
        text = '{"z":1e400, "a": [12345678901234567890123, 0.10000000000000000001]}'
        job = self.run_one(lambda payload, job: RawJson(job.payload_text), text)
        self.assertEqual(job.output_text, text)

    def test_a_very_long_integer_is_decoded(self):
        job = self.run_one(lambda payload, job: str(payload), "7" * 6000)
        self.assertEqual(json.loads(job.output_text), "7" * 6000)

    def test_exceptions_end_attempts(self):
        def fail(error):
            def body(payload, job):
                raise error

            return body

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        common = {"outcome": "failed", "permanent": False, "timed_out": False}
        cases = (
            (ValueError("bad \ud800"), common, "ValueError: bad ?\nTraceback"),
            (SystemExit(3), common, "SystemExit: 3"),
            (KeyboardInterrupt(), common, "KeyboardInterrupt"),
            (asyncio.CancelledError(), common, "CancelledError"),
            (Odd(), common, "Odd"),
            (Permanent("broken"), {**common, "permanent": True}, "broken"),
            (Retry(30, "later"), {**common, "retry_in": "30s"}, "later"),
            (Snooze("10s"), {"outcome": "snoozed", "delay": "10s"}, None),
            (Snooze(0), {"outcome": "snoozed", "delay": "1ms"}, None),
            (Cancel("no need"), {"outcome": "cancelled", "reason": "no need"}, None),
        )
        for error, expected, text in cases:
            with self.subTest(type(error).__name__):
                settled = dict(self.run_one(fail(error)).settlements[0])
                self.finish()
                found = settled.pop("error", None)
                if text is not None:
                    self.assertIn(text, found)
                    if type(error) is ValueError:
                        self.assertIn("raise error", found)
                        self.assertNotIn("_call", found)
                del settled["lease"]
                self.assertEqual(settled, expected)

    def test_an_output_that_is_no_json_fails(self):
        for output in (object(), float("inf"), {1, 2}):
            with self.subTest(type(output).__name__):
                job = self.run_one(lambda payload, job, output=output: output)
                self.finish()
                self.assertIn("the output is not JSON", job.settlements[0]["error"])

    def test_an_output_that_is_too_large_fails_for_good(self):
        job = self.run_one(lambda payload, job: "x" * 300_000)
        self.assertEqual(job.state, "dead")
        size = "output has 300002 bytes, the limit is 262144"
        cure = "keep it elsewhere and return where it is"
        self.assertEqual(job.error, f"the worker's output cannot be kept: {size}: {cure}")

    def test_a_settlement_that_the_server_refuses_blocks_no_other(self):
        kit = self.kit()
        kit.handle("t", lambda payload, job: payload)
        poison = self.server.add("t", '"poison"', most_attempts=1)
        others = [self.server.add("t", "1") for _ in range(20)]
        kit.start()
        self.wait(lambda: all(job.ended for job in [poison, *others]))
        self.assertIn("the server refused the settlement", poison.error)
        self.assertEqual({job.state for job in others}, {"succeeded"})

    def test_a_settlement_that_always_fails_blocks_no_other(self):
        kit = self.kit(slots=6)
        kit.handle("t", lambda payload, job: payload)
        self.server.broken = "bad"
        bad = self.server.add("t", '"bad"')
        others = [self.server.add("t", "1") for _ in range(5)]
        kit.start()
        self.wait(lambda: all(job.ended for job in others))
        late = self.server.add("t", "1")
        self.wait(lambda: late.ended)
        self.assertEqual((bad.state, bad.starts), ("running", 1))
        self.server.broken = None
        self.wait(lambda: bad.state == "succeeded")

    def test_jobs_never_exceed_the_slots(self):
        kit, lock, running, counts = self.kit(slots=3), threading.Lock(), [0], []

        def body(payload, job):
            with lock:
                running[0] += 1
                counts.append(running[0])
            time.sleep(0.005)
            with lock:
                running[0] -= 1

        kit.handle("t", body)
        jobs = [self.server.add("t") for _ in range(60)]
        kit.start()
        self.wait(lambda: all(job.ended for job in jobs))
        self.assertEqual(len(counts), 60)
        self.assertLessEqual(max(counts), 3)
        self.assertLessEqual(max(claim["limit"] for claim in self.server.calls("claim")), 3)

    def test_a_full_worker_claims_nothing(self):
        kit, started = self.kit(slots=2), []
        kit.block("t", started, self.release)
        jobs = [self.server.add("t") for _ in range(3)]
        kit.start()
        self.wait(lambda: len(started) == 2 and self.server.claims_in_flight == 0)
        claims = len(self.server.calls("claim"))
        self.assertEqual(sum(job.state == "running" for job in jobs), 2)
        self.release.set()
        self.wait(lambda: all(job.ended for job in jobs))
        self.assertGreater(len(self.server.calls("claim")), claims)

    def test_a_timeout_is_settled_at_once_and_keeps_the_slot(self):
        kit, started = self.kit(slots=1), []
        kit.block("t", started, self.release)
        job = self.server.add("t", timeout=0.2, most_attempts=1)
        kit.start()
        self.wait(lambda: job.settlements)
        settled = job.settlements[0]
        self.assertTrue(settled["timed_out"] and "timed out after 200ms" in settled["error"])
        self.wait(lambda: started[0].cancelled.is_set())
        self.assertEqual(self.server.claims_in_flight, 0)
        self.release.set()
        self.wait(lambda: self.server.claims_in_flight == 1)
        self.assertEqual(len(job.settlements), 1)

    def test_leases_are_renewed_with_progress_and_log(self):
        kit, started = self.kit(slots=2, lease=1), []
        kit.block("t", started, self.release)
        job = self.server.add("t")
        kit.start()
        self.wait(lambda: started)
        started[0].progress({"done": 1})
        started[0].log("first")
        self.wait(lambda: job.progress == {"done": 1})
        started[0].log("second")
        self.wait(lambda: job.log == ["first", "second"])
        self.wait(lambda: len(self.server.calls("renew")) >= 6)
        self.assertEqual((job.starts, job.state), (1, "running"))
        with self.assertRaises(ValueError):
            started[0].progress("x" * 5000)
        self.release.set()
        self.wait(lambda: job.state == "succeeded")

    def test_a_lost_lease_cancels_the_handler_and_drops_its_report(self):
        for style in ("heed", "block"):
            with self.subTest(style):
                kit, job, started, release = self.begin(style, lease=1)
                self.server.lose(job)
                self.wait(lambda: started[0].cancelled.is_set())
                release.set()
                kit.worker.stop()
                self.assertTrue(kit.join(20))
                self.assertEqual(job.settlements, [])

    def test_a_lease_that_no_renewal_extends_is_lost(self):
        kit, started = self.kit(lease=1), []
        kit.heed("t", started)
        job = self.server.add("t")
        self.server.fault("renew", *[503] * 100)
        kit.start()
        self.wait(lambda: started and started[0].cancelled.is_set())
        self.assertEqual(job.settlements, [])

    def test_renewals_survive_faults(self):
        kit, started = self.kit(lease=3), []
        kit.block("t", started, self.release)
        job = self.server.add("t")
        self.server.fault("renew", 503, "refuse", "garbage")
        kit.start()
        self.wait(lambda: len(self.server.calls("renew")) >= 6)
        self.assertEqual((job.starts, job.state), (1, "running"))
        self.assertFalse(started[0].cancelled.is_set())

    def test_progress_that_the_server_refuses_costs_no_lease(self):
        kit, started = self.kit(lease=2), []
        kit.block("t", started, self.release)
        self.server.add("t")
        kit.start()
        self.wait(lambda: started)
        started[0].progress(1)
        self.server.fault("renew", 422)
        self.wait(lambda: len(self.server.calls("renew")) >= 3)
        self.assertNotIn("progress", self.server.calls("renew")[-1]["leases"][0])
        self.assertFalse(started[0].cancelled.is_set())

    def test_a_settlement_is_repeated_until_it_is_acknowledged(self):
        for faults in (("drop",), ("refuse",), (503, 500, 502), ("garbage",), (401, 404)):
            with self.subTest(faults):
                self.server.fault("settle", *faults)
                before = len(self.server.calls("settle"))
                job = self.run_one(lambda payload, job: 1)
                self.wait(lambda: not self.server.faults["settle"])
                expected = before + len(faults) + 1
                self.wait(lambda: len(self.server.calls("settle")) == expected)
                self.finish()
                self.assertEqual((job.state, len(job.settlements)), ("succeeded", 1))

    def test_a_server_that_is_killed_and_restarted_loses_no_settlement(self):
        kit, started = self.kit(slots=2, grace=10), []
        kit.block("t", started, self.release)
        jobs = [self.server.add("t") for _ in range(4)]
        kit.start()
        self.wait(lambda: len(started) == 2)
        self.server.kill()
        self.release.set()
        time.sleep(0.3)  # some tries meet no server
        self.server.restart()
        self.wait(lambda: all(job.state == "succeeded" for job in jobs))
        self.assertEqual([job.starts for job in jobs], [1] * 4)

    def test_a_refused_first_claim_ends_the_worker(self):
        self.server.fault("claim", 404, 404)
        worker = Quell(self.server.url).worker()
        worker.task("t")(lambda payload, job: 1)
        with self.assertRaises(Refused):
            worker.run()

        async def run():
            async with AsyncQuell(self.server.url) as quell:
                worker = quell.worker()

                @worker.task("t")
                async def handler(payload, job):
                    return 1

                await worker.run()

        with self.assertRaises(Refused):
            asyncio.run(run())

    def test_claims_survive_faults(self):
        kit = self.kit(lease=1)
        kit.handle("t", lambda payload, job: 1)
        first = self.server.add("t")
        kit.start()
        self.wait(lambda: first.ended)
        self.server.fault("claim", "refuse", 503, 500, "garbage", 404, 401)
        job = self.server.add("t")
        self.wait(lambda: job.ended, 30)

    def test_a_claim_whose_answer_is_lost_runs_after_its_lease(self):
        kit = self.kit(lease=1)
        kit.handle("t", lambda payload, job: 1)
        self.server.fault("claim", "drop")
        job = self.server.add("t")
        kit.start()
        self.wait(lambda: job.ended)
        self.assertEqual(job.starts, 2)

    def test_empty_claims_do_not_spin(self):
        kit = self.kit()
        kit.handle("t", lambda payload, job: 1)
        self.server.fault("leave", *["refuse"] * 100)
        kit.start()
        self.wait(lambda: self.server.claims_in_flight == 1)
        with self.server.changed:
            self.server.leavers.add(self.server.calls("claim")[0]["process"]["incarnation"])
        time.sleep(0.5)
        self.assertLess(len(self.server.calls("claim")), 12)

    def test_a_graceful_stop_lets_handlers_end(self):
        kit, started = self.kit(grace=20, lease=1), []
        kit.block("t", started, self.release)
        job = self.server.add("t")
        kit.start()
        self.wait(lambda: started)
        kit.worker.stop()
        self.wait(lambda: self.server.calls("leave"))
        renewals = len(self.server.calls("renew"))
        self.wait(lambda: len(self.server.calls("renew")) >= renewals + 4)
        self.assertFalse(kit.join(0))
        self.release.set()
        self.assertTrue(kit.join(20))
        self.assertEqual((job.state, job.starts), ("succeeded", 1))
        self.assertGreaterEqual(len(self.server.calls("leave")), 2)

    def test_an_idle_worker_stops_at_once(self):
        kit = self.kit(grace=20)
        kit.handle("t", lambda payload, job: 1)
        kit.start()
        self.wait(lambda: self.server.claims_in_flight == 1)
        kit.worker.stop()
        self.assertTrue(kit.join(5))

    def test_a_job_that_comes_after_the_stop_is_released(self):
        kit = self.kit(grace=20)
        kit.handle("t", lambda payload, job: self.fail("the handler must not start"))
        with self.server.changed:
            self.server.hold_claims = True
        job = self.server.add("t")
        self.server.fault("leave", 1.0)
        self.server.fault("claim", 0.2)
        kit.start()
        self.wait(lambda: self.server.calls("claim"))
        kit.worker.stop()
        with self.server.changed:
            self.server.hold_claims = False
        self.wait(lambda: job.settlements)
        self.assertEqual(job.settlements[0]["outcome"], "released")
        self.assertTrue(kit.join(20))
        self.assertEqual(job.attempt, 0)

    def test_the_end_of_the_grace_cancels_and_releases(self):
        for style in ("heed", "block"):
            with self.subTest(style):
                kit, job, started, release = self.begin(style, grace=0.3)
                kit.worker.stop()
                self.wait(lambda: job.settlements)
                self.assertTrue(started[0].cancelled.is_set())
                outcomes = {one["outcome"] for one in job.settlements}
                self.assertEqual((outcomes, job.attempt), ({"released"}, 0))
                release.set()
                self.assertTrue(kit.join(20))
                job.task = "done"

    def test_a_stop_without_a_server_ends(self):
        kit, started = self.kit(grace=0.2), []
        kit.heed("t", started)
        self.server.add("t")
        kit.start()
        self.wait(lambda: started)
        self.server.kill()
        kit.worker.stop()
        self.assertTrue(kit.join(20))
        self.server.restart()

    def test_a_worker_is_used_as_meant(self):
        kit = self.kit()
        with self.assertRaises(RuntimeError):
            if isinstance(kit, ThreadKit):
                kit.worker.start()
            else:
                asyncio.run(kit.worker.start())
        kit.handle("t", lambda payload, job: 1)
        with self.assertRaises(ValueError):
            kit.handle("t", lambda payload, job: 1)
        kit.start()
        self.wait(lambda: self.server.claims_in_flight == 1)
        with self.assertRaises(RuntimeError):
            kit.handle("u", lambda payload, job: 1)

    def witness(self, *extra):
        """Starts the witness program, and returns it and its file."""
        path = pathlib.Path(self.id() + ".log").absolute()
        path.touch()
        self.addCleanup(path.unlink)
        program = subprocess.Popen(
            [sys.executable, str(WITNESS), str(path), *extra],
            env={**os.environ, "QUELL_SERVER": self.server.url},
        )
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program, path

    def test_sigterm_ends_gracefully(self):
        program, path = self.witness(*self.witness_options)
        job = self.server.add("stamp", '{"ms": 700}')
        self.wait(lambda: "start" in path.read_text())
        program.send_signal(signal.SIGTERM)
        self.assertEqual(program.wait(20), 0)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual([line["event"] for line in lines], ["start", "end"])
        self.assertEqual((lines[0]["job"], lines[0]["payload"]), (job.id, {"ms": 700}))
        self.assertEqual(job.state, "succeeded")

    def test_the_witness_rides_out_restarts(self):
        program, path = self.witness(*self.witness_options)
        jobs = [self.server.add("stamp", f'{{"ms": {n % 7 * 20}}}') for n in range(60)]
        for ended in (5, 20, 40):
            self.wait(lambda ended=ended: sum(job.ended for job in jobs) >= ended)
            self.server.kill()
            time.sleep(0.2)
            self.server.restart()
        self.wait(lambda: all(job.state == "succeeded" for job in jobs))
        program.send_signal(signal.SIGTERM)
        self.assertEqual(program.wait(20), 0)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        tokens = [line["fencing_token"] for line in lines if line["event"] == "start"]
        self.assertEqual(len(tokens), len(set(tokens)), "an attempt started twice")
        ends = {line["job"] for line in lines if line["event"] == "end"}
        self.assertEqual(ends, {job.id for job in jobs})

    def test_a_second_signal_ends_at_once(self):
        program, path = self.witness(*self.witness_options)
        self.server.add("stamp", '{"ms": 25000}')
        self.wait(lambda: "start" in path.read_text())
        program.send_signal(signal.SIGTERM)
        self.wait(lambda: self.server.calls("leave"))
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(10), 128 + signal.SIGINT)


class Threads(Suite, unittest.TestCase):
    Kit = ThreadKit
    witness_options = ()

    def test_an_async_handler_is_refused(self):
        async def handler(payload, job):
            pass

        with self.assertRaises(TypeError):
            Quell(self.server.url).worker().task("t")(handler)


class Asyncio(Suite, unittest.TestCase):
    Kit = AsyncKit
    witness_options = ("--asyncio",)

    def test_a_plain_handler_is_refused(self):
        with self.assertRaises(TypeError):
            AsyncQuell(self.server.url).worker().task("t")(lambda payload, job: 1)

    def test_a_blocked_event_loop_loses_no_lease(self):
        kit = self.kit(lease=1)
        kit.handle("t", lambda payload, job: time.sleep(2.5))
        job = self.server.add("t")
        kit.start()
        self.wait(lambda: job.ended)
        self.assertEqual(job.starts, 1)

    def test_a_worker_whose_event_loop_has_closed_ends(self):
        worker = AsyncQuell(self.server.url).worker(grace=30)

        @worker.task("t")
        async def handler(payload, job):
            pass

        asyncio.run(worker.start())
        self.wait(lambda: self.server.claims_in_flight == 1)
        job = self.server.add("t")
        self.assertTrue(worker._engine.join(20))
        self.assertEqual({one["outcome"] for one in job.settlements}, {"released"})

    def test_cancelling_run_releases_the_jobs(self):
        started = []

        async def main():
            worker = AsyncQuell(self.server.url).worker(grace=30)

            @worker.task("t")
            async def handler(payload, job):
                started.append(job)
                await asyncio.sleep(60)

            running = asyncio.create_task(worker.run())
            while not started:
                await asyncio.sleep(0.01)
            running.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await running

        job = self.server.add("t")
        asyncio.run(asyncio.wait_for(main(), 20))
        self.assertEqual({one["outcome"] for one in job.settlements}, {"released"})


if __name__ == "__main__":
    unittest.main()
