"""Triggers, results and errors, against the fake server."""

import asyncio
import datetime
import json
import socket
import threading
import unittest

from fake_server import FakeServer
from parallel import load_tests  # noqa: F401 - unittest calls it

import quell
from quell import AsyncQuell, Quell, RawJson, Trigger, _api
from quell._http import Call


class Client(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.kill)
        self.quell = Quell(self.server.url, retry_for=10)
        self.addCleanup(self.quell.close)

    def test_a_trigger_sends_its_options(self):
        noon = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc)
        receipt = self.quell.trigger(
            "re size/ü",
            {"id": 1},
            delay=datetime.timedelta(seconds=1.5),
            run_at=noon,
            priority=2,
            partition="c1",
            dedup="d",
            dedup_ttl=3600,
            dedup_until="done",
            debounce={"min": 0.25, "max": "1m"},
            idempotency_key="i",
            trace="00-aa-bb-01",
        )
        self.assertEqual((receipt.kind, receipt.task, receipt.job), ("accepted", "re size/ü", "1"))
        self.assertEqual(receipt.raw["receipt"], "accepted")
        sent = {
            "payload": {"id": 1},
            "delay": "1500ms",
            "run_at": "2026-03-01T12:00:00Z",
            "priority": 2,
            "partition": "c1",
            "dedup": "d",
            "dedup_ttl": "3600s",
            "dedup_until": "done",
            "debounce": {"min": "250ms", "max": "1m"},
            "idempotency_key": "i",
            "trace": {"traceparent": "00-aa-bb-01"},
        }
        self.assertEqual(self.server.calls("triggers"), [sent])

    def test_a_trigger_without_options_sends_the_payload_only(self):
        self.quell.trigger("t", delay=0)
        self.quell.trigger("t", "\ud800", debounce=False)
        self.assertEqual(
            self.server.calls("triggers"),
            [{"payload": None}, {"payload": "\ud800", "debounce": False}],
        )

    def test_malformed_options_are_refused_before_they_are_sent(self):
        for options in (
            {"payload": float("nan")},
            {"payload": float("inf")},
            {"delay": -1},
            {"run_at": datetime.datetime(2026, 1, 1)},
        ):
            with self.subTest(options), self.assertRaises(ValueError):
                self.quell.trigger("t", **options)
        self.assertEqual(self.server.calls("triggers"), [])

    def test_an_exact_payload_is_sent_as_it_is(self):
        text = '{"b": 1e400, "a": [0.10000000000000000001, 12345678901234567890123]}'
        receipt = self.quell.trigger("t", RawJson(text))
        self.assertEqual(self.server.jobs[receipt.job].payload_text, text)
        for wrong in ("{", "1 2", "", "NaN", "[Infinity]"):
            with self.subTest(wrong), self.assertRaises(ValueError):
                RawJson(wrong)

    def test_a_batch_has_a_receipt_for_each_trigger(self):
        receipts = self.quell.trigger_many("t", [Trigger(1), Trigger(2, delay=5)])
        self.assertEqual([receipt.job for receipt in receipts], ["1", "2"])
        self.quell.trigger_many("t", [Trigger(3)], dedup="batch", dedup_ttl="1h")
        batch = {"triggers": [{"payload": 3}], "dedup": "batch", "dedup_ttl": "1h"}
        self.assertEqual(self.server.calls("triggers")[1], batch)

    def test_a_result_has_the_exact_output(self):
        job = self.server.add("t", state="succeeded", output_text="12345678901234567890.10")
        result = self.quell.result(job.id)
        self.assertTrue(result.ended)
        self.assertEqual(result.output_text, "12345678901234567890.10")

    def test_a_result_waits_for_the_end(self):
        job = self.server.add("t")

        def end():
            self.server.wait_for(lambda: any(c == "result" for c, _ in self.server.requests))
            with self.server.changed:
                job.state = "succeeded"

        thread = threading.Thread(target=end)
        thread.start()
        self.assertEqual(self.quell.result(job.id, wait=20).state, "succeeded")
        thread.join()
        waiting = self.server.add("t")
        self.assertFalse(self.quell.result(waiting.id, wait=0.1).ended)

    def test_problem_details_become_exceptions(self):
        with self.assertRaises(quell.NotFound) as caught:
            self.quell.job("77")
        error = caught.exception
        self.assertEqual((error.kind, error.field, error.status), ("not_found", "job", 404))
        self.assertIn("77", str(error))
        job = self.server.add("t", state="dead")
        with self.assertRaises(quell.Refused) as refused:
            self.quell.cancel(job.id)
        self.assertEqual(refused.exception.kind, "illegal_move")

    def test_a_wrong_token_is_unauthorized(self):
        self.server.token = "right"
        with self.assertRaises(quell.Unauthorized):
            self.quell.trigger("t")
        with Quell(self.server.url, token="right") as client:
            self.assertEqual(client.trigger("t").kind, "accepted")

    def test_windows_are_flushed_and_cancelled(self):
        self.assertEqual(self.quell.flush("t", "k"), "1")
        self.assertEqual(self.quell.cancel_window("t", "k"), "1")

    def test_requests_share_connections(self):
        for _ in range(5):
            self.quell.trigger("t")
        self.assertEqual(len(self.server.connections), 1)

    def test_a_connection_that_was_idle_for_long_is_not_reused(self):
        self.quell.trigger("t")
        first, transport = set(self.server.connections), self.quell._connection.transport
        transport._idle = [(one, since - 5.0) for one, since in transport._idle]
        self.quell.trigger("t")
        self.server.wait_for(lambda: len(self.server.connections) == 1)
        self.assertNotEqual(first, self.server.connections)

    def test_a_call_that_is_aborted_after_its_end_ends_no_other(self):
        call, connection = Call(), self.quell._connection
        request = _api.trigger("t", Trigger(1))
        connection.exchange(request, call)
        self.server.fault("triggers", 0.3)
        receipts = []
        other = threading.Thread(target=lambda: receipts.append(connection.exchange(request)))
        other.start()
        self.server.wait_for(lambda: len(self.server.calls("triggers")) == 2)
        call.abort()
        other.join()
        self.assertEqual(len(receipts), 1)


