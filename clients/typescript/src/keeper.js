// Keeps the leases of a worker: one loop renews them, one sends settlements. Each repeats its
// requests with backoff, so a server that is away costs no running handler within its lease.

import { QuellError } from "./errors.js";
import { Leases } from "./leases.js";
import { Backoff, Wakeup, clock, sleep } from "./time.js";

/** @import { Http } from "./http.js" */
/** @import { Settlement } from "./attempt.js" */

/** The longest that one renewal or settlement may take. */
const MAX_REQUEST_MS = 10_000;

/** Statuses of a server that is away, overloaded, or refuses the token. */
const OUTAGES = [401, 403, 408, 429, 502, 503, 504];

export class Keeper {
  #options;
  #leases;
  #closed = new AbortController();
  #renewals = new Wakeup();
  #settlements = new Wakeup();
  #drained = new Wakeup();
  /** @type {Promise<unknown>} */
  #loops = Promise.resolve();

  /**
   * @param {object} options
   * @param {Http} options.http
   * @param {string} options.path The worker's path, such as `/v1/workers/web-1`.
   * @param {number} options.leaseMs
   * @param {() => string} options.heartbeat The JSON text of `process`.
   * @param {(lease: string) => void} options.onLost
   * @param {(during: "renew" | "settle", error?: unknown) => void} options.onRequest Without an
   *   error after a success.
   */
  constructor(options) {
    this.#options = options;
    this.#leases = new Leases(options.leaseMs);
  }

  start() {
    this.#loops = Promise.all([this.#renewLoop(), this.#settleLoop()]);
  }

  /** @param {string} lease @param {number} termMs */
  hold(lease, termMs) {
    this.#leases.hold(lease, clock(), termMs);
    this.#renewals.wake();
  }

  /** @param {string} lease @param {Settlement} settlement */
  settle(lease, settlement) {
    this.#leases.settle(lease, settlement, clock());
    this.#settlements.wake();
  }

  /** @param {string} lease @param {string} text */
  setProgress(lease, text) {
    this.#leases.setProgress(lease, text);
  }

  /** @param {string} lease @param {string} line */
  addLog(lease, line) {
    this.#leases.addLog(lease, line);
  }

  /** The number of settlements that wait for an acknowledgement. */
  get settling() {
    return this.#leases.settling;
  }

  /**
   * Waits until all settlements are acknowledged or dropped, but no longer than `ms`.
   * @param {number} ms
   */
  async drain(ms) {
    const deadline = clock() + ms;
    while (this.settling > 0 && clock() < deadline) {
      await this.#drained.sleep(deadline - clock());
    }
  }

  async close() {
    this.#closed.abort();
    this.#renewals.wake();
    this.#settlements.wake();
    await this.#loops;
  }

  async #renewLoop() {
    const { leaseMs, heartbeat, onRequest } = this.#options;
    const retryMs = Math.min(5_000, leaseMs / 6);
    const backoff = new Backoff(100, retryMs);
    while (!this.#closed.signal.aborted) {
      // At least a timer, so that no defect keeps the event loop from all else.
      await this.#renewals.sleep(Math.max(1, this.#leases.wakeAt() - clock()));
      this.#lose(this.#leases.expire(clock()));
      const batch = this.#leases.renewals(clock());
      if (batch.length === 0) continue;
      const leases = `[${batch.map(({ text }) => text).join(",")}]`;
      const body = `{"lease":"${leaseMs}ms","process":${heartbeat()},"leases":${leases}}`;
      const sentAt = clock();
      try {
        const { value } = await this.#post("renew", body, this.#renewalTimeout());
        // A lease that the response leaves out counts as unknown.
        this.#leases.postpone(batch, clock() + retryMs);
        this.#lose(this.#leases.renewed(value.leases, sentAt));
        backoff.reset();
        onRequest("renew");
      } catch (error) {
        if (this.#closed.signal.aborted) return;
        if (isContentRefused(error)) this.#leases.dropReports(batch);
        const pause = Math.max(backoff.next(), retryAfter(error, leaseMs / 6));
        this.#leases.postpone(batch, clock() + pause);
        onRequest("renew", error);
      }
    }
  }

  async #settleLoop() {
    const backoff = new Backoff();
    while (!this.#closed.signal.aborted) {
      const batch = this.#leases.settlements(clock());
      if (batch.length === 0) {
        this.#drained.wake();
        await this.#settlements.sleep(this.#leases.settleAt() - clock());
        continue;
      }
      const body = `{"settlements":[${batch.map(({ text }) => text).join(",")}]}`;
      try {
        const { value } = await this.#post("settle", body, MAX_REQUEST_MS);
        const error = this.#leases.settled(batch, value.settled, clock());
        backoff.reset();
        this.#options.onRequest("settle", error);
      } catch (error) {
        if (this.#closed.signal.aborted) return;
        this.#options.onRequest("settle", error);
        if (isContentRefused(error)) {
          this.#leases.refused(batch, error.message);
        } else if (isOutage(error)) {
          await sleep(Math.max(backoff.next(), retryAfter(error, 5_000)), this.#closed.signal);
        } else {
          this.#leases.failed(batch, clock());
        }
      }
    }
  }

  /** @param {string[]} leases */
  #lose(leases) {
    for (const lease of leases) this.#options.onLost(lease);
  }

  /** A slow renewal ends in time for another one, and at the latest when a lease expires. */
  #renewalTimeout() {
    const untilExpiry = this.#leases.expiresAt() - clock();
    return Math.max(1, Math.min(this.#options.leaseMs / 3, untilExpiry, MAX_REQUEST_MS));
  }

  /** @param {string} action @param {string} body @param {number} timeoutMs */
  #post(action, body, timeoutMs) {
    const { http, path } = this.#options;
    const { signal } = this.#closed;
    return http.once("POST", `${path}/${action}`, { body, timeoutMs, signal });
  }
}

/**
 * Whether the server refused the content of a request, so that a repeat is refused again.
 * @param {unknown} error
 * @returns {error is QuellError}
 */
function isContentRefused(error) {
  return error instanceof QuellError && [400, 413, 422].includes(error.status);
}

/**
 * Whether a request failed for a reason that is not in it: a repeat may succeed.
 * @param {unknown} error
 */
function isOutage(error) {
  if (!(error instanceof QuellError)) return true;
  return error.status < 400 || OUTAGES.includes(error.status);
}

/** @param {unknown} error @param {number} maxMs */
export function retryAfter(error, maxMs) {
  return error instanceof QuellError ? Math.min(error.retryAfterMs ?? 0, maxMs) : 0;
}
