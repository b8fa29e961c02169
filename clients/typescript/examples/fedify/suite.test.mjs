// Fedify's own suite of message queues, unchanged, against the server at QUELL_SERVER, and what the
// suite does not ask: order beside a message that fails.

import assert from "node:assert/strict";
import test from "node:test";
import { testMessageQueue } from "@fedify/testing";
import { Quell } from "quell-client";
import { QuellMessageQueue } from "./quell-mq.js";

test("Fedify's suite of message queues passes", { timeout: 120_000 }, () =>
  testMessageQueue(
    () => new QuellMessageQueue(new Quell()),
    ({ controller }) => controller.abort(),
    { testOrderingKey: true },
  ),
);

test("messages of an ordering key keep their order when one fails", { timeout: 120_000 }, async () => {
  const queue = new QuellMessageQueue(new Quell());
  const controller = new AbortController();
  const seen = { a: [], b: [] };
  let failures = 0;
  let finish;
  const all = new Promise((resolve) => (finish = resolve));
  const listening = queue.listen(
    ({ key, number }) => {
      if (key === "a" && number === 1 && failures < 2) {
        failures += 1;
        throw new Error("not yet");
      }
      seen[key].push(number);
      if (seen.a.length + seen.b.length === 6) finish();
    },
    { signal: controller.signal },
  );
  for (const number of [1, 2, 3]) {
    for (const key of ["a", "b"]) {
      await queue.enqueue({ key, number }, { orderingKey: key });
    }
  }
  await all;
  controller.abort();
  await listening;
  assert.equal(failures, 2);
  assert.deepEqual(seen, { a: [1, 2, 3], b: [1, 2, 3] });
});
