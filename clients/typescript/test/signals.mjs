// A worker that ends by signals. It prints a line when a job starts; the payload is the duration of
// the job in milliseconds.

import { Quell } from "../src/index.js";

const worker = new Quell().worker({ slots: 1 });
worker.task("slow", (ms) => {
  console.log("started");
  return new Promise((resolve) => setTimeout(resolve, ms));
});
await worker.run({ signals: true });
