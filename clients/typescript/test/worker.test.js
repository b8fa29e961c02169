import assert from "node:assert/strict";
import test from "node:test";
import { Cancel, JobAborted, JsonText, Permanent, Quell, Retry, Snooze } from "../src/index.js";
import { aborted, deferred, until } from "./conditions.js";
import { heeding, serve, work } from "./running.js";

test("a worker runs a job and settles its output", async (t) => {
  const server = await serve(t);
  const text = '{"n":12345678901234567890123, "a":{"payload":[1]},"s":"}\\"","n":2}';
  const job = server.add("echo", text);
  let seen;
  work(server, {
    echo: (payload, attempt) => {
      seen = { payload, attempt };
      return new JsonText(attempt.payloadText);
    },
  });
  await until("the job succeeds", () => job.state === "succeeded");
  assert.equal(job.outputText, text);
  assert.deepEqual(seen.payload, JSON.parse(text));
  const { attempt } = seen;
  assert.deepEqual(
    [attempt.id, attempt.task, attempt.queue, attempt.key, attempt.attempt, attempt.starts],
    ["1", "echo", "default", null, 1, 1],
  );
  assert.deepEqual(
    [attempt.fencingToken, attempt.triggers, attempt.timeoutMs],
    ["1-5f2c", 1, 600_000],
  );
  assert.ok(attempt.firstAt instanceof Date && attempt.dueAt >= attempt.firstAt);
  assert.equal(attempt.traces[0].tracestate, null);
  assert.equal(attempt.signal.aborted, false);
  const claim = JSON.parse(server.of("claim")[0].body);
  const { incarnation, host, pid, version, age, ...rest } = claim.process;
  assert.deepEqual(rest, { slots: 4, busy: 0 });
  assert.ok(Number.isInteger(incarnation) && host && pid === process.pid && /^\d+ms$/.test(age));
  assert.match(version, /^quell-typescript\//);
  assert.deepEqual(
    [claim.tasks, claim.limit, claim.wait, claim.lease],
    [["echo"], 4, "20000ms", "3000ms"],
  );
});

test("a burst never takes more than the slots, and fills them", async (t) => {
  const server = await serve(t);
  for (let index = 0; index < 60; index += 1) server.add("echo", String(index));
  let running = 0;
  let most = 0;
  const { worker } = work(
    server,
    {
      echo: async () => {
        running += 1;
        most = Math.max(most, running);
        await new Promise((resolve) => setTimeout(resolve, 10));
        running -= 1;
      },
    },
    { slots: 5 },
  );
  await until("all succeed", () =>
    [...server.jobs.values()].every(({ state }) => state === "succeeded"),
  );
  assert.equal(most, 5);
  assert.ok(server.mostRunning <= 5 + 5, "settlements may wait while their slots are used again");
  for (const { body } of server.of("claim")) {
    const {
      limit,
      process: { busy, slots },
    } = JSON.parse(body);
    assert.ok(limit + busy <= slots && limit > 0, body);
  }
  assert.equal(worker.busy, 0);
});

test("progress beyond 4 KiB is refused", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  work(server, { echo: (_, attempt) => attempt.progress("x".repeat(5_000)) });
  await until("it fails", () => job.error);
  assert.match(job.error, /RangeError: progress has more than 4096 bytes/);
});

test("a handler beyond its timeout is settled at once, aborted, and keeps its slot until it ends", async (t) => {
  const server = await serve(t, { echo: { timeout: "200ms", maxAttempts: 1 } });
  const job = server.add("echo", "1");
  const end = deferred();
  let reason;
  const { worker } = work(
    server,
    {
      echo: async (_, attempt) => {
        attempt.log("before");
        reason = await aborted(attempt.signal);
        await end.promise;
        return "too late";
      },
    },
    { graceMs: 60_000 },
  );
  await until("the job is dead", () => job.state === "dead");
  assert.deepEqual(job.settlements, [
    {
      lease: 'lease "1"',
      outcome: "failed",
      error: "timed out after 200ms",
      timed_out: true,
      log: ["before"],
    },
  ]);
  assert.ok(reason instanceof JobAborted && reason.reason === "timeout");
  assert.equal(worker.busy, 1);
  end.resolve();
  await until("the slot is free", () => worker.busy === 0);
  assert.equal(job.settlements.length, 1);
});

test("a handler that never returns frees its slot after the grace", async (t) => {
  const server = await serve(t, { echo: { timeout: "100ms", maxAttempts: 1 } });
  server.add("echo", "1");
  const { worker, errors } = work(
    server,
    { echo: () => new Promise(() => {}) },
    { graceMs: 200, slots: 1 },
  );
  const second = server.add("echo", "2");
  await until("the next job runs", () => second.starts === 1);
  assert.match(errors[0].error.message, /ignores its signal \(job 1, timeout\)/);
  assert.equal(errors[0].during, "handler");
  await worker.stop();
});

test("a cancelled job aborts the handler, and nothing is settled", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  const heeded = heeding((reason) => {
    throw reason;
  });
  const { worker } = work(server, { echo: heeded.handler }, { leaseMs: 1_000 });
  await until("it runs", () => job.state === "running");
  server.cancel(job.id);
  await until("the handler is aborted", () => heeded.reason);
  assert.equal(heeded.reason.reason, "lost");
  await until("its slot is free", () => worker.busy === 0);
  assert.equal(server.of("settle").length, 0);
});

