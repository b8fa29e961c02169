import assert from "node:assert/strict";
import test from "node:test";
import { Leases } from "../src/leases.js";

const TERM = 30_000;

function holding(...leases) {
  const held = new Leases(TERM);
  for (const lease of leases) held.hold(lease, 0, TERM);
  return held;
}

function settling(...leases) {
  const held = holding(...leases);
  for (const lease of leases) held.settle(lease, { outcome: '"succeeded"', output: "1" }, 0);
  return held;
}

const names = (batch) => batch.map(({ lease }) => lease);
const answer = (state, ...leases) => leases.map((lease) => ({ lease, state }));

test("nothing is due without leases", () => {
  const leases = new Leases(TERM);
  assert.equal(leases.wakeAt(), Infinity);
  assert.deepEqual(leases.renewals(1e9), []);
  assert.deepEqual(leases.settlements(0), []);
});

test("a lease is renewed at a third of its term, and others that are due soon join", () => {
  const leases = holding("a");
  leases.hold("b", 4_000, TERM);
  leases.hold("c", 9_000, TERM);
  assert.equal(leases.wakeAt(), 10_000);
  assert.deepEqual(leases.renewals(9_999), []);
  assert.deepEqual(names(leases.renewals(10_000)), ["a", "b"]);
  assert.deepEqual(leases.renewed(answer("held", "a", "b"), 10_000), []);
  assert.equal(leases.wakeAt(), 19_000);
  assert.equal(leases.expiresAt(), 39_000);
});

test("leases of a long term are renewed every 10 s", () => {
  const leases = new Leases(3_600_000);
  leases.hold("a", 0, 3_600_000);
  assert.equal(leases.wakeAt(), 10_000);
  leases.renewed(answer("held", "a"), 10_000);
  assert.equal(leases.wakeAt(), 20_000);
});

test("a due lease is renewed before any number of those that are due soon", () => {
  const leases = new Leases(TERM);
  for (let index = 0; index < 1_200; index += 1) leases.hold(`soon ${index}`, 4_000, TERM);
  leases.hold("due", 0, TERM);
  const batch = leases.renewals(10_000);
  assert.equal(batch.length, 1_000);
  assert.equal(batch[0].lease, "due");
});

test("leases whose renewals fail hold up no other", () => {
  const leases = holding(...Array.from({ length: 2_000 }, (_, index) => `l${index}`));
  const failing = leases.renewals(10_000);
  leases.postpone(failing, 10_100);
  const seen = new Set(names([...failing, ...leases.renewals(10_200)]));
  assert.equal(seen.size, 2_000);
});

test("a lease that the server reports as lost is lost once, and takes no settlement", () => {
  const leases = holding("a", "b");
  leases.renewals(10_000);
  const answers = [...answer("lost", "a"), ...answer("held", "b")];
  assert.deepEqual(leases.renewed(answers, 10_000), ["a"]);
  assert.deepEqual(leases.renewed(answers, 10_000), []);
  leases.settle("a", { outcome: '"succeeded"' }, 0);
  assert.equal(leases.settling, 0);
});

test("a lease without an answer for its whole term is lost; `unknown` is no renewal", () => {
  const leases = holding("a");
  const batch = leases.renewals(10_000);
  leases.postpone(batch, 12_000);
  assert.equal(leases.wakeAt(), 12_000);
  leases.renewals(12_000);
  assert.deepEqual(leases.renewed(answer("unknown", "a"), 12_000), []);
  assert.equal(leases.wakeAt(), 17_000);
  assert.deepEqual(leases.expire(29_999), []);
  assert.deepEqual(leases.expire(30_000), ["a"]);
  assert.equal(leases.wakeAt(), Infinity);
});

test("a renewal counts from the time that it was sent", () => {
  const leases = holding("a");
  leases.renewals(10_000);
  leases.renewed(answer("held", "a"), 10_000);
  assert.deepEqual(leases.expire(39_999), []);
  assert.deepEqual(leases.expire(40_000), ["a"]);
});

test("a settlement is kept until it is acknowledged, and its lease is renewed meanwhile", () => {
  const leases = holding("a");
  leases.settle("a", { outcome: '"succeeded"', output: "[1]" }, 0);
  assert.deepEqual(leases.settlements(0), [
    { lease: "a", text: '{"lease":"a","outcome":"succeeded","output":[1]}' },
  ]);
  assert.deepEqual(leases.renewals(10_000), [{ lease: "a", text: '{"lease":"a"}' }]);
  assert.deepEqual(leases.renewed(answer("lost", "a"), 10_000), [], "no handler is left to stop");
  assert.deepEqual(leases.renewals(20_000), []);
  assert.deepEqual(names(leases.settlements(0)), ["a"], "the answer to the settlement decides");
  leases.settled(leases.settlements(0), [{ lease: "a", became: "refused" }], 0);
  assert.equal(leases.settling, 0);
});

test("a settlement is dropped after 10 minutes or 10 terms, although its lease is renewed", () => {
  for (const [term, kept] of [
    [TERM, 600_000],
    [120_000, 1_200_000],
  ]) {
    const leases = new Leases(term);
    leases.hold("a", 0, term);
    leases.settle("a", { outcome: '"succeeded"' }, 1_000);
    leases.renewed(answer("held", "a"), 500_000);
    assert.deepEqual(leases.expire(1_000 + kept - 1), []);
    assert.equal(leases.settling, 1);
    assert.deepEqual(leases.expire(1_000 + kept), [], "a settlement is no lost lease");
    assert.equal(leases.settling, 0);
    assert.deepEqual(leases.renewals(1e9), [], "it is not renewed any more");
  }
});

