import assert from "node:assert/strict";
import { createServer } from "node:net";
import { once } from "node:events";
import test from "node:test";
import { JsonText, Quell, QuellError, UnknownOutcomeError } from "../src/index.js";
import { until } from "./conditions.js";
import { FakeServer } from "./fake-server.js";

async function serve(t, tasks) {
  const server = await new FakeServer(tasks).start();
  t.after(() => server.kill());
  return server;
}

const client = (server, options = {}) =>
  new Quell({ url: server.url, timeoutMs: 5_000, ...options });

test("a trigger is sent with its options, and returns its receipt", async (t) => {
  const server = await serve(t);
  const quell = client(server, { token: "secret", url: `${server.url}/` });
  const receipt = await quell.trigger(
    "echo",
    { id: 1 },
    {
      delay: "10s",
      runAt: new Date(0),
      priority: -1,
      partition: "p",
      dedup: "d",
      dedupTtl: 1_500,
      dedupUntil: "done",
      debounce: { min: 100, max: "1m" },
      idempotencyKey: "k",
      trace: { traceparent: "00-1" },
    },
  );
  assert.equal(receipt.receipt, "accepted");
  assert.equal(receipt.job, "1");
  const [{ body, headers }] = server.of("triggers");
  assert.equal(headers.authorization, "Bearer secret");
  assert.deepEqual(JSON.parse(body), {
    payload: { id: 1 },
    delay: "10s",
    run_at: "1970-01-01T00:00:00.000Z",
    priority: -1,
    partition: "p",
    dedup: "d",
    dedup_ttl: "1500ms",
    dedup_until: "done",
    debounce: { min: "100ms", max: "1m" },
    idempotency_key: "k",
    trace: { traceparent: "00-1", tracestate: null },
  });
  await quell.trigger("echo", null, { debounce: false, delay: 0 });
  assert.equal(server.of("triggers")[1].body, '{"payload":null,"debounce":false}');
});

test("exact JSON text is sent as it is", async (t) => {
  const server = await serve(t);
  const quell = client(server);
  const text = '{"n":12345678901234567890123,"b":1,"a":2}';
  await quell.trigger("echo", undefined, { payloadText: text });
  await quell.trigger("echo", new JsonText(text));
  await quell.triggerMany("echo", [{ payloadText: text }, { payload: 1 }]);
  const sent = server.of("triggers").map(({ body }) => body);
  assert.deepEqual(sent, [
    `{"payload":${text}}`,
    `{"payload":${text}}`,
    `[{"payload":${text}},{"payload":1}]`,
  ]);
});

test("misuse is refused before anything is sent", async (t) => {
  const server = await serve(t);
  const quell = client(server);
  await assert.rejects(quell.trigger("echo", 1, { payloadText: "2" }), TypeError);
  await assert.rejects(
    quell.trigger("echo", undefined, { payloadText: '1,"delay":"1h"' }),
    SyntaxError,
  );
  await assert.rejects(
    quell.trigger("echo", 1, { idempotency_key: "k" }),
    /unknown option idempotency_key/,
  );
  await assert.rejects(quell.trigger("echo", 1, { delay: -1 }), RangeError);
  await assert.rejects(
    quell.triggerMany("echo", [{ payload: 1 }], { delay: 1 }),
    /unknown option delay/,
  );
  assert.deepEqual(await quell.triggerMany("echo", []), []);
  assert.equal(server.requests.length, 0);
});

test("a batch with a dedup key counts once", async (t) => {
  const server = await serve(t);
  const quell = client(server);
  const batch = [{ payload: 1 }, { payload: 2, priority: 3 }];
  const first = await quell.triggerMany("echo", batch, { dedup: "b", dedupTtl: "1h" });
  const second = await quell.triggerMany("echo", batch, { dedup: "b", dedupTtl: "1h" });
  assert.deepEqual(
    first.map(({ receipt }) => receipt),
    ["accepted", "accepted"],
  );
  assert.deepEqual(
    second.map(({ job }) => job),
    first.map(({ job }) => job),
  );
  assert.deepEqual(JSON.parse(server.of("triggers")[0].body), {
    triggers: batch,
    dedup: "b",
    dedup_ttl: "1h",
  });
});