class RetrySafety(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.kill)
        self.quell = Quell(self.server.url, timeout=5, retry_for=10)
        self.addCleanup(self.quell.close)

    def triggers(self):
        return len(self.server.calls("triggers"))

    def test_a_refusal_by_503_is_retried_without_a_key(self):
        self.server.fault("triggers", 503, 503)
        self.assertEqual(self.quell.trigger("t").kind, "accepted")
        self.assertEqual((self.triggers(), len(self.server.jobs)), (3, 1))

    def test_an_unknown_outcome_without_a_key_is_raised(self):
        unsafe = (
            {},
            {"dedup": "a", "dedup_until": "started"},
            {"dedup": "b", "dedup_until": "done"},
            {"dedup": "c", "dedup_ttl": 1},
        )
        for options in unsafe:
            for fault in ("drop", "refuse", "garbage", 504, 408, 502):
                with self.subTest(options=options, fault=fault):
                    before = self.triggers()
                    self.server.fault("triggers", fault)
                    with self.assertRaises(quell.UnknownOutcome):
                        self.quell.trigger("t", **options)
                    self.assertEqual(self.triggers(), before + 1)

    def test_an_unknown_outcome_with_a_key_is_retried(self):
        for options in ({"dedup": "a"}, {"idempotency_key": "b"}):
            for fault in ("drop", 504):
                self.server.fault("triggers", fault)
            with self.subTest(options):
                self.assertIn(self.quell.trigger("t", **options).kind, ("duplicate", "existing"))
        self.assertEqual(len(self.server.jobs), 2)

    def test_a_batch_is_retried_only_where_each_trigger_or_the_batch_has_a_key(self):
        keyed = [Trigger(1, dedup="x"), Trigger(2, idempotency_key="y")]
        self.server.fault("triggers", "drop")
        self.assertEqual(len(self.quell.trigger_many("t", keyed)), 2)
        self.server.fault("triggers", "drop")
        self.assertEqual(len(self.quell.trigger_many("t", [Trigger(1)], dedup="z")), 1)
        self.server.fault("triggers", "drop")
        with self.assertRaises(quell.UnknownOutcome):
            self.quell.trigger_many("t", [*keyed, Trigger(3)])

    def test_a_timeout_after_the_send_is_an_unknown_outcome(self):
        client = Quell(self.server.url, timeout=0.2, retry_for=10)
        self.addCleanup(client.close)
        self.server.fault("triggers", 1.0)
        with self.assertRaises(quell.UnknownOutcome):
            client.trigger("t")

    def test_a_server_that_is_away_is_unavailable_and_retried(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with self.assertRaises(quell.Unavailable):
            Quell(url, retry_for=0.3).trigger("t")
        self.server.kill()
        timer = threading.Timer(0.3, self.server.restart)
        timer.start()
        # The pooled connection is found closed before anything is sent on it.
        self.assertEqual(self.quell.trigger("t").kind, "accepted")
        timer.join()

    def test_an_unknown_outcome_stays_one_when_the_server_goes_away_later(self):
        client = Quell(self.server.url, retry_for=0.5)
        self.addCleanup(client.close)
        self.server.fault("triggers", "drop", *[503] * 50)
        with self.assertRaises(quell.UnknownOutcome):
            client.trigger("t", dedup="k")

    def test_reads_are_retried_and_never_unknown(self):
        job = self.server.add("t", state="dead")
        self.server.fault("result", "drop", "garbage", 504)
        self.assertEqual(self.quell.result(job.id).state, "dead")
        client = Quell(self.server.url, retry_for=0.3)
        self.addCleanup(client.close)
        self.server.fault("result", *["drop"] * 50)
        with self.assertRaises(quell.Unavailable):
            client.result(job.id)

    def test_a_refused_request_is_not_retried(self):
        self.server.fault("triggers", 422)
        with self.assertRaises(quell.Refused):
            self.quell.trigger("t", dedup="k")
        self.assertEqual(self.triggers(), 1)


class Asyncio(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.kill)

    async def test_the_same_calls_with_await(self):
        async with AsyncQuell(self.server.url, retry_for=10) as client:
            self.server.fault("triggers", 503, "drop")
            receipt = await client.trigger("t", {"a": 1}, idempotency_key="k")
            self.assertEqual(receipt.kind, "existing")
            receipts = await client.trigger_many("t", [Trigger(1), Trigger(2)])
            self.assertEqual(len(receipts), 2)
            self.assertFalse((await client.result(receipt.job, wait=0.1)).ended)
            self.assertEqual(await client.cancel(receipt.job), "cancelled")
            self.assertEqual((await client.job(receipt.job))["job"]["state"], "cancelled")
            with self.assertRaises(quell.NotFound):
                await client.result("99")
            many = await asyncio.gather(*(client.trigger("t", n) for n in range(100)))
            self.assertEqual(len({receipt.job for receipt in many}), 100)

    async def test_cancelling_a_request_ends_it(self):
        job = self.server.add("t")
        async with AsyncQuell(self.server.url) as client:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.result(job.id, wait=20), 0.2)
            self.server.wait_for(lambda: not client._connection.transport._busy)


