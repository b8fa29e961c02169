// An in-memory server of the protocol, with faults: it drops connections, refuses and delays.

import { createServer } from "node:http";
import { once } from "node:events";
import { elements, members } from "../src/json.js";
import { toMs } from "../src/duration.js";

const LONE = /\p{Surrogate}/u;
const CLOSED = ["succeeded", "dead", "cancelled"];

export class FakeServer {
  /** Settings of tasks by name. */
  tasks = new Map();
  jobs = new Map();
  /** All requests that arrived: `{ method, path, action, body }`. */
  requests = [];
  /** The most jobs that ran at once. */
  mostRunning = 0;
  #faults = [];
  #keys = new Map();
  #waiting = new Set();
  #sockets = new Set();
  #nextLease = 1;
  #server;
  #port = 0;
  #expiry;

  constructor(tasks = { echo: {} }) {
    for (const [name, task] of Object.entries(tasks)) {
      this.tasks.set(name, { timeout: "10m", maxAttempts: 3, ...task });
    }
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  async start() {
    this.#server = createServer((request, response) => {
      this.#serve(request, response).catch((error) => {
        response.statusCode = 500;
        response.end(String(error.stack));
      });
    });
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.setMaxListeners(0);
      socket.on("close", () => this.#sockets.delete(socket));
    });
    this.#server.listen(this.#port, "127.0.0.1");
    await once(this.#server, "listening");
    this.#port = this.#server.address().port;
    this.#expiry = setInterval(() => this.#expire(), 10);
    return this;
  }

  /** Cuts all connections at once. `start()` continues with the same jobs on the same port. */
  async kill() {
    clearInterval(this.#expiry);
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    for (const waiting of this.#waiting) waiting.leave();
    await once(this.#server, "close");
  }

  /**
   * Applies a fault to the next `times` requests of an action (`claim`, `renew`, `settle`, `leave`,
   * `triggers`, `result`, …) for which `when` holds. Faults: `{ drop: "before" | "after" }`,
   * `{ status, retryAfter, kind }`, `{ delay: ms }`, `{ until: promise }`.
   */
  fault(action, fault, times = 1, when = () => true) {
    this.#faults.push({ action, fault, times, when });
  }

  endFaults() {
    this.#faults = [];
  }

  /** The requests of an action. */
  of(action) {
    return this.requests.filter((request) => request.action === action);
  }

  add(task, payloadText, { trigger = {} } = {}) {
    const id = String(this.jobs.size + 1);
    this.jobs.set(id, {
      id,
      task,
      payloadText,
      trigger,
      state: "scheduled",
      attempts: 0,
      starts: 0,
      lease: null,
      leaseUntil: 0,
      firstAt: Date.now(),
      dueAt: Date.now() + (trigger.delay ? toMs(trigger.delay) : 0),
      outputText: null,
      error: null,
      settlements: [],
      progress: null,
      log: [],
    });
    this.#serveWaiting();
    return this.jobs.get(id);
  }

  cancel(id) {
    Object.assign(this.jobs.get(id), { state: "cancelled", lease: null });
  }

  /** Keeps the server from giving jobs out until `resume`. */
  paused = false;

  resume() {
    this.paused = false;
    this.#serveWaiting();
  }

  async #serve(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks).toString();
    const { pathname, searchParams } = new URL(request.url, this.url);
    const parts = pathname.split("/").map(decodeURIComponent);
    const action = parts.at(-1);
    const call = { method: request.method, path: pathname, action, body, headers: request.headers };
    this.requests.push(call);
    const fault = this.#faultOf(call);
    if (fault?.drop === "before") return void request.socket.destroy();
    if (fault?.status) {
      return refuse(response, fault.status, fault.kind ?? "fault", "x", fault.retryAfter);
    }
    const answer = await this.#answer(parts, body, searchParams, request);
    if (fault?.delay) await new Promise((resolve) => setTimeout(resolve, fault.delay).unref());
    await fault?.until;
    if (fault?.drop === "after") return void request.socket.destroy();
    if (answer.status >= 400) return refuse(response, answer.status, answer.kind, answer.field);
    response.writeHead(answer.status ?? 200, { "content-type": "application/json" });
    response.end(answer.text ?? JSON.stringify(answer.value));
  }

  #faultOf(call) {
    const found = this.#faults.find(
      ({ action, times, when }) => action === call.action && times > 0 && when(call),
    );
    if (found) found.times -= 1;
    return found?.fault;
  }

  async #answer(parts, body, query, request) {
    const [, , kind, name, action] = parts;
    if (kind === "workers") return this.#worker(name, action, body, request);
    if (kind === "tasks" && action === "triggers") return this.#trigger(name, body);
    if (kind === "tasks") return { value: { job: "1", flushed: true } };
    const job = this.jobs.get(name);
    if (!job) return { status: 404, kind: "not_found", field: "job" };
    if (action === "cancel" && CLOSED.includes(job.state)) {
      return { status: 409, kind: "illegal_move", field: "job" };
    }
    if (action === "cancel") {
      this.cancel(name);
      return { value: { job: name, state: "cancelled" } };
    }
    if (action === "result") return this.#result(job, toMs(query.get("wait") ?? "0ms"));
    return {
      value: {
        job: { id: job.id, task: job.task, queue: "default", state: job.state },
        attempts: [],
        text: "",
        running: { progress: job.progress, log: job.log },
      },
    };
  }

  #trigger(task, body) {
    if (!this.tasks.has(task)) return { status: 404, kind: "not_found", field: "task" };
    const list = body.startsWith("[") ? elements(body) : null;
    const batch = !list && members(body).get("triggers");
    const texts = list ?? (batch ? elements(batch) : [body]);
    const batchKey = batch ? JSON.parse(body).dedup : undefined;
    const taken = batchKey !== undefined && this.#keys.has(batchKey);
    const receipts = texts.map((text, index) => {
      const trigger = JSON.parse(text);
      const key =
        taken || batchKey ? `${batchKey}#${index}` : (trigger.idempotency_key ?? trigger.dedup);
      const known = key !== undefined && this.#keys.get(key);
      if (known) {
        return {
          receipt: trigger.idempotency_key ? "existing" : "duplicate",
          task,
          job: known.id,
          trigger: known.id,
        };
      }
      const job = this.add(task, members(text).get("payload"), { trigger });
      if (key !== undefined) this.#keys.set(key, job);
      if (batchKey !== undefined) this.#keys.set(batchKey, job);
      return {
        receipt: "accepted",
        task,
        job: job.id,
        trigger: job.id,
        due: new Date(job.dueAt).toISOString(),
      };
    });
    return { status: 202, value: list || batch ? receipts : receipts[0] };
  }

  async #result(job, wait) {
    const deadline = Date.now() + wait;
    while (!CLOSED.includes(job.state) && Date.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const head = JSON.stringify({
      job: job.id,
      state: job.state,
      ended: CLOSED.includes(job.state),
      error: job.error,
    });
    return { text: `${head.slice(0, -1)}, "output": ${job.outputText ?? "null"} }` };
  }

  #worker(name, action, body, request) {
    const asked = JSON.parse(body);
    if (action === "claim") return this.#claim(name, asked, request);
    if (action === "renew") return this.#renew(asked);
    if (action === "settle") return this.#settle(body);
    for (const waiting of this.#waiting) if (waiting.name === name) waiting.leave();
    return { value: {} };
  }

  #claim(name, asked, request) {
    if (asked.tasks.some((task) => !this.tasks.has(task))) {
      return { status: 404, kind: "not_found", field: "tasks[0]" };
    }
    return new Promise((resolve) => {
      const waiting = { name, asked, leave: () => done([]) };
      const done = (jobs) => {
        clearTimeout(timer);
        this.#waiting.delete(waiting);
        resolve({ text: `{"now": "${new Date().toISOString()}", "jobs": [${jobs.join(" , ")}]}` });
      };
      waiting.offer = () => {
        const jobs = this.#start(asked);
        if (jobs.length > 0) done(jobs);
      };
      const timer = setTimeout(() => done([]), toMs(asked.wait ?? "20s"));
      this.#waiting.add(waiting);
      // A server notices that a waiting caller is gone, and gives it no jobs.
      request.socket.once("close", waiting.leave);
      waiting.offer();
    });
  }

  #start({ tasks, limit, lease }) {
    if (this.paused) return [];
    const due = [...this.jobs.values()].filter(
      (job) =>
        job.state === "scheduled" &&
        job.dueAt <= Date.now() &&
        tasks.includes(job.task) &&
        !this.#isHeldUp(job),
    );
    const started = due.slice(0, limit).map((job) => {
      Object.assign(job, {
        state: "running",
        lease: `lease "${this.#nextLease++}"`,
        leaseUntil: Date.now() + toMs(lease),
        attempts: job.attempts + 1,
        starts: job.starts + 1,
      });
      const head = JSON.stringify({
        lease: job.lease,
        id: job.id,
        task: job.task,
        queue: "default",
        key: null,
        attempt: job.attempts,
        starts: job.starts,
        fencing_token: `${job.starts}-5f2c`,
        triggers: 1,
        first_at: time(job.firstAt),
        due_at: time(job.dueAt),
        started_at: time(Date.now()),
        lease_until: time(job.leaseUntil),
        timeout: this.tasks.get(job.task).timeout,
        traces: [{ traceparent: `00-${"1".repeat(32)}-${"2".repeat(16)}-01`, tracestate: null }],
      });
      return `${head.slice(0, -1)}, "payload" : ${job.payloadText}}`;
    });
    const running = [...this.jobs.values()].filter(({ state }) => state === "running").length;
    this.mostRunning = Math.max(this.mostRunning, running);
    return started;
  }

  /** Whether an older job of its partition has not ended, where the order is strict. */
  #isHeldUp({ id, task, trigger: { partition } }) {
    if (partition === undefined || !this.tasks.get(task).strict) return false;
    return [...this.jobs.values()].some(
      (other) =>
        Number(other.id) < Number(id) &&
        other.trigger.partition === partition &&
        !CLOSED.includes(other.state),
    );
  }

  #renew({ lease: term, leases }) {
    const answers = leases.map(({ lease, progress, log }) => {
      const job = this.#running(lease);
      if (!job) return { lease, state: "lost", until: null };
      job.leaseUntil = Date.now() + toMs(term);
      if (progress !== undefined) job.progress = progress;
      job.log.push(...(log ?? []));
      return { lease, state: "held", until: time(job.leaseUntil) };
    });
    return { value: { now: time(Date.now()), leases: answers } };
  }

  #settle(body) {
    const texts = elements(members(body).get("settlements"));
    if (texts.some((text) => JSON.parse(text).output === "refuse me")) {
      return { status: 422, kind: "invalid", field: "settlements" };
    }
    // The server reads these as strings, in which half of a surrogate pair is an error.
    const strings = texts.map((text) => JSON.parse(text));
    if (strings.some(({ error, reason, log = [] }) => LONE.test([error, reason, ...log].join()))) {
      return { status: 400, kind: "invalid", field: "settlements" };
    }
    const settled = texts.map((text) => {
      const settlement = JSON.parse(text);
      const job = this.#running(settlement.lease);
      if (!job) return { lease: settlement.lease, became: "refused", due_at: null, by: null };
      job.settlements.push(settlement);
      job.lease = null;
      const became = this.#become(job, settlement, members(text).get("output") ?? null);
      return { lease: settlement.lease, became, due_at: null, by: null };
    });
    this.#serveWaiting();
    return { value: { settled } };
  }

  #become(job, { outcome, error, permanent, retry_in: retryIn, delay, reason }, outputText) {
    const again = (dueAt) => {
      Object.assign(job, { state: "scheduled", dueAt });
      setTimeout(() => this.#serveWaiting(), Math.max(0, dueAt - Date.now()) + 1).unref();
      return "scheduled";
    };
    if (outcome === "succeeded") Object.assign(job, { state: "succeeded", outputText });
    else if (outcome === "cancelled") Object.assign(job, { state: "cancelled", error: reason });
    else if (outcome === "failed") {
      job.error = error;
      const spent = job.attempts >= this.tasks.get(job.task).maxAttempts;
      if (!permanent && !spent) return again(Date.now() + (retryIn ? toMs(retryIn) : 20));
      job.state = "dead";
    } else {
      job.attempts -= 1;
      return again(Date.now() + (delay ? toMs(delay) : 0));
    }
    return job.state;
  }

  #running(lease) {
    return [...this.jobs.values()].find(
      (job) => job.lease === lease && job.state === "running" && job.leaseUntil > Date.now(),
    );
  }

  #expire() {
    for (const job of this.jobs.values()) {
      if (job.state === "running" && job.leaseUntil <= Date.now()) {
        Object.assign(job, { state: "scheduled", lease: null, attempts: job.attempts - 1 });
      }
    }
    this.#serveWaiting();
  }

  #serveWaiting() {
    for (const { offer } of [...this.#waiting]) offer?.();
  }
}

function refuse(response, status, kind, field, retryAfter) {
  response.writeHead(status, {
    "content-type": "application/problem+json",
    ...(retryAfter === undefined ? {} : { "retry-after": String(retryAfter) }),
  });
  const error = { kind, field, message: `refused: ${kind}`, id: status >= 500 ? "1f" : null };
  response.end(
    JSON.stringify({ type: "about:blank", title: "", status, detail: error.message, error }),
  );
}

function time(ms) {
  return new Date(ms).toISOString();
}
