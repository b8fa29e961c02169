// Servers and workers of tests: at the end of its test a worker stops, and then its server.

import { Quell } from "../src/index.js";
import { aborted } from "./conditions.js";
import { FakeServer } from "./fake-server.js";

/** @type {WeakMap<FakeServer, any[]>} */
const WORKERS = new WeakMap();

export async function serve(t, tasks) {
  const server = await new FakeServer(tasks).start();
  WORKERS.set(server, []);
  t.after(async () => {
    await Promise.all(WORKERS.get(server).map((worker) => worker.stop().catch(() => {})));
    await server.kill();
  });
  return server;
}

/**
 * Starts a worker with handlers by task. Errors of the worker itself are in `errors`.
 * @returns {{ worker: any, running: Promise<void>, errors: any[] }}
 */
export function work(server, handlers, options = {}) {
  const errors = [];
  const worker = new Quell({ url: server.url }).worker({
    slots: 4,
    leaseMs: 3_000,
    graceMs: 2_000,
    onError: (error, during) => errors.push({ error, during }),
    ...options,
  });
  for (const [task, handler] of Object.entries(handlers)) worker.task(task, handler);
  const running = worker.run();
  running.catch(() => {});
  WORKERS.get(server).push(worker);
  return { worker, running, errors };
}

/** A handler that runs until it is aborted, keeps the reason, and ends as `end` does. */
export function heeding(end) {
  const heeding = {
    handler: async (_, attempt) => {
      heeding.reason = await aborted(attempt.signal);
      return end(heeding.reason);
    },
  };
  return heeding;
}