class Units(unittest.TestCase):
    def test_durations(self):
        from quell._duration import to_seconds, to_text

        for value, text in ((10, "10s"), (0.25, "250ms"), (1e-6, "1us"), (1.5, "1500ms")):
            self.assertEqual(to_text(value), text)
            self.assertAlmostEqual(to_seconds(text), value)
        self.assertEqual(to_seconds("1h30m"), 5400)
        self.assertEqual(to_seconds("1s500ms"), 1.5)
        for wrong in ("", "10", "10 parsecs", -1, float("nan"), float("inf")):
            with self.subTest(wrong), self.assertRaises(ValueError):
                to_seconds(wrong)

    def test_raw_members_are_exact(self):
        from quell._json import loads, raw_items, raw_members

        text = ' { "a" : [ 1e400 , {"b":"]}\\""} ] , "ü" :-0.0,"d":{}, "e": ' + "9" * 5000 + " } "
        members = raw_members(text)
        self.assertEqual(members["a"], '[ 1e400 , {"b":"]}\\""} ]')
        self.assertEqual((members["ü"], members["d"]), ("-0.0", "{}"))
        self.assertEqual(str(loads(members["e"])), "9" * 5000)
        self.assertEqual(raw_items(members["a"]), ["1e400", '{"b":"]}\\""}'])
        self.assertEqual((raw_members("{}"), raw_items("[ ]")), ({}, []))
        whole = json.dumps({"a": {"b": [1, 2]}})
        for cut in range(len(whole)):
            with self.subTest(cut), self.assertRaises(ValueError):
                raw_members(whole[:cut])


if __name__ == "__main__":
    unittest.main()
