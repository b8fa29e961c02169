// The leases that a worker holds: when to renew them, when they count as lost, and which
// settlements wait for an acknowledgement. Invariant: no I/O and no clock; `now` is a parameter.

import { QuellError } from "./errors.js";
import { cut, objectText } from "./json.js";

/** The most leases or settlements of one request. */
const MAX_BATCH = 1_000;

/** The most bytes of reports or settlements in one request: half of the server's default limit. */
const MAX_BATCH_BYTES = 512 * 1024;

/** The most bytes of log lines that wait for a renewal; the server keeps as many. */
const MAX_LOG_BYTES = 8 * 1024;

/** The longest between renewals. */
const MAX_RENEWAL_MS = 10_000;

/** How long a settlement is repeated after the attempt's end: the longer of the two. */
const KEPT_TERMS = 10;
const KEPT_MS = 600_000;

/** The pauses before a settlement that failed is repeated: doubled after each failure. */
const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 30_000;

const MAX_REASON_LENGTH = 2_000;

/**
 * @typedef {{ state: "running", expiresAt: number, renewAt: number,
 *   progress: string | undefined, log: string[], sending: string[] }} Running
 * @typedef {{ state: "settling", expiresAt: number, renewAt: number,
 *   text: string, permanent: string | undefined, replaced: boolean,
 *   size: number, failures: number, dueAt: number }} Settling
 * `expiresAt` of a settlement is the time to drop it, `dueAt` the time to send it, and `size` the
 * most settlements of a request with it.
 * @typedef {{ lease: string, text: string }} Item
 * @typedef {{ lease: string, state: "held" | "lost" | "unknown" }} Renewed
 * @typedef {{ lease: string, became: string, error?: { kind: string, message: string,
 *   field?: string | null, id?: string | null } }} Settled
 */

export class Leases {
  /** @type {Map<string, Running | Settling>} */
  #entries = new Map();
  #termMs;
  #intervalMs;

  /** @param {number} termMs */
  constructor(termMs) {
    this.#termMs = termMs;
    this.#intervalMs = renewalMs(termMs);
  }

  get settling() {
    let count = 0;
    for (const entry of this.#entries.values()) count += entry.state === "settling" ? 1 : 0;
    return count;
  }

  /**
   * Adds a claimed lease.
   * @param {string} lease
   * @param {number} now
   * @param {number} termMs
   */
  hold(lease, now, termMs) {
    const expiresAt = now + termMs;
    const renewAt = now + Math.min(renewalMs(termMs), this.#intervalMs);
    this.#entries.set(lease, {
      state: "running",
      expiresAt,
      renewAt,
      progress: undefined,
      log: [],
      sending: [],
    });
  }

  /** @param {string} lease @param {string} text JSON. */
  setProgress(lease, text) {
    const entry = this.#entries.get(lease);
    if (entry?.state === "running") entry.progress = text;
  }

  /** @param {string} lease @param {string} line */
  addLog(lease, line) {
    const entry = this.#entries.get(lease);
    if (entry?.state === "running") entry.log = lastBytes([...entry.log, line]);
  }