test("special errors decide how the job goes on", async (t) => {
  const server = await serve(t);
  const table = [
    [
      () => {
        throw new Permanent("broken", { cause: new Error("disk") });
      },
      "dead",
      { outcome: "failed", permanent: true },
    ],
    [
      () => {
        throw new Retry("1h", "busy");
      },
      "scheduled",
      { outcome: "failed", retry_in: "1h" },
    ],
    [
      () => {
        throw new Retry(0);
      },
      "scheduled",
      { outcome: "failed", retry_in: "1ms" },
    ],
    [
      () => {
        throw new Snooze(90_000);
      },
      "scheduled",
      { outcome: "snoozed", delay: "90000ms" },
    ],
    [
      () => {
        throw new Cancel("not needed");
      },
      "cancelled",
      { outcome: "cancelled", reason: "not needed" },
    ],
    [
      () => Promise.reject(new Snooze(-1)),
      "scheduled",
      { outcome: "failed", error: "the handler threw a value that has no text" },
    ],
  ];
  const jobs = table.map((_, index) => server.add("echo", String(index)));
  work(server, { echo: (index) => table[index][0]() });
  for (const [index, [, , expected]] of table.entries()) {
    const [settlement] = await until(
      `job ${index} is settled`,
      () => jobs[index].settlements.length && jobs[index].settlements,
    );
    const shown = Object.fromEntries(Object.keys(expected).map((name) => [name, settlement[name]]));
    assert.deepEqual(shown, expected);
  }
  assert.equal(jobs[0].state, "dead");
  assert.match(jobs[0].error, /^Permanent: broken\n\s+at [^]*\ncaused by: Error: disk$/);
});

test("whatever a handler throws is a failure with its text", async (t) => {
  const server = await serve(t, { echo: { maxAttempts: 1 } });
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  const circle = {};
  circle.self = circle;
  const table = [
    [new TypeError("no such thing"), /^TypeError: no such thing\n\s+at /],
    ["text", /^text$/],
    [{ code: 7 }, /^\{"code":7\}$/],
    [undefined, /^null$/],
    [null, /^null$/],
    [12n, /has no text/],
    [Symbol("s"), /has no text/],
    [Object.create(null), /has no text/],
    [circle, /has no text/],
    [proxy, /has no text/],
    [
      {
        toString() {
          throw new Error("no");
        },
      },
      /has no text/,
    ],
    [new Error("x".repeat(100_000)), /^Error: x{15000}/],
  ];
  const jobs = table.map((_, index) => server.add("echo", String(index)));
  jobs.push(server.add("echo", "99"));
  work(server, {
    echo: (index) => {
      if (index === 99) return circle;
      throw table[index][0];
    },
  });
  await until("all have failed", () => jobs.every(({ state }) => state === "dead"));
  for (const [index, [, text]] of table.entries()) assert.match(jobs[index].error, text);
  assert.match(jobs.at(-1).error, /circular/);
});

test("an output beyond 256 KiB fails the job for good", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  work(server, { echo: () => "x".repeat(300_000) });
  await until("it is dead", () => job.state === "dead");
  assert.equal(
    job.error,
    "the worker's output cannot be kept: output has 300002 bytes, the limit is 262144: " +
      "keep it elsewhere and return where it is",
  );
});

test("texts that are cut within a character stay well-formed, and permanent", async (t) => {
  const server = await serve(t);
  const jobs = [0, 1].map((index) => server.add("echo", String(index)));
  work(server, {
    echo: (index, attempt) => {
      attempt.log("x".repeat(1_999) + "😀");
      if (index === 1) throw new Cancel("x".repeat(15_999) + "😀");
      throw new Permanent("x".repeat(15_999 - "Permanent: ".length) + "😀");
    },
  });
  await until("both end", () => jobs.every(({ settlements }) => settlements.length > 0));
  assert.deepEqual(
    jobs.map(({ state }) => state),
    ["dead", "cancelled"],
  );
  for (const { error } of jobs) assert.ok(error.endsWith("x\ufffd"));
  assert.deepEqual(jobs[0].settlements[0].log, ["x".repeat(1_999) + "\ufffd"]);
});

test("a refused first claim ends the worker with the error", async (t) => {
  const server = await serve(t);
  const { running } = work(server, { missing: () => {} });
  await assert.rejects(running, { status: 404, kind: "not_found", field: "tasks[0]" });
});

test("a later refusal is no reason to end", async (t) => {
  const server = await serve(t);
  const first = server.add("echo", "1");
  const { errors } = work(server, { echo: () => {} });
  await until("the first job ends", () => first.state === "succeeded");
  server.fault("claim", { status: 404 });
  server.fault("claim", { status: 401 });
  const second = server.add("echo", "2");
  const third = () => server.add("echo", "3");
  await until("the second job ends", () => second.state === "succeeded");
  const job = third();
  await until("the third job ends", () => job.state === "succeeded");
  assert.ok(errors.every(({ during }) => during === "claim"));
});

test("options and misuse are refused", async (t) => {
  const server = await serve(t);
  const quell = new Quell({ url: server.url });
  for (const options of [
    { slots: 0 },
    { slots: 1.5 },
    { slots: 1_001 },
    { leaseMs: 999 },
    { waitMs: 30_000 },
  ]) {
    assert.throws(() => quell.worker(options), RangeError);
  }
  await assert.rejects(quell.worker().run(), /no task/);
  const worker = quell.worker({ name: "a worker/1" }).task("echo", () => {});
  const controller = new AbortController();
  const running = worker.run({ signal: controller.signal });
  await assert.rejects(worker.run(), /runs once/);
  assert.throws(() => worker.task("other", () => {}), /runs already/);
  await until("it claims", () => server.of("claim").length === 1);
  assert.equal(server.of("claim")[0].path, "/v1/workers/a%20worker%2F1/claim");
  controller.abort();
  await running;
});
