"""The decisions of a worker, with times of the test's own."""

import json
import unittest

from quell._job import ClaimedJob
from quell._settlement import failed, succeeded
from quell._state import FLUSH, KEEP_SECONDS, WIND_DOWN, WorkerState
from quell._wire import Settled


def claimed(lease, timeout=None):
    return ClaimedJob(lease, "1", "t", "null", timeout=timeout)


class State(unittest.TestCase):
    def setUp(self):
        self.state = WorkerState(slots=3, lease=30.0, grace=10.0)

    def start(self, *leases, now=0.0, timeout=None):
        jobs = [claimed(lease, timeout) for lease in leases]
        return self.state.claimed(jobs, lambda attempt: None, now)

    def pending(self):
        return [json.loads(one.text) for one in self.state.settlements(0.0)]

    def test_slots_are_free_after_the_end_and_not_before(self):
        one, two = self.start("a", "b", timeout=5.0)
        self.assertEqual(self.state.free(), 1)
        self.state.ended(one, succeeded(None), 0.0)
        self.assertEqual(self.state.free(), 2)
        self.assertEqual(self.state.due(5.0), [two])
        self.assertEqual(self.state.free(), 2, "a handler that timed out keeps its slot")
        self.state.ended(two, succeeded("late"), 0.0)
        self.assertEqual(self.state.free(), 3)
        outcomes = [(one["outcome"], one.get("timed_out")) for one in self.pending()]
        self.assertEqual(outcomes, [("succeeded", None), ("failed", True)])

    def test_a_lease_counts_from_the_send_of_its_renewal(self):
        (one,) = self.start("a")
        (batch,) = self.state.renewals()
        self.assertEqual(self.state.renewed(batch, {"a": "held"}, 10.0), [])
        self.assertEqual(self.state.renewed(batch, {"a": "unknown"}, 20.0), [])
        self.assertEqual(self.state.renewed(batch, {}, 20.0), [])
        self.assertEqual(self.state.due(39.9), [])
        self.assertEqual(self.state.due(40.0), [one])
        self.assertEqual((self.state.due(41.0), self.state.renewals()), ([], []))
        self.state.ended(one, succeeded(1), 0.0)
        self.assertEqual(self.pending(), [])

    def test_a_lost_lease_cancels_once_and_only_a_running_handler(self):
        one, two = self.start("a", "b")
        self.state.ended(two, succeeded(1), 0.0)
        (batch,) = self.state.renewals()
        self.assertEqual([renewal.attempt for renewal in batch], [one, two])
        lost = {"a": "lost", "b": "lost"}
        self.assertEqual(self.state.renewed(batch, lost, 1.0), [one])
        self.assertEqual(self.state.renewed(batch, lost, 1.0), [])
        self.assertEqual(self.state.renewals(), [])
        self.assertEqual([one["lease"] for one in self.pending()], ["b"], "kept until answered")

    def test_settlements_stay_until_they_are_answered(self):
        for attempt in self.start("a", "b"):
            self.state.ended(attempt, succeeded(1), 0.0)
        batch = self.state.settlements(0.0)
        self.state.settled(batch, {"a": Settled("refused")}, 0.0)
        self.assertEqual([one["lease"] for one in self.pending()], ["b"])

    def test_a_settlement_is_dropped_although_its_lease_is_renewed(self):
        for lease in (30.0, 120.0):
            self.state = WorkerState(slots=1, lease=lease, grace=0.0)
            (one,) = self.start("a")
            self.state.ended(one, succeeded(1), 5.0)
            (batch,) = self.state.renewals()
            self.state.renewed(batch, {"a": "held"}, 500.0)
            end = 5.0 + max(KEEP_SECONDS, 10 * lease)
            self.state.due(end - 1)
            self.assertEqual(len(self.pending()), 1)
            self.state.due(end)
            self.assertEqual((self.pending(), self.state.renewals()), ([], []))

    def test_a_refused_settlement_is_isolated_replaced_and_dropped(self):
        for attempt in self.start("a", "b", "c"):
            self.state.ended(attempt, failed("text", permanent=True), 0.0)
        for size in (3, 2, 1):
            batch = self.state.settlements(0.0)
            self.assertEqual(len(batch), size)
            self.assertEqual(self.state.settlements_refused(batch, "why"), [])
        replaced = self.pending()[0]
        self.assertEqual((replaced["lease"], replaced["permanent"]), ("a", True))
        self.assertIn("why", replaced["error"])
        self.assertEqual(self.state.settlements_refused(batch, "why"), batch)
        self.assertEqual([one["lease"] for one in self.pending()], ["b"])

    def test_one_settlement_of_a_request_that_is_not_taken_is_replaced_or_repeated(self):
        for attempt in self.start("a", "b", "c"):
            self.state.ended(attempt, succeeded(1), 0.0)
        invalid, unknown = Settled("invalid", "too long"), Settled("unknown", "the server failed")
        answers = {"a": invalid, "b": unknown, "c": Settled("succeeded")}
        self.assertEqual(self.state.settled(self.state.settlements(0.0), answers, 0.0), [])
        (replaced,) = self.pending()
        self.assertEqual((replaced["lease"], replaced["outcome"]), ("a", "failed"))
        self.assertIn("too long", replaced["error"])
        batch = self.state.settlements(0.0)
        self.assertEqual(self.state.settled(batch, {"a": invalid}, 0.0), batch)
        (repeated,) = self.state.settlements(0.1)
        self.assertEqual(json.loads(repeated.text)["lease"], "b")

    def test_the_log_of_an_attempt_is_sent_with_any_settlement(self):
        (one,) = self.start("a")
        one.report.add_line("last words")
        self.state.ended(one, succeeded(1), 0.0)
        self.assertEqual(self.pending()[0]["log"], ["last words"])

    def test_a_settlement_that_always_fails_holds_up_no_other(self):
        def send(now):
            """Sends all that is due, to a server that fails each request with `bad`."""
            requests = 0
            while batch := self.state.settlements(now):
                requests += 1
                leases = [one.attempt.job.lease for one in batch]
                if "bad" in leases:
                    self.state.settlements_failed(batch, now)
                else:
                    self.state.settled(batch, dict.fromkeys(leases, Settled("succeeded")), now)
            return requests

        for attempt in self.start("a", "b", "bad", "c", "d"):
            self.state.ended(attempt, succeeded(1), 0.0)
        self.assertEqual(send(0.0), 1)
        self.assertEqual(self.state.settle_after(0.0), 0.1)
        (one,) = self.start("e")
        self.state.ended(one, succeeded(1), 0.0)
        self.assertEqual(send(0.0), 1, "one that ends meanwhile does not wait")
        now = requests = 0.0
        while now < 1.0:
            now += self.state.settle_after(now)
            send(now)
        self.assertEqual(self.state.unsettled, 1, "the others are settled soon")
        while now < 300.0:
            now += self.state.settle_after(now)
            requests += send(now)
        self.assertLessEqual(requests, 20)

    def test_batches_are_bounded_in_bytes_and_in_number(self):
        state = WorkerState(slots=3000, lease=30.0, grace=0.0)
        jobs = [claimed(f"lease-{n}") for n in range(2500)]
        attempts = state.claimed(jobs, lambda attempt: None, 0.0)
        self.assertEqual([len(batch) for batch in state.renewals()], [1000, 1000, 500])
        for attempt in attempts[:500]:
            attempt.report.set_progress("x" * 4000)
        sizes = [sum(len(one.text) for one in batch) for batch in state.renewals()]
        self.assertLess(max(sizes), 600_000)
        big = succeeded("y" * 200_000)
        for attempt in attempts:
            state.ended(attempt, big, 0.0)
        self.assertEqual(len(state.settlements(0.0)), 2)
        self.assertEqual(state.free(), 0, "too many settlements wait")

    def test_log_lines_are_sent_once_and_the_rest_with_the_failure(self):
        (one,) = self.start("a")
        one.report.add_line("first")
        (batch,) = self.state.renewals()
        one.report.add_line("second")
        self.assertEqual(json.loads(batch[0].text)["log"], ["first"])
        self.state.renewed(batch, {"a": "held"}, 1.0)
        self.state.ended(one, failed("e"), 0.0)
        self.assertEqual(self.pending()[0]["log"], ["second"])

    def test_log_lines_are_kept_where_a_renewal_is_not_held(self):
        for state in ("unknown", "lost"):
            self.setUp()
            (one,) = self.start("a")
            one.report.add_line("first")
            (batch,) = self.state.renewals()
            self.state.renewed(batch, {"a": state}, 1.0)
            self.assertEqual(one.report.read()[1], ["first"])

    def test_the_log_keeps_its_newest_lines(self):
        (one,) = self.start("a")
        for n in range(2000):
            one.report.add_line(f"line {n} \ud800")
        lines = json.loads(self.state.renewals()[0][0].text)["log"]
        self.assertEqual(lines[-1], "line 1999 ?")
        self.assertLessEqual(sum(map(len, lines)), 8192)

    def test_a_shutdown_goes_through_its_phases(self):
        one, two, three = self.start("a", "b", "c")
        self.state.stop(100.0)
        for attempt in (one, two, three):
            attempt.expires = 1000.0
        self.assertEqual((self.state.free(), self.start("late", now=100.0)), (0, []))
        self.assertEqual(self.pending()[0]["outcome"], "released")
        self.state.settled(self.state.settlements(0.0), {"late": Settled("scheduled")}, 0.0)
        self.assertEqual((self.state.due(109.0), self.state.finished(True, 109.0)), ([], False))
        self.assertEqual(len(self.state.due(110.0)), 3)
        self.assertEqual(self.state.due(110.5), [])
        self.state.ended(one, succeeded(1), 0.0)
        self.state.ended(two, failed("cancelled"), 0.0)
        self.state.due(110.0 + WIND_DOWN)
        outcomes = [(one["lease"], one["outcome"]) for one in self.pending()]
        self.assertEqual(outcomes, [("a", "released"), ("b", "released"), ("c", "released")])
        self.assertFalse(self.state.finished(False, 112.0))
        self.state.settled(self.state.settlements(0.0), dict.fromkeys("abc", Settled("")), 0.0)
        self.assertFalse(self.state.finished(True, 112.0), "a claim is in flight")
        self.assertTrue(self.state.finished(False, 112.0))
        self.assertTrue(self.state.finished(True, 110.0 + FLUSH))

    def test_the_next_time_is_never_in_the_past(self):
        (one,) = self.start("a", timeout=0.5)
        self.assertEqual(self.state.next_due(0.0), 0.5)
        self.state.due(0.5)
        self.assertEqual(self.state.next_due(0.5), 1.5)
        self.state.stop(2.0)
        self.assertEqual(self.state.next_due(2.0), 3.0)
        self.assertEqual(self.state.next_due(11.5), 12.0)


if __name__ == "__main__":
    unittest.main()
