"""Integration tests against a real server: `python live.py`, with QUELL_SERVER and QUELL_TOKEN.

The server needs these tasks, all with `pull = true`: `echo` and `slow` without a key; `keyed` with
`key = "{{ id }}"` and a debounce of 200 ms to 2 s; `flaky` with retries after 100 ms and at most 3
attempts. Each test uses payloads of its own, so that the store may have other jobs.
"""

import asyncio
import threading
import time
import unittest
import uuid

from quell import AsyncQuell, Permanent, Quell, RawJson, Refused, Trigger

WAIT = 20


def unique():
    return uuid.uuid4().hex


def wait_for(condition, seconds=WAIT):
    """Waits until a condition is true, and returns its value."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not true within {seconds} s")


class Live(unittest.TestCase):
    def setUp(self):
        self.quell = Quell()
        self.addCleanup(self.quell.close)

    def worker(self, **options):
        worker = self.quell.worker(**{"lease": 2, "grace": 5, **options})
        self.addCleanup(lambda: self.assertTrue(worker.join(WAIT)))
        self.addCleanup(worker.stop)
        return worker

    def test_echo_is_exact(self):
        worker = self.worker()
        seen = []

        @worker.task("echo")
        def echo(payload, job):
            seen.append((payload, job.payload_text))
            return RawJson(job.payload_text)

        worker.start()
        text = (
            '{"z": 12345678901234567890123, "a": 0.10000000000000000001, "m": [1e400, -0.0],'
            f' "id": "{unique()}", "text": "ü€\\n"}}'
        )
        receipt = self.quell.trigger("echo", RawJson(text))
        self.assertEqual(receipt.kind, "accepted")
        result = self.quell.result(receipt.job, wait=WAIT)
        self.assertEqual((result.state, result.output_text), ("succeeded", text), result.error)
        payload, payload_text = next(one for one in seen if one[1] == text)
        self.assertEqual(payload["z"], 12345678901234567890123)
        self.assertEqual(list(payload), ["z", "a", "m", "id", "text"])
        plain = {"z": 12345678901234567890123, "b": [None, True, "x"], "a": {"c": unique()}}
        receipt = self.quell.trigger("echo", plain)
        result = self.quell.result(receipt.job, wait=WAIT)
        self.assertEqual((result.output, list(result.output)), (plain, ["z", "b", "a"]))

    def test_triggers_of_a_key_become_one_run(self):
        worker = self.worker()
        runs, id = [], unique()

        @worker.task("keyed")
        def keyed(payload, job):
            if payload["id"] == id:
                runs.append((job.key, job.triggers))

        worker.start()
        receipts = self.quell.trigger_many(
            "keyed", [Trigger({"id": id, "n": n}) for n in range(50)]
        )
        self.assertEqual(len({receipt.job for receipt in receipts}), 1)
        self.assertTrue(self.quell.result(receipts[0].job, wait=WAIT).ended)
        self.assertEqual(runs, [(id, 50)])

    def test_a_flaky_job_succeeds_at_the_third_attempt(self):
        worker = self.worker()
        attempts, id = [], unique()

        @worker.task("flaky")
        def flaky(payload, job):
            if payload["id"] != id:
                return None
            attempts.append(job.attempt)
            if job.attempt < 3:
                raise RuntimeError(f"attempt {job.attempt} fails")
            return job.attempt

        worker.start()
        receipt = self.quell.trigger("flaky", {"id": id})
        result = self.quell.result(receipt.job, wait=WAIT)
        self.assertEqual((result.state, result.output, attempts), ("succeeded", 3, [1, 2, 3]))

    def test_a_permanent_error_makes_the_job_dead(self):
        worker = self.worker()

        @worker.task("flaky")
        def flaky(payload, job):
            raise Permanent("this cannot work")

        worker.start()
        result = self.quell.result(self.quell.trigger("flaky", {"id": unique()}).job, wait=WAIT)
        self.assertEqual(result.state, "dead")
        self.assertIn("this cannot work", result.error)

    def test_a_cancelled_job_cancels_its_handler(self):
        worker = self.worker()
        started, cancelled, id = threading.Event(), threading.Event(), unique()

        @worker.task("slow")
        def slow(payload, job):
            if payload["id"] == id:
                started.set()
                if job.cancelled.wait(WAIT):
                    cancelled.set()

        worker.start()
        job = self.quell.trigger("slow", {"id": id}).job
        self.assertTrue(started.wait(WAIT))
        self.assertEqual(self.quell.cancel(job), "cancelled")
        self.assertTrue(cancelled.wait(WAIT))
        self.assertEqual(self.quell.result(job).state, "cancelled")

    def test_progress_and_log_are_shown_while_the_job_runs(self):
        worker = self.worker()
        release, id = threading.Event(), unique()
        self.addCleanup(release.set)

        @worker.task("slow")
        def slow(payload, job):
            if payload["id"] == id:
                job.progress({"done": 7})
                job.log("halfway there")
                release.wait(WAIT)

        worker.start()
        job = self.quell.trigger("slow", {"id": id}).job

        def shown():
            shown = self.quell.job(job)
            running = shown.get("running") or shown["job"].get("running")
            text = repr(running)
            return running if "'done': 7" in text and "halfway there" in text else None

        wait_for(shown)
        release.set()
        self.assertEqual(self.quell.result(job, wait=WAIT).state, "succeeded")

    def test_a_graceful_stop_gives_jobs_back(self):
        first, second = self.worker(grace=0.5), self.worker()
        starts, id = [], unique()

        @first.task("slow")
        def heed(payload, job):
            if payload["id"] == id:
                starts.append(job.attempt)
                job.cancelled.wait(WAIT)
                raise RuntimeError("stopped")

        @second.task("slow")
        def finish(payload, job):
            if payload["id"] == id:
                starts.append(job.attempt)
                return "done"
            return None

        first.start()
        job = self.quell.trigger("slow", {"id": id}).job
        wait_for(lambda: starts)
        first.stop()
        self.assertTrue(first.join(WAIT))
        second.start()
        result = self.quell.result(job, wait=WAIT)
        # A release spends no attempt.
        self.assertEqual((result.output, starts), ("done", [1, 1]))

    def test_an_idempotency_key_returns_the_first_job(self):
        key, id = unique(), unique()
        one = self.quell.trigger("echo", {"id": id}, idempotency_key=key, delay="1h")
        two = self.quell.trigger("echo", {"id": id}, idempotency_key=key, delay="1h")
        self.assertEqual((one.kind, two.kind, two.job), ("accepted", "existing", one.job))
        with self.assertRaises(Refused) as caught:
            self.quell.trigger("echo", {"id": "other"}, idempotency_key=key)
        self.assertEqual(caught.exception.kind, "idempotency_conflict")
        self.assertEqual(self.quell.cancel(one.job), "cancelled")

    def test_the_asyncio_worker(self):
        async def main():
            id, cancelled = unique(), asyncio.Event()
            started = asyncio.Event()
            async with AsyncQuell() as client:
                worker = client.worker(lease=2, grace=5)

                @worker.task("echo")
                async def echo(payload, job):
                    return payload

                @worker.task("slow")
                async def slow(payload, job):
                    if payload["id"] != id:
                        return
                    started.set()
                    try:
                        await asyncio.sleep(WAIT)
                    except asyncio.CancelledError:
                        cancelled.set()
                        raise

                await worker.start()
                receipts = await asyncio.gather(
                    *(client.trigger("echo", {"id": id, "n": n}) for n in range(30))
                )
                for n, receipt in enumerate(receipts):
                    result = await client.result(receipt.job, wait=WAIT)
                    self.assertEqual(result.output, {"id": id, "n": n})
                job = (await client.trigger("slow", {"id": id})).job
                await asyncio.wait_for(started.wait(), WAIT)
                await client.cancel(job)
                await asyncio.wait_for(cancelled.wait(), WAIT)
                worker.stop()
                await asyncio.wait_for(worker.join(), WAIT)

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
