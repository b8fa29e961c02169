import assert from "node:assert/strict";
import test from "node:test";
import { aborted, deferred, until } from "./conditions.js";
import { serve, work } from "./running.js";

test("a job longer than its lease keeps it by renewals, and shows progress and log", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  const end = deferred();
  work(
    server,
    {
      echo: async (_, attempt) => {
        attempt.progress({ done: 1 });
        attempt.log("first line");
        await end.promise;
      },
    },
    { leaseMs: 1_000 },
  );
  await until("it is renewed for longer than its lease", () => server.of("renew").length >= 5);
  assert.deepEqual([job.state, job.starts, job.progress], ["running", 1, { done: 1 }]);
  assert.deepEqual(job.log, ["first line"]);
  end.resolve();
  await until("it succeeds", () => job.state === "succeeded");
});

test("a lease that cannot be renewed for its whole term is lost: the handler is aborted", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  server.fault("renew", { status: 503, retryAfter: 1 }, Infinity);
  const reasons = [];
  work(
    server,
    {
      echo: async (_, attempt) => {
        if (attempt.starts > 1) return "second";
        reasons.push((await aborted(attempt.signal)).reason);
        return "first";
      },
    },
    { leaseMs: 3_000 },
  );
  await until("the job runs again", () => job.state === "succeeded");
  await until("the first handler is aborted", () => reasons.length > 0);
  assert.deepEqual(reasons, ["lost"]);
  assert.equal(job.outputText, '"second"');
  assert.equal(job.settlements.length, 1);
  assert.ok(server.of("renew").length >= 2, "it was tried more than once");
});

test("a renewal whose answer is lost is repeated before the lease expires", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  server.fault("renew", { drop: "after" }, 2);
  server.fault("renew", { status: 502 }, 2);
  const end = deferred();
  work(server, { echo: () => end.promise });
  await until("it is renewed", () => server.of("renew").length >= 6);
  end.resolve();
  await until("it succeeds", () => job.state === "succeeded");
  assert.equal(job.starts, 1);
});

test("reports that the server refuses cost no lease", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  server.fault(
    "renew",
    { status: 422 },
    Infinity,
    ({ body }) => JSON.parse(body).leases[0].progress,
  );
  const end = deferred();
  work(
    server,
    {
      echo: (_, attempt) => {
        attempt.progress([]);
        return end.promise;
      },
    },
    { leaseMs: 1_000 },
  );
  await until("it is renewed", () => server.of("renew").length >= 6);
  end.resolve();
  await until("it succeeds", () => job.state === "succeeded");
  assert.equal(job.starts, 1);
});