  /**
   * Ends a running lease with a settlement. A lost lease takes none.
   * @param {string} lease
   * @param {Record<string, string | undefined>} members JSON texts.
   * @param {number} now
   */
  settle(lease, members, now) {
    const entry = this.#entries.get(lease);
    if (entry?.state !== "running") return;
    const lines = lastBytes([...entry.sending, ...entry.log]);
    const log = lines.length > 0 ? JSON.stringify(lines) : undefined;
    const text = objectText({ lease: JSON.stringify(lease), ...members, log });
    this.#entries.set(lease, {
      state: "settling",
      expiresAt: now + Math.max(KEPT_MS, KEPT_TERMS * this.#termMs),
      renewAt: entry.renewAt,
      text,
      permanent: members["permanent"],
      replaced: false,
      size: MAX_BATCH,
      failures: 0,
      dueAt: now,
    });
  }

  /** The time of the next renewal or expiry; Infinity if nothing is held. */
  wakeAt() {
    let at = Infinity;
    for (const entry of this.#entries.values()) {
      at = Math.min(at, entry.renewAt, entry.expiresAt);
    }
    return at;
  }

  /** The time of the next expiry of a running lease; Infinity without one. */
  expiresAt() {
    let at = Infinity;
    for (const entry of this.#entries.values()) {
      if (entry.state === "running") at = Math.min(at, entry.expiresAt);
    }
    return at;
  }

  /**
   * Removes what is over, and returns the running leases that expired: they count as lost.
   * @param {number} now
   * @returns {string[]}
   */
  expire(now) {
    const lost = [];
    for (const [lease, entry] of this.#entries) {
      if (now < entry.expiresAt) continue;
      this.#entries.delete(lease);
      if (entry.state === "running") lost.push(lease);
    }
    return lost;
  }

  /**
   * Returns the leases to renew now, with their reports: those that are due for longest first, so
   * that one which fails holds up no other. Leases that are due soon join.
   * @param {number} now
   * @returns {Item[]}
   */
  renewals(now) {
    const soon = now + this.#intervalMs / 2;
    const next = [...this.#entries].filter(([, { renewAt }]) => renewAt <= soon);
    next.sort(([, one], [, other]) => one.renewAt - other.renewAt);
    /** @type {Item[]} */
    const batch = [];
    if ((next[0]?.[1].renewAt ?? Infinity) > now) return batch;
    let bytes = 0;
    for (const [lease, entry] of next) {
      if (batch.length === MAX_BATCH || bytes > MAX_BATCH_BYTES) break;
      if (entry.state === "running") {
        entry.sending = lastBytes([...entry.sending, ...entry.log]);
        entry.log = [];
      }
      const text = renewalText(lease, entry);
      bytes += byteLength(text);
      batch.push({ lease, text });
    }
    return batch;
  }

  /**
   * Takes the answer to renewals that were sent at `sentAt`; returns the leases that are lost.
   * A settlement stays until it is acknowledged: its lease may be lost because it was taken.
   * @param {Renewed[]} answers
   * @param {number} sentAt
   * @returns {string[]}
   */
  renewed(answers, sentAt) {
    const lost = [];
    for (const { lease, state } of answers) {
      const entry = this.#entries.get(lease);
      if (!entry) continue;
      if (state === "lost" && entry.state === "settling") {
        entry.renewAt = Infinity;
      } else if (state === "lost") {
        this.#entries.delete(lease);
        lost.push(lease);
      } else if (state === "unknown") {
        entry.renewAt = sentAt + this.#intervalMs / 2;
      } else {
        entry.renewAt = sentAt + this.#intervalMs;
        if (entry.state !== "running") continue;
        entry.expiresAt = Math.max(entry.expiresAt, sentAt + this.#termMs);
        entry.sending = [];
      }
    }
    return lost;
  }

  /**
   * Sets the time of the next try of failed renewals.
   * @param {Item[]} batch
   * @param {number} at
   */
  postpone(batch, at) {
    for (const { lease } of batch) {
      const entry = this.#entries.get(lease);
      if (entry) entry.renewAt = at;
    }
  }

  /**
   * Drops the reports of renewals that the server refused, so that they cost no lease.
   * @param {Item[]} batch
   */
  dropReports(batch) {
    for (const { lease } of batch) {
      const entry = this.#entries.get(lease);
      if (entry?.state !== "running") continue;
      Object.assign(entry, { progress: undefined, log: [], sending: [] });
    }
  }

  /** The time of the next settlement; Infinity if none waits. */
  settleAt() {
    let at = Infinity;
    for (const entry of this.#entries.values()) {
      if (entry.state === "settling") at = Math.min(at, entry.dueAt);
    }
    return at;
  }

  /**
   * Returns the settlements to send in the next request. One of a request that failed is sent with
   * others of such requests only.
   * @param {number} now
   * @returns {Item[]}
   */
  settlements(now) {
    /** @type {Item[]} */
    const batch = [];
    let bytes = 0;
    let size = 0;
    for (const [lease, entry] of this.#entries) {
      if (entry.state !== "settling" || entry.dueAt > now) continue;
      size ||= entry.size;
      if (entry.size !== size) continue;
      const { text } = entry;
      bytes += byteLength(text);
      if (batch.length > 0 && bytes > MAX_BATCH_BYTES) break;
      batch.push({ lease, text });
      if (batch.length === size) break;
    }
    return batch;
  }

  /**
   * Removes acknowledged settlements. One that is wrong is handled as if it was refused alone, and
   * one that the store failed for is repeated later. Returns the first such error.
   * @param {Item[]} batch
   * @param {Settled[]} answers
   * @param {number} now
   * @returns {QuellError | undefined}
   */
  settled(batch, answers, now) {
    const byLease = new Map(answers.map((answer) => [answer.lease, answer]));
    /** @type {QuellError | undefined} */
    let first;
    for (const item of batch) {
      const answer = byLease.get(item.lease);
      const became = answer?.became;
      if (became !== "invalid" && became !== "unknown") {
        this.#entries.delete(item.lease);
        continue;
      }
      const error = answer?.error ?? { kind: became, message: became };
      if (became === "invalid") this.refused([item], error.message);
      else this.failed([item], now);
      first ??= new QuellError(error);
    }
    return first;
  }

  /**
   * Takes a failure of a request that a repeat would meet again. Its settlements are repeated in
   * halves, each after a pause of its own, so that one that always fails holds up no other.
   * @param {Item[]} batch
   * @param {number} now
   */
  failed(batch, now) {
    for (const [, entry] of this.#halve(batch)) {
      entry.dueAt = now + Math.min(MAX_PAUSE_MS, MIN_PAUSE_MS * 2 ** entry.failures);
      entry.failures += 1;
    }
  }

  /**
   * Takes a refusal of the content of a request. Its settlements are sent in halves. One that is
   * refused alone becomes a failure with the reason; if that is refused too, it is dropped.
   * @param {Item[]} batch
   * @param {string} reason
   */
  refused(batch, reason) {
    const error = `the server refused the settlement: ${cut(reason, MAX_REASON_LENGTH)}`;
    for (const [lease, entry] of this.#halve(batch)) {
      if (batch.length > 1) continue;
      if (entry.replaced) {
        this.#entries.delete(lease);
        continue;
      }
      const { permanent } = entry;
      const failure = { outcome: '"failed"', error: JSON.stringify(error), permanent };
      entry.text = objectText({ lease: JSON.stringify(lease), ...failure });
      entry.replaced = true;
    }
  }

  /** @param {Item[]} batch @returns {Array<[string, Settling]>} */
  #halve(batch) {
    /** @type {Array<[string, Settling]>} */
    const halved = [];
    for (const { lease } of batch) {
      const entry = this.#entries.get(lease);
      if (entry?.state !== "settling") continue;
      entry.size = Math.ceil(batch.length / 2);
      halved.push([lease, entry]);
    }
    return halved;
  }
}

/** @param {string} lease @param {Running | Settling} entry */
function renewalText(lease, entry) {
  const id = JSON.stringify(lease);
  if (entry.state === "settling") return objectText({ lease: id });
  const log = entry.sending.length > 0 ? JSON.stringify(entry.sending) : undefined;
  return objectText({ lease: id, progress: entry.progress, log });
}

/** The time between renewals. @param {number} termMs */
function renewalMs(termMs) {
  return Math.min(termMs / 3, MAX_RENEWAL_MS);
}

/** The last lines within the limit. @param {string[]} lines */
function lastBytes(lines) {
  let bytes = 0;
  let from = lines.length;
  while (from > 0) {
    bytes += byteLength(lines[from - 1] ?? "") + 1;
    if (bytes > MAX_LOG_BYTES) break;
    from -= 1;
  }
  return lines.slice(from);
}

const ENCODER = new TextEncoder();

/** The bytes of a text in UTF-8. @param {string} text */
export function byteLength(text) {
  return ENCODER.encode(text).length;
}