test("reports are sent with the renewal, and log lines until one is acknowledged", () => {
  const leases = holding("a");
  leases.setProgress("a", '{"done":1}');
  leases.addLog("a", "one");
  const first = leases.renewals(10_000);
  assert.equal(first[0].text, '{"lease":"a","progress":{"done":1},"log":["one"]}');
  leases.addLog("a", "two");
  leases.postpone(first, 11_000);
  const second = leases.renewals(11_000);
  assert.equal(second[0].text, '{"lease":"a","progress":{"done":1},"log":["one","two"]}');
  leases.addLog("a", "three");
  leases.renewed(answer("held", "a"), 11_000);
  leases.settle("a", { outcome: '"failed"', error: '"x"' }, 0);
  assert.equal(
    leases.settlements(0)[0].text,
    '{"lease":"a","outcome":"failed","error":"x","log":["three"]}',
  );
});

test("the log is bounded and keeps its end", () => {
  const leases = holding("a");
  for (let line = 0; line < 1_000; line += 1) leases.addLog("a", `line ${line}`.padEnd(100));
  const { log } = JSON.parse(leases.renewals(10_000)[0].text);
  assert.equal(log.at(-1).trim(), "line 999");
  assert.ok(log.join("\n").length <= 8 * 1024);
});

test("a request has at most 1000 leases and 512 KiB", () => {
  const leases = holding(...Array.from({ length: 1_500 }, (_, index) => `l${index}`));
  const first = leases.renewals(10_000);
  assert.equal(first.length, 1_000);
  leases.renewed(answer("held", ...names(first)), 10_000);
  assert.equal(leases.renewals(10_000).length, 500);
  const output = JSON.stringify("x".repeat(200 * 1024));
  for (let index = 0; index < 5; index += 1)
    leases.settle(`l${index}`, { outcome: '"succeeded"', output }, 0);
  assert.deepEqual(names(leases.settlements(0)), ["l0", "l1"]);
});

test("refused settlements are sent in halves, then become failures, and are dropped at last", () => {
  const leases = settling("a", "b", "c", "d");
  leases.refused(leases.settlements(0), "too deep");
  assert.deepEqual(names(leases.settlements(0)), ["a", "b"]);
  leases.refused(leases.settlements(0), "too deep");
  assert.deepEqual(names(leases.settlements(0)), ["a"]);
  leases.refused(leases.settlements(0), "too deep");
  const { outcome, error } = JSON.parse(leases.settlements(0)[0].text);
  assert.deepEqual([outcome, error], ["failed", "the server refused the settlement: too deep"]);
  leases.refused(leases.settlements(0), "too deep");
  assert.deepEqual(names(leases.settlements(0)), ["b"]);
});

test("a permanent failure stays permanent when the server refuses its text", () => {
  const leases = holding("a");
  leases.settle("a", { outcome: '"failed"', error: '"x"', permanent: "true" }, 0);
  leases.refused(leases.settlements(0), "\ud800");
  const { error, permanent } = JSON.parse(leases.settlements(0)[0].text);
  assert.deepEqual([error, permanent], ["the server refused the settlement: \ufffd", true]);
});

test("settlements that fail are repeated in halves with pauses, and others are sent meanwhile", () => {
  const leases = settling("a", "b", "bad", "c", "d");
  let now = 0;
  /** Sends all that is due, to a server that fails each request with `bad`. */
  const send = () => {
    let requests = 0;
    for (;;) {
      const batch = leases.settlements(now);
      if (batch.length === 0) return requests;
      requests += 1;
      if (names(batch).includes("bad")) leases.failed(batch, now);
      else leases.settled(batch, [], now);
    }
  };
  assert.equal(send(), 1);
  assert.equal(leases.settleAt(), 100);
  leases.hold("e", 0, TERM);
  leases.settle("e", { outcome: '"succeeded"' }, 0);
  assert.equal(send(), 1, "one that ends meanwhile does not wait");
  while (leases.settling > 1) {
    now = leases.settleAt();
    send();
  }
  assert.ok(now < 1_000, "the others are settled soon");
  const from = now;
  let requests = 0;
  for (; now < from + 300_000; now = leases.settleAt()) requests += send();
  assert.ok(requests <= 20, `${requests} requests in 5 minutes`);
  assert.deepEqual(names(leases.settlements(now)), ["bad"]);
});

test("one settlement of a request that is not taken is replaced or repeated", () => {
  const leases = settling("a", "b", "c");
  const answers = [
    { lease: "a", became: "invalid", error: { kind: "invalid", message: "too long" } },
    { lease: "b", became: "unknown", error: { kind: "internal", message: "it failed" } },
    { lease: "c", became: "succeeded" },
  ];
  const error = leases.settled(leases.settlements(0), answers, 0);
  assert.deepEqual([error.kind, error.message], ["invalid", "too long"]);
  const [replaced, ...others] = leases.settlements(0);
  assert.deepEqual(others, []);
  const { lease, outcome, error: text } = JSON.parse(replaced.text);
  assert.deepEqual([lease, outcome], ["a", "failed"]);
  assert.match(text, /too long/);
  leases.settled([replaced], answers, 0);
  assert.deepEqual(names(leases.settlements(100)), ["b"], "it is dropped if that is refused, too");
});

test("the last log lines of an attempt are sent with any settlement", () => {
  const leases = holding("a");
  leases.addLog("a", "last words");
  leases.settle("a", { outcome: '"succeeded"' }, 0);
  assert.deepEqual(JSON.parse(leases.settlements(0)[0].text).log, ["last words"]);
});
