// One attempt of a job: what its handler sees, its timeout, and the settlement of its outcome.
// Invariant: an attempt ends once, by its handler, its timeout, the loss of its lease or the end of
// the worker's grace. What the handler does after that has no effect on the job.

/** @import { Handler, Job } from "../index.js" */

import { toMs, toText } from "./duration.js";
import { Cancel, JobAborted, Permanent, Retry, Snooze } from "./errors.js";
import { cut, toJson } from "./json.js";
import { byteLength } from "./leases.js";
import { Timer } from "./time.js";

const MAX_OUTPUT_BYTES = 256 * 1024;
const MAX_PROGRESS_BYTES = 4 * 1024;
const MAX_ERROR_LENGTH = 16_000;
const MAX_LINE_LENGTH = 2_000;

/**
 * @typedef {Record<string, string | undefined>} Settlement JSON texts of its members.
 *
 * @typedef {object} Claimed A job of a claim's response.
 * @property {string} lease
 * @property {string} id
 * @property {string} task
 * @property {string} queue
 * @property {string | null} key
 * @property {any} payload
 * @property {number} attempt
 * @property {number} starts
 * @property {string} fencing_token
 * @property {number} triggers
 * @property {string} first_at
 * @property {string} due_at
 * @property {string} started_at
 * @property {string} lease_until
 * @property {string | null} [timeout]
 * @property {Array<{ traceparent: string, tracestate: string | null }>} [traces]
 *
 * @typedef {object} Sink Where the reports and the settlement of an attempt go.
 * @property {(lease: string, settlement: Settlement) => void} settle
 * @property {(lease: string, text: string) => void} setProgress
 * @property {(lease: string, line: string) => void} addLog
 * @property {(error: unknown) => void} onError
 */

/** @type {Settlement} */
export const RELEASED = { outcome: '"released"' };

export class Attempt {
  #claimed;
  #sink;
  #graceMs;
  #controller = new AbortController();
  #ended = false;
  #timeoutMs;
  /** @type {Timer | undefined} */
  #timer;
  /** @type {() => void} */
  #free = () => {};
  /** Resolves when the slot is free. @type {Promise<void>} */
  freed = new Promise((resolve) => {
    this.#free = resolve;
  });

  /** @param {Claimed} claimed @param {Sink} sink @param {number} graceMs */
  constructor(claimed, sink, graceMs) {
    this.#claimed = claimed;
    this.#sink = sink;
    this.#graceMs = graceMs;
    const timeoutMs = claimed.timeout ? toMs(claimed.timeout) : Infinity;
    this.#timeoutMs = Number.isNaN(timeoutMs) ? Infinity : timeoutMs;
  }

