// A pull worker: claims jobs for free slots, runs their handlers, and stops gracefully. The keeper
// holds the leases meanwhile. Invariant: there are never more attempts than slots.

/** @import { Handler, WorkerActivity, WorkerOptions } from "../index.js" */
/** @import { Claimed } from "./attempt.js" */
/** @import { Http } from "./http.js" */

import { Attempt, RELEASED } from "./attempt.js";
import { QuellError } from "./errors.js";
import { elements, members, objectText } from "./json.js";
import { Keeper, retryAfter } from "./keeper.js";
import { workerOptions } from "./options.js";
import { incarnation, onTermination, processInfo, uniqueName } from "./process.js";
import { Backoff, Timer, Wakeup, clock } from "./time.js";

/** How long a response may take beyond the wait that the claim asked for. */
const CLAIM_SLACK_MS = 10_000;

/** A claim that waits ends within this after `leave`; `leave` is repeated as often meanwhile. */
const LEAVE_MS = 1_000;

/** How long settlements may take after the grace. */
const DRAIN_MS = 5_000;

/** How long a stop waits for the claim at least: the server may give jobs to an aborted one. */
const MIN_CLAIM_MS = 2_000;

/** The settlements that may wait before the worker claims no more. */
const MAX_SETTLING = 1_000;

/** Statuses of a first claim by which the server refuses this worker's configuration. */
const MISCONFIGURED = [400, 401, 403, 404, 405, 422];

export class Worker {
  #http;
  #options;
  #path;
  #keeper;
  #incarnation = incarnation();
  #bornAt = clock();
  /** @type {Map<string, Handler>} */
  #handlers = new Map();
  /** The attempts by lease; each has a slot. @type {Map<string, Attempt>} */
  #attempts = new Map();
  /** Wakes the loop that claims: a slot is free, or the worker stops. */
  #wake = new Wakeup();
  /** Wakes `run`: the worker stops. */
  #stopped = new Wakeup();
  #stopping = false;
  #claimed = false;
  /** @type {Promise<void> | undefined} */
  #running;
  /** The activities whose last request failed. @type {Set<WorkerActivity>} */
  #failing = new Set();

