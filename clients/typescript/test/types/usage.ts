// What users write, with and without a map of tasks. An expected error that is missing fails.

import { JsonText, Permanent, Quell, QuellError, Retry, Snooze } from "../../index.js";

interface Tasks {
  resize: { payload: { id: number }; output: { ok: boolean } };
  purge: { payload: null; output: void };
}

export async function typed(): Promise<void> {
  const quell = new Quell<Tasks>({ url: "http://127.0.0.1:7777" });
  const receipt = await quell.trigger("resize", { id: 1 }, { delay: "10s", dedup: "x" });
  const ok: boolean | undefined = receipt.output?.ok;
  await quell.trigger("resize", undefined, { payloadText: '{"id":1}' });
  await quell.trigger("resize", new JsonText('{"id":1}'));
  await quell.triggerMany("resize", [{ payload: { id: 1 }, priority: 2 }], { dedup: "batch" });
  // @ts-expect-error The payload has another type.
  await quell.trigger("resize", { id: "1" });
  // @ts-expect-error There is no such task.
  await quell.trigger("rezise", { id: 1 });
  // @ts-expect-error There is no such option.
  await quell.trigger("resize", { id: 1 }, { idempotency_key: "x" });

  const worker = quell.worker({ slots: 8 });
  worker.task("resize", async (payload, job) => {
    job.progress({ id: payload.id, key: job.key });
    if (job.signal.aborted) throw new Retry(1_000);
    return { ok: ok === true };
  });
  // @ts-expect-error The output has another type.
  worker.task("resize", async () => ({ ok: "yes" }));
  worker.task("purge", () => {});
  // @ts-expect-error A client that declares its tasks takes no other types.
  worker.task<string, string>("resize", () => "");
  await worker.run({ signals: true });
}

export async function untyped(): Promise<void> {
  const quell = new Quell();
  const worker = quell.worker();
  worker.task<{ id: number }, string>("any", (payload) => payload.id.toFixed());
  worker.task("other", (payload) => {
    if (payload.late) throw new Snooze("10s");
  });
  worker.task("third", () => {
    throw new Permanent("no");
  });
  try {
    const { job } = await quell.trigger("any", [1, 2]);
    if (job !== null) await quell.result<string>(job, { waitMs: 30_000 });
  } catch (error) {
    if (error instanceof QuellError && error.status === 422) console.error(error.field, error.kind);
  }
}
