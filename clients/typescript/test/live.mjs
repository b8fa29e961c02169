// Integration tests against a server: `QUELL_SERVER=… QUELL_TOKEN=… node test/live.mjs`. The server
// needs the tasks of test/live.toml. Payloads carry a random `run`, so that jobs of earlier runs do
// no harm. Tests of one file run one after another, so a task has one worker at a time.

import assert from "node:assert/strict";
import test from "node:test";
import { JsonText, Permanent, Quell } from "../src/index.js";
import { aborted, deferred, until } from "./conditions.js";

const TIMEOUT = { timeout: 20_000 };
const LEASE = { leaseMs: 1_500, graceMs: 5_000 };

const quell = new Quell();
const run = `run-${Date.now()}-${Math.random().toString(16).slice(2)}`;

/** Starts a worker of one task. Jobs of earlier runs succeed at once. */
function work(t, task, handler, options = {}) {
  const worker = quell.worker({ ...LEASE, ...options });
  worker.task(task, (payload, job) => (isOurs(payload) ? handler(payload, job) : null));
  const running = worker.run();
  running.catch(() => {});
  t.after(() => worker.stop());
  return worker;
}

function isOurs(payload) {
  return payload?.run === run || payload?.n !== undefined || payload?.id?.startsWith?.(run);
}

const result = (job) => quell.result(job, { waitMs: 15_000 });

test("echo: a payload and an output are kept exactly", TIMEOUT, async (t) => {
  work(t, "echo", (_, job) => new JsonText(job.payloadText));
  const text = '{"n":12345678901234567890123,"b":1,"a":2}';
  const receipt = await quell.trigger("echo", undefined, { payloadText: text });
  assert.equal(receipt.receipt, "accepted");
  const { state, ended, outputText } = await result(receipt.job);
  assert.deepEqual(
    { state, ended, outputText },
    { state: "succeeded", ended: true, outputText: text },
  );
});

test(
  "echo: a repeat with an idempotency key returns the first job and its output",
  TIMEOUT,
  async (t) => {
    work(t, "echo", (payload) => payload.value);
    const options = { idempotencyKey: `${run}-once` };
    const first = await quell.trigger("echo", { run, value: "é€😀" }, options);
    assert.equal((await result(first.job)).output, "é€😀");
    const second = await quell.trigger("echo", { run, value: "é€😀" }, options);
    assert.deepEqual([second.receipt, second.job, second.output], ["existing", first.job, "é€😀"]);
  },
);

test("echo: a batch is accepted as a whole", TIMEOUT, async (t) => {
  work(t, "echo", (payload) => payload.value);
  const batch = Array.from({ length: 20 }, (_, value) => ({ payload: { run, value } }));
  const receipts = await quell.triggerMany("echo", batch, { dedup: `${run}-batch` });
  const outputs = await Promise.all(receipts.map(async ({ job }) => (await result(job)).output));
  assert.deepEqual(
    outputs,
    batch.map(({ payload }) => payload.value),
  );
  const again = await quell.triggerMany("echo", batch, { dedup: `${run}-batch` });
  assert.ok(
    again.every(({ receipt }) => receipt === "duplicate"),
    JSON.stringify(again[0]),
  );
});

test("keyed: 50 triggers of one key become one run", TIMEOUT, async (t) => {
  const runs = [];
  work(t, "keyed", (payload, job) => {
    runs.push({ payload, key: job.key, triggers: job.triggers });
  });
  const id = `${run}-key`;
  const receipts = await Promise.all(
    Array.from({ length: 50 }, (_, index) => quell.trigger("keyed", { id, index })),
  );
  const jobs = new Set(receipts.map(({ job }) => job));
  assert.equal(jobs.size, 1);
  await result([...jobs][0]);
  assert.deepEqual(
    runs.map(({ key, triggers }) => ({ key, triggers })),
    [{ key: id, triggers: 50 }],
  );
});

test("keyed: a flushed window runs at once", TIMEOUT, async (t) => {
  work(t, "keyed", (payload) => payload.id);
  const id = `${run}-flush`;
  const { job } = await quell.trigger("keyed", { id }, { debounce: { min: "10m", max: "20m" } });
  assert.equal((await quell.flush("keyed", id)).job, job);
  assert.equal((await result(job)).output, id);
});

test("flaky: an attempt that fails is tried again", TIMEOUT, async (t) => {
  const attempts = [];
  work(t, "flaky", (_, job) => {
    attempts.push(job.attempt);
    if (job.attempt < 3) throw new Error(`attempt ${job.attempt} fails`);
    return "at last";
  });
  const { job } = await quell.trigger("flaky", { run });
  assert.equal((await result(job)).output, "at last");
  assert.deepEqual(attempts, [1, 2, 3]);
});

test("flaky: a permanent error makes the job dead at once", TIMEOUT, async (t) => {
  let attempts = 0;
  work(t, "flaky", () => {
    attempts += 1;
    throw new Permanent("this will never work");
  });
  const { job } = await quell.trigger("flaky", { run });
  const { state, error } = await result(job);
  assert.equal(state, "dead");
  assert.match(error, /this will never work/);
  assert.equal(attempts, 1);
});

test(
  "slow: progress and log are shown with the job; a cancel aborts the handler",
  TIMEOUT,
  async (t) => {
    const reason = deferred();
    const worker = work(t, "slow", async (_, job) => {
      job.progress({ done: 41, run });
      job.log("a line of the log");
      reason.resolve(await aborted(job.signal));
    });
    const { job } = await quell.trigger("slow", { run });
    const running = await until("the progress is shown", async () => {
      const shown = (await quell.job(job)).running;
      return JSON.stringify(shown ?? null).includes('"done":41') && shown;
    });
    assert.match(JSON.stringify(running), /a line of the log/);
    await quell.cancel(job);
    assert.equal((await reason.promise).reason, "lost");
    assert.equal((await result(job)).state, "cancelled");
    await until("the slot is free", () => worker.busy === 0);
  },
);

test("slow: a graceful stop gives jobs back, without spending an attempt", TIMEOUT, async (t) => {
  const reasons = [];
  const first = work(
    t,
    "slow",
    async (_, job) => {
      reasons.push((await aborted(job.signal)).reason);
    },
    { graceMs: 200, leaseMs: 60_000 },
  );
  const { job } = await quell.trigger("slow", { run });
  await until("the job runs", () => first.busy === 1);
  await first.stop();
  assert.deepEqual(reasons, ["shutdown"]);
  let seen;
  work(t, "slow", (_, { attempt, starts, fencingToken }) => {
    seen = { attempt, starts, fencingToken };
    return "second";
  });
  assert.equal((await result(job)).output, "second");
  assert.deepEqual([seen.attempt, seen.starts], [1, 2]);
  assert.match(seen.fencingToken, /^2-/);
});

test("a refusal has a kind and a field", TIMEOUT, async () => {
  await assert.rejects(quell.trigger(`missing-${run}`, null), {
    name: "QuellError",
    status: 404,
    kind: "not_found",
  });
  await assert.rejects(quell.trigger("echo", { run }, { delay: "soon" }), {
    status: 422,
    field: "delay",
  });
});