  /** @param {Http} http @param {WorkerOptions} options */
  constructor(http, options) {
    this.#options = workerOptions(options);
    this.name = options.name ?? uniqueName();
    this.#http = http;
    this.#path = `/v1/workers/${encodeURIComponent(this.name)}`;
    this.#keeper = new Keeper({
      http,
      path: this.#path,
      leaseMs: this.#options.leaseMs,
      heartbeat: () => this.#heartbeat(),
      onLost: (lease) => this.#attempts.get(lease)?.abort("lost"),
      onRequest: (during, error) => {
        this.#report(during, error);
        if (during === "settle") this.#wake.wake();
      },
    });
  }

  get busy() {
    return this.#attempts.size;
  }

  /** @param {string} name @param {Handler} handler */
  task(name, handler) {
    if (this.#running) throw new Error("the worker runs already: set its tasks before");
    this.#handlers.set(name, handler);
    return this;
  }

  /**
   * @param {{ signals?: boolean | undefined, signal?: AbortSignal | undefined }} [options]
   * @returns {Promise<void>}
   */
  async run({ signals = false, signal } = {}) {
    if (this.#running) throw new Error("a worker runs once: create another one");
    if (this.#handlers.size === 0) throw new Error("the worker has no task: call `task` first");
    const stop = () => {
      void this.stop().catch(() => {});
    };
    const remove = signals ? onTermination(stop) : () => {};
    if (signal?.aborted) this.#stopping = true;
    signal?.addEventListener("abort", stop, { once: true });
    this.#running = this.#run().finally(() => {
      remove();
      signal?.removeEventListener("abort", stop);
    });
    await this.#running;
  }

  /** @returns {Promise<void>} */
  async stop() {
    this.#stopping = true;
    this.#wake.wake();
    this.#stopped.wake();
    await this.#running;
  }

  async #run() {
    this.#keeper.start();
    const claims = new AbortController();
    /** @type {unknown} */
    let refusal;
    let claiming = true;
    const loop = this.#claimLoop(claims.signal)
      .catch((error) => {
        refusal = error;
      })
      .finally(() => {
        claiming = false;
        this.#stopped.wake();
      });
    while (claiming && !this.#stopping) await this.#stopped.sleep();
    const graceEnds = clock() + this.#options.graceMs;
    const giveUp = new Timer(Math.max(this.#options.graceMs, MIN_CLAIM_MS), () => claims.abort());
    while (claiming) {
      await this.#leave();
      if (claiming) await this.#stopped.sleep(LEAVE_MS);
    }
    giveUp.clear();
    await loop;
    await this.#finish(graceEnds);
    if (refusal !== undefined) throw refusal;
  }

  /**
   * Lets handlers finish until `graceEnds`, releases the other jobs, and ends.
   * @param {number} graceEnds
   */
  async #finish(graceEnds) {
    const attempts = [...this.#attempts.values()];
    const over = new Wakeup();
    void Promise.all(attempts.map(({ freed }) => freed)).then(() => over.wake());
    await over.sleep(graceEnds - clock());
    for (const attempt of attempts) {
      attempt.abort("shutdown", RELEASED);
      attempt.abandon();
    }
    await this.#keeper.drain(Math.max(graceEnds - clock(), DRAIN_MS));
    await this.#keeper.close();
    if (this.#claimed) await this.#leave();
  }

  /**
   * Ends when the worker stops. Rejects if the server refuses the first claim.
   * @param {AbortSignal} signal
   */
  async #claimLoop(signal) {
    const backoff = new Backoff();
    while (!this.#stopping) {
      const free = this.#options.slots - this.busy;
      if (free <= 0 || this.#keeper.settling >= MAX_SETTLING) {
        await this.#wake.sleep(1_000);
        continue;
      }
      const sentAt = clock();
      try {
        const jobs = await this.#claim(free, signal);
        this.#claimed = true;
        this.#report("claim");
        // A server that does not wait for jobs must not be asked in a tight loop.
        const waited = clock() - sentAt >= Math.min(this.#options.waitMs / 2, 1_000);
        if (jobs > 0 || (waited && this.#options.waitMs > 0)) backoff.reset();
        else await this.#pause(backoff.next());
      } catch (error) {
        if (this.#stopping) return;
        if (!this.#claimed && isMisconfigured(error)) throw error;
        this.#report("claim", error);
        await this.#pause(Math.max(backoff.next(), retryAfter(error, 5_000)));
      }
    }
  }

  /** A freed slot does not end a pause; only a stop does. @param {number} ms */
  async #pause(ms) {
    const end = clock() + ms;
    while (!this.#stopping && clock() < end) await this.#wake.sleep(end - clock());
  }

  /** @param {number} limit @param {AbortSignal} signal @returns {Promise<number>} */
  async #claim(limit, signal) {
    const { waitMs, leaseMs } = this.#options;
    const body = objectText({
      tasks: JSON.stringify([...this.#handlers.keys()]),
      limit: String(limit),
      wait: waitMs === 0 ? '"0s"' : `"${waitMs}ms"`,
      lease: `"${leaseMs}ms"`,
      process: this.#heartbeat(),
    });
    const request = { body, timeoutMs: waitMs + CLAIM_SLACK_MS, signal };
    const { value, text } = await this.#http.once("POST", `${this.#path}/claim`, request);
    const texts = value.jobs.length > 0 ? elements(members(text).get("jobs") ?? "[]") : [];
    for (const [index, claimed] of value.jobs.entries()) {
      this.#take(claimed, members(texts[index] ?? "{}").get("payload") ?? "null", value.now);
    }
    return value.jobs.length;
  }

  /**
   * Starts a claimed job, or releases one that comes too late.
   * @param {Claimed} claimed
   * @param {string} payloadText
   * @param {string} now The server's time.
   */
  #take(claimed, payloadText, now) {
    const { lease, task } = claimed;
    const termMs = Date.parse(claimed.lease_until) - Date.parse(now);
    this.#keeper.hold(lease, Number.isFinite(termMs) ? termMs : this.#options.leaseMs);
    const handler = this.#handlers.get(task);
    if (!handler || this.#stopping || this.busy >= this.#options.slots) {
      this.#keeper.settle(lease, RELEASED);
      return;
    }
    const attempt = new Attempt(
      claimed,
      {
        settle: (id, settlement) => this.#keeper.settle(id, settlement),
        setProgress: (id, text) => this.#keeper.setProgress(id, text),
        addLog: (id, line) => this.#keeper.addLog(id, line),
        onError: (error) => this.#options.onError(error, "handler"),
      },
      this.#options.graceMs,
    );
    this.#attempts.set(lease, attempt);
    void attempt.freed.then(() => {
      this.#attempts.delete(lease);
      this.#wake.wake();
    });
    void attempt.run(handler, payloadText);
  }

  /** Best effort: without it the server waits for the heartbeat to fail. */
  async #leave() {
    const body = `{"incarnation":${this.#incarnation}}`;
    try {
      await this.#http.once("POST", `${this.#path}/leave`, { body, timeoutMs: LEAVE_MS });
    } catch {
      // The next call repeats it; after the last one the server misses the heartbeat.
    }
  }

  #heartbeat() {
    return JSON.stringify({
      incarnation: this.#incarnation,
      ...processInfo(),
      slots: this.#options.slots,
      busy: this.busy,
      age: `${Math.max(1, Math.round(clock() - this.#bornAt))}ms`,
    });
  }

  /**
   * Reports the first failure of an outage.
   * @param {WorkerActivity} during
   * @param {unknown} [error] None after a success.
   */
  #report(during, error) {
    if (error === undefined) {
      this.#failing.delete(during);
    } else if (!this.#failing.has(during)) {
      this.#failing.add(during);
      this.#options.onError(error, during);
    }
  }
}

/** @param {unknown} error */
function isMisconfigured(error) {
  return error instanceof QuellError && MISCONFIGURED.includes(error.status);
}
