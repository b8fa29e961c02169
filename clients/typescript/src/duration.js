// Durations: milliseconds in programs, texts such as `1h30m` on the wire.

/** @import { Duration } from "../index.js" */

/** @type {Record<string, number>} */
const UNITS = { h: 3_600_000, m: 60_000, s: 1_000, ms: 1, us: 0.001, µs: 0.001 };
const PART = /(\d+(?:\.\d+)?)\s*(h|ms|m|s|us|µs)\s*/y;

/**
 * Returns the wire's text of a duration. A text is passed on; the server checks it.
 * @param {Duration} duration
 * @param {string} field For the error.
 * @returns {string}
 */
export function toText(duration, field) {
  if (typeof duration === "string") return duration;
  if (!Number.isFinite(duration) || duration < 0) {
    throw new RangeError(`${field} is ${duration}: give milliseconds of at least 0, or a text`);
  }
  return `${Math.ceil(duration)}ms`;
}

/**
 * Returns the milliseconds of a duration.
 * @param {Duration} duration
 * @returns {number}
 */
export function toMs(duration) {
  if (typeof duration === "number") return duration;
  const text = duration.trim();
  let total = 0;
  PART.lastIndex = 0;
  while (PART.lastIndex < text.length) {
    const part = PART.exec(text);
    if (!part) return Number.NaN;
    total += Number(part[1]) * /** @type {number} */ (UNITS[/** @type {string} */ (part[2])]);
  }
  return text === "" ? Number.NaN : total;
}
