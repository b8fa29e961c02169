// Fedify's `MessageQueue` on Quell: each message is a job of one task, and `listen` is a pull worker.

import { QuellError } from "quell-client";

/** @import { MessageQueue, MessageQueueEnqueueOptions, MessageQueueListenOptions } from "@fedify/fedify" */
/** @import { Quell, TriggerFields, WorkerOptions } from "quell-client" */

/** The pause before a new worker, where the server refused the last one. */
const REFUSED_PAUSE_MS = 5_000;

/**
 * @typedef {object} QuellMessageQueueOptions
 * @property {string} [task] The pull task of the messages; default `fedify`.
 * @property {WorkerOptions} [worker] Options of the workers, such as `slots`.
 * @property {(error: unknown) => void} [onError] Receives refusals of workers; default `console.error`.
 */

/** @implements {MessageQueue} */
export class QuellMessageQueue {
  /** A message whose handler rejects is retried by the policy of the task. */
  nativeRetrial = true;

  #quell;
  #task;
  #worker;
  #onError;

  /** @param {Quell} quell @param {QuellMessageQueueOptions} [options] */
  constructor(quell, { task = "fedify", worker = {}, onError = console.error } = {}) {
    this.#quell = quell;
    this.#task = task;
    this.#worker = worker;
    this.#onError = onError;
  }

  /** @param {any} message @param {MessageQueueEnqueueOptions} [options] @returns {Promise<void>} */
  async enqueue(message, options) {
    await this.#quell.trigger(this.#task, message, fields(options));
  }

  /**
   * The server accepts all of the messages or none, and keeps their order.
   * @param {readonly any[]} messages @param {MessageQueueEnqueueOptions} [options]
   * @returns {Promise<void>}
   */
  async enqueueMany(messages, options) {
    const triggers = messages.map((payload) => ({ payload, ...fields(options) }));
    await this.#quell.triggerMany(this.#task, triggers);
  }

  /**
   * Resolves when `signal` has aborted and the handlers that ran then have ended. Never rejects: a
   * worker that the server refuses, such as before the task is declared, is created again.
   * @param {(message: any) => Promise<void> | void} handler
   * @param {MessageQueueListenOptions} [options]
   * @returns {Promise<void>}
   */
  async listen(handler, { signal } = {}) {
    while (!signal?.aborted) {
      const worker = this.#quell.worker(this.#worker);
      worker.task(this.#task, async (message) => {
        await handler(message);
      });
      try {
        await worker.run({ signal });
      } catch (error) {
        if (!(error instanceof QuellError)) throw error;
        this.#onError(error);
        await pause(REFUSED_PAUSE_MS, signal);
      }
    }
  }
}

/**
 * The options of a message's trigger. Its idempotency key makes a repeat safe whose first request
 * had no answer.
 * @param {MessageQueueEnqueueOptions} [options]
 * @returns {TriggerFields}
 */
function fields({ delay, orderingKey } = {}) {
  return {
    delay: delay?.total("millisecond"),
    partition: orderingKey,
    idempotencyKey: crypto.randomUUID(),
  };
}

/** @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(end, ms);
    function end() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    }
    signal?.addEventListener("abort", end, { once: true });
  });
}
