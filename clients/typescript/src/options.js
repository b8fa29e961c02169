// The options of a worker, with their defaults and bounds.

/** @import { WorkerActivity, WorkerOptions } from "../index.js" */

/** @param {WorkerOptions} options */
export function workerOptions(options) {
  const { slots = 8, leaseMs = 30_000, graceMs = 30_000, waitMs = 20_000 } = options;
  checkRange("slots", slots, 1, 1_000);
  checkRange("leaseMs", leaseMs, 1_000, 3_600_000);
  checkRange("graceMs", graceMs, 0, 86_400_000);
  checkRange("waitMs", waitMs, 0, 25_000);
  return { slots, leaseMs, graceMs, waitMs, onError: options.onError ?? logError };
}

/** @param {string} field @param {number} value @param {number} min @param {number} max */
function checkRange(field, value, min, max) {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new RangeError(`${field} is ${value}: give a whole number from ${min} to ${max}`);
  }
}

/** @param {unknown} error @param {WorkerActivity} during */
function logError(error, during) {
  const message = error instanceof Error ? error.message : String(error);
  console.error(`quell worker: ${during} failed: ${message}`);
}
