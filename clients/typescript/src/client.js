// The client: triggers, results and single jobs.

/** @import {
 *   BatchOptions, BatchTrigger, Explanation, QuellOptions, Receipt, Result, TriggerOptions,
 *   WorkerOptions,
 * } from "../index.js" */

import { QuellError } from "./errors.js";
import { Http } from "./http.js";
import { elements, members, objectText } from "./json.js";
import { clock } from "./time.js";
import { batchText, isRepeatable, triggerText } from "./trigger.js";
import { Worker } from "./worker.js";

const DEFAULT_URL = "http://127.0.0.1:7777";

/** @typedef {{ signal?: AbortSignal | undefined }} Cancellable */

/** The server's longest wait for a result in one request. */
const MAX_RESULT_WAIT_MS = 20_000;

export class Quell {
  #http;

  /** @param {QuellOptions} [options] */
  constructor(options = {}) {
    const url = String(options.url ?? environment("QUELL_SERVER") ?? DEFAULT_URL);
    const token = options.token ?? environment("QUELL_TOKEN");
    const fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    const { timeoutMs = 10_000, retryMs = 30_000 } = options;
    this.url = url.replace(/\/+$/, "");
    this.#http = new Http({ url: this.url, token, timeoutMs, retryMs, fetch });
  }

  /**
   * @param {string} task
   * @param {any} payload
   * @param {TriggerOptions} [options]
   * @returns {Promise<Receipt>}
   */
  async trigger(task, payload, { signal, ...fields } = {}) {
    const body = triggerText({ payload, ...fields });
    const safety = isRepeatable(fields, this.#longestRepeatMs()) ? "repeatable" : "once";
    const request = { body, signal };
    const { value, text } = await this.#http.call("POST", triggersOf(task), safety, request);
    return withOutputText(value, text);
  }

  /**
   * @param {string} task
   * @param {ReadonlyArray<BatchTrigger>} triggers
   * @param {BatchOptions} [options]
   * @returns {Promise<Receipt[]>}
   */
  async triggerMany(task, triggers, options = {}) {
    const body = batchText(triggers, options);
    if (triggers.length === 0) return [];
    const within = this.#longestRepeatMs();
    const repeatable =
      isRepeatable(options, within) || triggers.every((trigger) => isRepeatable(trigger, within));
    const safety = repeatable ? "repeatable" : "once";
    const request = { body, signal: options.signal };
    const { value, text } = await this.#http.call("POST", triggersOf(task), safety, request);
    const texts = elements(text);
    return value.map((/** @type {Receipt} */ receipt, /** @type {number} */ index) =>
      withOutputText(receipt, texts[index] ?? "{}"),
    );
  }

  /**
   * @param {string | null} job
   * @param {Cancellable & { waitMs?: number | undefined }} [options]
   * @returns {Promise<Result>}
   */
  async result(job, { waitMs = 0, signal } = {}) {
    if (job === null) throw new TypeError("the job is null: the receipt is pending");
    const deadline = clock() + waitMs;
    for (;;) {
      const wait = Math.min(Math.ceil(deadline - clock()), MAX_RESULT_WAIT_MS);
      const query = wait > 0 ? `?wait=${wait}ms` : "";
      const timeoutMs = this.#http.timeoutMs + Math.max(0, wait);
      const path = `${jobPath(job)}/result${query}`;
      const { value, text } = await this.#http.call("GET", path, "read", { timeoutMs, signal });
      if (value.ended || clock() >= deadline) {
        const { output = null, error = null } = value;
        return { ...value, output, error, outputText: outputText(output, text) };
      }
    }
  }

  /** @param {string} job @param {Cancellable} [options] @returns {Promise<Explanation>} */
  async job(job, { signal } = {}) {
    return (await this.#http.call("GET", jobPath(job), "read", { signal })).value;
  }

  /** @param {string} job @param {Cancellable} [options] */
  async cancel(job, { signal } = {}) {
    try {
      const path = `${jobPath(job)}/cancel`;
      return (await this.#http.call("POST", path, "repeatable", { signal })).value;
    } catch (error) {
      // The server refuses to cancel a job twice, so this may be the answer to a repeat.
      if (!(error instanceof QuellError) || error.status !== 409) throw error;
      const { state } = await this.result(job, { signal });
      if (state !== "cancelled") throw error;
      return { job, state };
    }
  }

  /** @param {string} task @param {string} key @param {Cancellable} [options] */
  flush(task, key, options = {}) {
    return this.#window(task, "flush", key, options);
  }

  /** @param {string} task @param {string} key @param {Cancellable} [options] */
  cancelWindow(task, key, options = {}) {
    return this.#window(task, "cancel", key, options);
  }

  /** @param {WorkerOptions} [options] @returns {Worker} */
  worker(options = {}) {
    return new Worker(this.#http, options);
  }

  /**
   * A repeat may act on the key's next window, so there is none after an unknown outcome.
   * @param {string} task
   * @param {"flush" | "cancel"} action
   * @param {string} key
   * @param {Cancellable} options
   */
  async #window(task, action, key, { signal }) {
    const path = `/v1/tasks/${encodeURIComponent(task)}/windows/${action}`;
    const body = objectText({ key: JSON.stringify(key) });
    return (await this.#http.call("POST", path, "once", { body, signal })).value;
  }

  /** The longest time from a request's acceptance to the arrival of its last repeat. */
  #longestRepeatMs() {
    return this.#http.retryMs + this.#http.timeoutMs;
  }
}

/** @param {string} name @returns {string | undefined} */
function environment(name) {
  const { process } = /** @type {any} */ (globalThis);
  return process?.env?.[name] || undefined;
}

/** @param {string} task */
function triggersOf(task) {
  return `/v1/tasks/${encodeURIComponent(task)}/triggers`;
}

/** @param {string} job */
function jobPath(job) {
  return `/v1/jobs/${encodeURIComponent(job)}`;
}

/** @param {Receipt} receipt @param {string} text @returns {Receipt} */
function withOutputText(receipt, text) {
  const exact = outputText(receipt.output, text);
  return exact === null ? receipt : { ...receipt, outputText: exact };
}

/** @param {unknown} output @param {string} text @returns {string | null} */
function outputText(output, text) {
  return output === null || output === undefined ? null : (members(text).get("output") ?? null);
}
