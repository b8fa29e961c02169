import assert from "node:assert/strict";
import test from "node:test";
import { deferred, until } from "./conditions.js";
import { serve, work } from "./running.js";

test("a settlement whose answer was lost is sent again, and counts once", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  server.fault("settle", { drop: "after" });
  const { worker, errors } = work(server, { echo: () => "done" });
  await until("the settlement is repeated", () => server.of("settle").length === 2);
  await worker.stop();
  assert.equal(job.state, "succeeded");
  assert.equal(job.settlements.length, 1);
  assert.equal(server.of("settle")[0].body, server.of("settle")[1].body);
  assert.deepEqual(
    errors.map(({ during }) => during),
    ["settle"],
  );
});

test("settlements wait out a server that refuses, and are sent together", async (t) => {
  const server = await serve(t);
  server.fault("settle", { status: 503, retryAfter: 0 }, 2);
  server.fault("settle", { status: 500 });
  server.fault("settle", { drop: "before" });
  const jobs = Array.from({ length: 4 }, (_, index) => server.add("echo", String(index)));
  work(server, { echo: (payload) => payload });
  await until("all succeed", () => jobs.every(({ state }) => state === "succeeded"));
  assert.deepEqual(
    jobs.map(({ starts }) => starts),
    [1, 1, 1, 1],
  );
  assert.ok(server.of("settle").length <= 4 + 4);
});

test("one settlement that the server refuses does not hold up the others", async (t) => {
  const server = await serve(t, { echo: { maxAttempts: 1 } });
  const jobs = Array.from({ length: 6 }, (_, index) => server.add("echo", String(index)));
  work(server, { echo: (index) => (index === 3 ? "refuse me" : index) }, { slots: 6 });
  await until("all end", () =>
    jobs.every(({ state }) => state === "succeeded" || state === "dead"),
  );
  assert.deepEqual(
    jobs.map(({ state }) => state === "dead"),
    [false, false, false, true, false, false],
  );
  assert.equal(jobs[3].error, "the server refused the settlement: refused: invalid");
});

test("one settlement that always fails does not hold up the others", async (t) => {
  const server = await serve(t);
  const bad = ({ body }) => body.includes('"bad"');
  server.fault("settle", { status: 500 }, Infinity, bad);
  const jobs = Array.from({ length: 6 }, (_, index) => server.add("echo", String(index)));
  const end = deferred();
  const { errors } = work(
    server,
    { echo: async (index) => (await end.promise, index === 3 ? "bad" : index) },
    { slots: 6, graceMs: 0 },
  );
  await until("all run", () => jobs.every(({ state }) => state === "running"));
  end.resolve();
  await until("the others succeed", () =>
    jobs.every(({ state }, index) => index === 3 || state === "succeeded"),
  );
  const next = server.add("echo", "7");
  await until("the worker goes on", () => next.state === "succeeded");
  assert.deepEqual([jobs[3].state, jobs[3].starts], ["running", 1]);
  assert.equal(errors[0].error.status, 500);
  server.endFaults();
  await until("it succeeds at last", () => jobs[3].state === "succeeded");
});

test("while 1000 settlements wait, the worker claims nothing", async (t) => {
  const server = await serve(t);
  server.fault("settle", { status: 503 }, Infinity);
  const jobs = Array.from({ length: 2_500 }, (_, index) => server.add("echo", String(index)));
  const { worker } = work(server, { echo: () => {} }, { slots: 400, leaseMs: 60_000 });
  const started = () => jobs.filter(({ starts }) => starts > 0).length;
  await until("1000 settlements wait", () => started() >= 1_000 && worker.busy === 0);
  const claims = server.of("claim").length;
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.equal(server.of("claim").length, claims);
  assert.equal(started(), 1_200);
  server.endFaults();
  await until("all succeed", () => jobs.every(({ state }) => state === "succeeded"));
});

test("a server that is killed and started again loses no running job within its lease", async (t) => {
  const server = await serve(t);
  const end = deferred();
  const long = server.add("echo", '"long"');
  const short = server.add("echo", '"short"');
  const { worker, errors } = work(
    server,
    {
      echo: async (payload) => {
        await (payload === "short" ? killed.promise : end.promise);
        return payload;
      },
    },
    { leaseMs: 30_000 },
  );
  const killed = deferred();
  await until("both run", () => worker.busy === 2);
  await server.kill();
  killed.resolve();
  await until("the worker misses the server", () => errors.length >= 2);
  await server.start();
  await until("the short one is settled", () => short.state === "succeeded");
  const next = server.add("echo", '"short"');
  await until("the worker goes on", () => next.state === "succeeded");
  end.resolve();
  await until("the long one is settled", () => long.state === "succeeded");
  assert.deepEqual([long.starts, short.starts], [1, 1]);
  assert.deepEqual(
    errors.map(({ during }) => during).sort(),
    ["claim", "settle"],
    "one for each outage",
  );
});

test("claims survive faults, and jobs whose claim was lost run after their lease", async (t) => {
  const server = await serve(t);
  server.fault("claim", { status: 503, retryAfter: 0 });
  server.fault("claim", { status: 500 });
  server.fault("claim", { drop: "before" });
  server.fault("claim", { drop: "after" });
  const job = server.add("echo", "1");
  const { errors } = work(server, { echo: () => {} }, { leaseMs: 1_000 });
  await until("the job runs after all", () => job.state === "succeeded");
  assert.equal(job.starts, 2);
  assert.equal(errors.length, 1);
});

test("a worker that starts before its server waits for it", async (t) => {
  const server = await serve(t);
  await server.kill();
  const job = server.add("echo", "1");
  const { errors } = work(server, { echo: () => {} });
  await until("it misses the server", () => errors.length === 1);
  await server.start();
  await until("the job runs", () => job.state === "succeeded");
});

test("a server that answers without waiting is not asked in a tight loop", async (t) => {
  const server = await serve(t);
  const { worker } = work(server, { echo: () => {} }, { waitMs: 0 });
  await until("it asks a few times", () => server.of("claim").length >= 4);
  const before = server.of("claim").length;
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.ok(server.of("claim").length - before <= 3);
  await worker.stop();
});
