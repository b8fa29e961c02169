// A worker for chaos tests: `node witness.mjs FILE` appends one line of JSON to FILE when an attempt
// of the task `stamp` starts, and one when it ends. In between are `payload.ms` milliseconds; of a list
// of payloads, the longest. An attempt that is aborted has no end. It rides out a server that is killed, and ends at SIGTERM.

import { appendFileSync } from "node:fs";
import { Quell } from "../src/index.js";

const [file] = process.argv.slice(2);
if (!file) {
  console.error("usage: node witness.mjs FILE");
  process.exit(2);
}

const worker = new Quell().worker({ slots: 8, leaseMs: 2_000 });

worker.task("stamp", async (payload, job) => {
  const write = (event) => {
    const { id, fencingToken, starts } = job;
    const line = { job: id, fencing_token: fencingToken, starts, payload, event };
    appendFileSync(file, `${JSON.stringify(line)}\n`);
  };
  write("start");
  await delay(Math.max(...[payload].flat().map((part) => part.ms ?? 0)), job.signal);
  write("end");
});

await worker.run({ signals: true });

/** Rejects with the signal's reason when it aborts. */
function delay(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        reject(signal.reason);
      },
      { once: true },
    );
  });
}