const FAULTS = {
  refused: [{ status: 503, retryAfter: 0 }, "rejected"],
  "too many requests": [{ status: 429 }, "rejected"],
  "503 without Retry-After": [{ status: 503 }, "unknown"],
  504: [{ status: 504, kind: "unknown_outcome" }, "unknown"],
  502: [{ status: 502 }, "unknown"],
  408: [{ status: 408 }, "unknown"],
  "dropped before it was processed": [{ drop: "before" }, "unknown"],
  "dropped after it was processed": [{ drop: "after" }, "unknown"],
  "no answer in time": [{ delay: 60_000 }, "unknown"],
};

const SAFE = {
  none: [{}, false],
  idempotencyKey: [{ idempotencyKey: "k" }, true],
  dedup: [{ dedup: "d" }, true],
  "dedup for a day": [{ dedup: "d", dedupTtl: "24h" }, true],
  "dedup that ends too early": [{ dedup: "d", dedupTtl: "10s" }, false],
  "dedup until the start": [{ dedup: "d", dedupUntil: "started" }, false],
};

for (const [name, [fault, outcome]] of Object.entries(FAULTS)) {
  test(`trigger, ${name}: repeated only where that is safe`, async (t) => {
    const check = async ([key, [options, safe]]) => {
      const server = await new FakeServer().start();
      try {
        server.fault("triggers", fault);
        const quell = client(server, { timeoutMs: fault.delay ? 1_000 : 10_000 });
        const call = quell.trigger("echo", 1, options);
        if (outcome === "rejected" || safe) {
          const { job } = await call;
          assert.equal(job, "1", key);
          assert.equal(server.of("triggers").length, 2, key);
        } else {
          await assert.rejects(call, (error) => error instanceof UnknownOutcomeError, key);
          assert.equal(server.of("triggers").length, 1, key);
        }
        assert.ok(server.jobs.size <= 1, key);
      } finally {
        await server.kill();
      }
    };
    await Promise.all(Object.entries(SAFE).map(check));
  });
}

test("a batch is repeated after an unknown outcome only if each member is safe, or the batch", async (t) => {
  const server = await serve(t);
  const quell = client(server);
  const drop = () => server.fault("triggers", { drop: "after" });
  drop();
  await assert.rejects(
    quell.triggerMany("echo", [{ payload: 1, dedup: "a" }, { payload: 2 }]),
    UnknownOutcomeError,
  );
  drop();
  const each = await quell.triggerMany("echo", [
    { payload: 1, dedup: "b" },
    { payload: 2, idempotencyKey: "c" },
  ]);
  assert.deepEqual(
    each.map(({ receipt }) => receipt),
    ["duplicate", "existing"],
  );
  drop();
  const batch = await quell.triggerMany("echo", [{ payload: 1 }, { payload: 2 }], { dedup: "d" });
  assert.deepEqual(
    batch.map(({ receipt }) => receipt),
    ["duplicate", "duplicate"],
  );
  assert.equal(server.jobs.size, 6);
});

test("a refused connection is tried again: nothing was sent", async (t) => {
  const server = await new FakeServer().start();
  await server.kill();
  const call = client(server).trigger("echo", 1);
  await new Promise((resolve) => setImmediate(resolve));
  await server.start();
  t.after(() => server.kill());
  assert.equal((await call).receipt, "accepted");
});

test("a server that stays away: the error says whether the outcome is unknown", async (t) => {
  const server = await new FakeServer().start();
  server.fault("triggers", { drop: "before" }, Infinity);
  const quell = client(server, { retryMs: 300 });
  await assert.rejects(quell.trigger("echo", 1, { dedup: "d" }), UnknownOutcomeError);
  await server.kill();
  await assert.rejects(quell.trigger("echo", 1), (error) => {
    assert.ok(error instanceof QuellError && !(error instanceof UnknownOutcomeError));
    assert.equal(error.kind, "transport");
    assert.match(error.message, /connect ECONNREFUSED 127\.0\.0\.1:\d+/);
    assert.ok(error.cause instanceof Error, "fetch's own error");
    return true;
  });
});

test("a refusal is not repeated, and has the server's kind and field", async (t) => {
  const server = await serve(t);
  server.fault("triggers", { status: 422, kind: "idempotency_conflict" });
  server.fault("triggers", { status: 500, kind: "internal" });
  const quell = client(server);
  for (const [kind, status, id] of [
    ["idempotency_conflict", 422, null],
    ["internal", 500, "1f"],
  ]) {
    await assert.rejects(quell.trigger("echo", 1, { idempotencyKey: "k" }), (error) => {
      const { name, field } = error;
      assert.deepEqual(
        { name, kind: error.kind, field, status: error.status, id: error.id },
        { name: "QuellError", kind, field: "x", status, id },
      );
      return true;
    });
  }
  await assert.rejects(quell.trigger("missing", 1), { status: 404, kind: "not_found" });
  assert.equal(server.of("triggers").length, 3);
});

