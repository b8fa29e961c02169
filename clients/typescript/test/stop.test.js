import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import test from "node:test";
import { Quell } from "../src/index.js";
import { aborted, deferred, until } from "./conditions.js";
import { heeding, serve, work } from "./running.js";

test("stop lets handlers finish, claims nothing more, and leaves", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  const end = deferred();
  const { worker, running } = work(
    server,
    { echo: () => end.promise },
    { slots: 2, graceMs: 60_000 },
  );
  await until(
    "it runs and the worker waits for more",
    () => worker.busy === 1 && server.of("claim").length === 2,
  );
  const stopping = worker.stop();
  await until("the worker leaves", () => server.of("leave").length === 1);
  const second = server.add("echo", "2");
  end.resolve("done");
  await Promise.all([stopping, running]);
  assert.equal(job.outputText, '"done"');
  assert.equal(second.starts, 0);
  assert.equal(server.of("claim").length, 2);
  assert.ok(server.of("leave").length >= 2);
  assert.equal(server.requests.at(-1).action, "leave");
});

test("jobs that run beyond the grace are aborted and released", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  const heeded = heeding(() => new Promise(() => {}));
  const { worker } = work(server, { echo: heeded.handler }, { graceMs: 300 });
  await until("it runs", () => worker.busy === 1);
  await worker.stop();
  assert.equal(heeded.reason.reason, "shutdown");
  assert.deepEqual(
    [job.state, job.attempts, job.settlements[0].outcome],
    ["scheduled", 0, "released"],
  );
});

test("a job that comes with a claim after the stop is released", async (t) => {
  const server = await serve(t);
  const stopping = deferred();
  server.fault("claim", { until: stopping.promise });
  const job = server.add("echo", "1");
  let ran = false;
  const { worker } = work(server, {
    echo: () => {
      ran = true;
    },
  });
  await until("the server has given the job out", () => job.state === "running");
  const stopped = worker.stop();
  stopping.resolve();
  await stopped;
  assert.equal(ran, false);
  assert.deepEqual(
    [job.state, job.attempts, job.settlements[0].outcome],
    ["scheduled", 0, "released"],
  );
});

test("a claim that reaches the server after `leave` does not hold up the stop", async (t) => {
  const server = await serve(t);
  server.fault("leave", { status: 503 });
  const { worker } = work(server, { echo: () => {} }, { graceMs: 20_000 });
  await until("the claim waits", () => server.of("claim").length === 1);
  const before = performance.now();
  await worker.stop();
  assert.ok(performance.now() - before < 10_000);
  assert.ok(server.of("leave").length >= 2);
});

test("a worker that is stopped before it runs ends at once", async (t) => {
  const server = await serve(t);
  const worker = new Quell({ url: server.url }).worker().task("echo", () => {});
  await worker.stop();
  await worker.run();
  await new Quell({ url: server.url })
    .worker()
    .task("echo", () => {})
    .run({ signal: AbortSignal.abort() });
  assert.equal(server.of("claim").length, 0);
});

test("SIGTERM stops gracefully, and a second one ends the process", async (t) => {
  const server = await serve(t, { slow: {} });
  const program = fileURLToPath(new URL("signals.mjs", import.meta.url));
  const start = () =>
    spawn(process.execPath, [program], {
      env: { ...process.env, QUELL_SERVER: server.url },
      stdio: ["ignore", "pipe", "inherit"],
    });
  const first = server.add("slow", "300");
  const graceful = start();
  const exited = once(graceful, "exit");
  await once(graceful.stdout, "data");
  graceful.kill("SIGTERM");
  assert.deepEqual(await exited, [0, null]);
  assert.equal(first.state, "succeeded");

  server.add("slow", "60000");
  const killed = start();
  const ended = once(killed, "exit");
  await once(killed.stdout, "data");
  const leaves = server.of("leave").length;
  killed.kill("SIGINT");
  await until("the worker leaves", () => server.of("leave").length > leaves);
  killed.kill("SIGTERM");
  assert.deepEqual(await ended, [null, "SIGTERM"]);
});

test("a stop ends within the grace although the server is away", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  const { worker } = work(
    server,
    { echo: (_, attempt) => aborted(attempt.signal) },
    { graceMs: 500 },
  );
  await until("it runs", () => worker.busy === 1);
  await server.kill();
  const before = performance.now();
  await worker.stop();
  assert.ok(performance.now() - before < 15_000);
  await server.start();
});

test("a stop waits for the acknowledgement of settlements", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  server.fault("settle", { drop: "after" });
  server.fault("settle", { status: 503 }, 2);
  const end = deferred();
  const { worker } = work(server, { echo: () => end.promise });
  await until("it runs", () => worker.busy === 1);
  const stopping = worker.stop();
  end.resolve();
  await stopping;
  assert.equal(job.state, "succeeded");
  assert.equal(server.of("settle").length, 4);
});
