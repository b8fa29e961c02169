// Errors of requests, and errors by which a handler says how its job goes on.

/** @import { Duration } from "../index.js" */

/**
 * @typedef {object} Failure
 * @property {string} kind
 * @property {string} message
 * @property {string | null} [field]
 * @property {number} [status]
 * @property {string | null} [id]
 * @property {number | null} [retryAfterMs]
 * @property {boolean} [sent] Whether the request may have reached the server.
 * @property {unknown} [cause]
 */

export class QuellError extends Error {
  /** Whether the request may have reached the server. */
  #sent;

  /** @param {Failure} failure */
  constructor({ kind, message, field, status, id, retryAfterMs, sent, cause }) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "QuellError";
    this.kind = kind;
    this.field = field ?? null;
    this.status = status ?? 0;
    this.id = id ?? null;
    this.retryAfterMs = retryAfterMs ?? null;
    this.#sent = sent ?? true;
  }

  /**
   * What the failure says about the request: `rejected` if it was not carried out and may be
   * repeated, `unknown` if it may have been carried out, else `final`.
   * @param {QuellError} error
   * @returns {"rejected" | "unknown" | "final"}
   */
  static outcome(error) {
    if (!error.#sent || error.status === 429) return "rejected";
    if (error.status === 503 && error.retryAfterMs !== null) return "rejected";
    if (error.kind === "protocol") return "final";
    return [0, 408, 502, 503, 504].includes(error.status) ? "unknown" : "final";
  }
}

export class UnknownOutcomeError extends QuellError {
  /** @param {QuellError} cause */
  constructor(cause) {
    const message = `the outcome of the request is unknown: ${cause.message}`;
    const { field, status, id, retryAfterMs } = cause;
    super({ kind: "unknown_outcome", message, field, status, id, retryAfterMs, cause });
    this.name = "UnknownOutcomeError";
  }
}

/** @type {Record<JobAborted["reason"], string>} */
const ABORTED = {
  lost: "the lease was lost, or the job was cancelled",
  timeout: "the attempt exceeded its timeout",
  shutdown: "the worker is shutting down",
};

export class JobAborted extends Error {
  /** @param {"lost" | "timeout" | "shutdown"} reason */
  constructor(reason) {
    super(ABORTED[reason]);
    this.name = "JobAborted";
    this.reason = reason;
  }
}

export class Permanent extends Error {
  /** @param {string} message @param {{ cause?: unknown }} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = "Permanent";
  }
}

export class Retry extends Error {
  /**
   * @param {Duration} delay
   * @param {string} [message]
   * @param {{ cause?: unknown }} [options]
   */
  constructor(delay, message = "the handler asked for a retry", options) {
    super(message, options);
    this.name = "Retry";
    this.delay = delay;
  }
}

export class Snooze extends Error {
  /** @param {Duration} delay */
  constructor(delay) {
    super("the handler snoozed the job");
    this.name = "Snooze";
    this.delay = delay;
  }
}

export class Cancel extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
    this.name = "Cancel";
  }
}