test("a response that is not JSON is refused", async (t) => {
  const page = createServer((socket) => {
    socket.end("HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>");
  });
  page.listen(0, "127.0.0.1");
  await once(page, "listening");
  t.after(() => page.close());
  const quell = new Quell({ url: `http://127.0.0.1:${page.address().port}` });
  await assert.rejects(quell.trigger("echo", 1), { kind: "protocol", status: 200 });
});

test("an aborted signal ends a call with its reason", async (t) => {
  const server = await serve(t);
  server.fault("triggers", { delay: 60_000 });
  const controller = new AbortController();
  const call = client(server).trigger("echo", 1, { signal: controller.signal });
  await until("the request arrives", () => server.of("triggers").length === 1);
  controller.abort(new Error("enough"));
  await assert.rejects(call, /enough/);
  await assert.rejects(
    client(server).trigger("echo", 1, { signal: AbortSignal.abort(new Error("no")) }),
    /no/,
  );
  assert.equal(server.of("triggers").length, 1);
});

test("result repeats its requests until the job has ended, with the exact output", async (t) => {
  const server = await serve(t);
  const quell = client(server);
  const job = server.add("echo", "1");
  assert.deepEqual(await quell.result(job.id), {
    job: "1",
    state: "scheduled",
    ended: false,
    output: null,
    outputText: null,
    error: null,
  });
  server.fault("result", { drop: "before" });
  server.fault("result", { status: 503 });
  const call = quell.result(job.id, { waitMs: 60_000 });
  await until("the client repeats", () => server.of("result").length === 4);
  Object.assign(job, { state: "succeeded", outputText: '{"n": 12345678901234567890123}' });
  const result = await call;
  assert.equal(result.ended, true);
  assert.equal(result.outputText, '{"n": 12345678901234567890123}');
  await assert.rejects(quell.result("99"), { status: 404 });
});

test("result waits no longer than asked", async (t) => {
  const server = await serve(t);
  const job = server.add("echo", "1");
  const { ended } = await client(server).result(job.id, { waitMs: 50 });
  assert.equal(ended, false);
});

test("jobs are shown and cancelled, windows flushed", async (t) => {
  const server = await serve(t);
  const quell = client(server);
  const job = server.add("echo", "1");
  assert.equal((await quell.job(job.id)).job.state, "scheduled");
  server.fault("cancel", { drop: "after" });
  assert.deepEqual(await quell.cancel(job.id), { job: "1", state: "cancelled" });
  const ended = server.add("echo", "2");
  ended.state = "succeeded";
  await assert.rejects(quell.cancel(ended.id), { status: 409, kind: "illegal_move" });
  await quell.flush("echo", 'k"');
  server.fault("cancel", { drop: "after" });
  await assert.rejects(quell.cancelWindow("echo", "k"), UnknownOutcomeError);
  assert.equal(server.of("flush")[0].body, '{"key":"k\\""}');
});

test("an error names what its connection failed of, however deep that is", async () => {
  const inner = Object.assign(new Error("certificate has expired"), { code: "CERT_HAS_EXPIRED" });
  const address = Object.assign(new Error("connect EHOSTUNREACH 10.0.0.9:80"), {
    code: "EHOSTUNREACH",
  });
  const several = Object.assign(new AggregateError([address]), { code: "EHOSTUNREACH" });
  const cases = [
    [inner, "fetch failed: certificate has expired (CERT_HAS_EXPIRED)"],
    [several, "fetch failed: connect EHOSTUNREACH 10.0.0.9:80"],
    [undefined, "fetch failed"],
  ];
  for (const [cause, expected] of cases) {
    const thrown = new TypeError("fetch failed", { cause });
    const fetch = () => Promise.reject(thrown);
    const quell = new Quell({ url: "http://127.0.0.1:1", fetch, retryMs: 0 });
    await assert.rejects(quell.result("7"), (error) => {
      assert.equal(error.message, `GET /v1/jobs/7/result: the request failed: ${expected}`);
      assert.equal(error.cause, thrown);
      return true;
    });
  }
});