  /** @param {Handler} handler @param {string} payloadText */
  async run(handler, payloadText) {
    const error = JSON.stringify(`timed out after ${this.#claimed.timeout}`);
    const timedOut = { outcome: '"failed"', error, timed_out: "true" };
    this.#timer = new Timer(this.#timeoutMs, () => this.abort("timeout", timedOut));
    /** @type {Settlement} */
    let settlement;
    try {
      settlement = success(await handler(this.#claimed.payload, this.#job(payloadText)));
    } catch (thrown) {
      settlement = failure(thrown);
    }
    this.#timer.clear();
    if (!this.#ended) this.#end(settlement);
    this.#free();
  }

  /**
   * Ends the attempt before its handler does. The handler keeps its slot until it settles, but no
   * longer than the grace: one that ignores the signal must not block the slot for ever.
   * @param {JobAborted["reason"]} reason
   * @param {Settlement} [settlement] None for a lost lease.
   */
  abort(reason, settlement) {
    if (this.#ended) return;
    this.#end(settlement);
    this.#timer?.clear();
    this.#timer = new Timer(this.#graceMs, () => {
      const { task, id } = this.#claimed;
      const what = `the handler of ${task} ignores its signal (job ${id}, ${reason})`;
      this.#sink.onError(new Error(`${what}: its slot is free again`));
      this.abandon();
    });
    this.#controller.abort(new JobAborted(reason));
  }

  /** Frees the slot although the handler has not settled. */
  abandon() {
    this.#timer?.clear();
    this.#free();
  }

  /** @param {Settlement} [settlement] */
  #end(settlement) {
    this.#ended = true;
    if (settlement) this.#sink.settle(this.#claimed.lease, settlement);
  }

  /** @param {string} payloadText @returns {Job} */
  #job(payloadText) {
    const { lease, id, task, queue, key, attempt, starts, triggers, ...rest } = this.#claimed;
    return {
      id,
      task,
      queue,
      key,
      attempt,
      starts,
      triggers,
      payloadText,
      fencingToken: rest.fencing_token,
      firstAt: new Date(rest.first_at),
      dueAt: new Date(rest.due_at),
      startedAt: new Date(rest.started_at),
      timeoutMs: this.#timeoutMs,
      traces: rest.traces ?? [],
      signal: this.#controller.signal,
      progress: (value) => {
        const text = toJson(value);
        if (byteLength(text) > MAX_PROGRESS_BYTES) {
          throw new RangeError(`progress has more than ${MAX_PROGRESS_BYTES} bytes of JSON`);
        }
        this.#sink.setProgress(lease, text);
      },
      log: (line) => this.#sink.addLog(lease, cut(String(line), MAX_LINE_LENGTH)),
    };
  }
}

/** @param {unknown} value @returns {Settlement} */
function success(value) {
  if (value === undefined || value === null) return { outcome: '"succeeded"' };
  const output = toJson(value);
  const bytes = byteLength(output);
  if (bytes <= MAX_OUTPUT_BYTES) return { outcome: '"succeeded"', output };
  // The server's words for the same failure.
  const size = `output has ${bytes} bytes, the limit is ${MAX_OUTPUT_BYTES}`;
  const error = `the worker's output cannot be kept: ${size}: keep it elsewhere and return where it is`;
  return { outcome: '"failed"', error: JSON.stringify(error), permanent: "true" };
}

/** @param {unknown} thrown @returns {Settlement} */
function failure(thrown) {
  try {
    if (thrown instanceof Snooze) return { outcome: '"snoozed"', delay: delayText(thrown) };
    if (thrown instanceof Cancel) {
      return {
        outcome: '"cancelled"',
        reason: JSON.stringify(cut(thrown.message, MAX_ERROR_LENGTH)),
      };
    }
    const error = JSON.stringify(cut(describe(thrown), MAX_ERROR_LENGTH));
    const permanent = thrown instanceof Permanent ? "true" : undefined;
    const retry_in = thrown instanceof Retry ? delayText(thrown) : undefined;
    return { outcome: '"failed"', error, permanent, retry_in };
  } catch {
    return { outcome: '"failed"', error: '"the handler threw a value that has no text"' };
  }
}

/** The server refuses a delay of zero. @param {Retry | Snooze} thrown */
function delayText({ delay }) {
  return JSON.stringify(toText(delay === 0 ? 1 : delay, "delay"));
}

/**
 * The text of an error: its message, its stack, and its causes, the innermost last. A value that
 * is not an Error is shown as JSON.
 * @param {unknown} thrown
 * @returns {string}
 */
function describe(thrown) {
  if (typeof thrown === "string") return thrown;
  if (!(thrown instanceof Error)) return toJson(thrown) === "{}" ? String(thrown) : toJson(thrown);
  const parts = [withStack(thrown)];
  for (let cause = thrown.cause, depth = 0; cause !== undefined && depth < 8; depth += 1) {
    const text = cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause);
    parts.push(`caused by: ${text}`);
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  return parts.join("\n");
}

/** V8 begins a stack with the message; other engines leave it out. @param {Error} error */
function withStack({ name, message, stack }) {
  const title = `${name}: ${message}`;
  if (!stack) return title;
  return stack.startsWith(title) ? stack : `${title}\n${stack.replace(/^(?!\s+at ).*\n/, "")}`;
}
