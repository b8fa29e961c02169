// The JSON text of triggers, and whether a repeat of them is safe.

/** @import {
 *   BatchOptions, BatchTrigger, DedupOptions, Duration, TriggerFields,
 * } from "../index.js" */

import { toMs, toText } from "./duration.js";
import { JsonText, objectText, toJson } from "./json.js";

/** How long a dedup key is taken where nothing else is said. */
const DEFAULT_DEDUP_TTL = "1h";

const DEDUP_FIELDS = ["dedup", "dedupTtl", "dedupUntil"];
const FIELDS = new Set([
  ...DEDUP_FIELDS,
  "payload",
  "payloadText",
  "delay",
  "runAt",
  "priority",
  "partition",
  "debounce",
  "idempotencyKey",
  "trace",
]);
const BATCH_FIELDS = new Set([...DEDUP_FIELDS, "signal"]);

/**
 * @param {BatchTrigger} trigger
 * @returns {string}
 */
export function triggerText(trigger) {
  check(trigger, FIELDS);
  const { runAt, debounce, trace } = trigger;
  return objectText({
    payload: payloadText(trigger),
    delay: duration(trigger.delay, "delay"),
    run_at: json(runAt instanceof Date ? runAt.toISOString() : runAt),
    priority: json(trigger.priority),
    partition: json(trigger.partition),
    ...dedupTexts(trigger),
    debounce: debounce ? thresholds(debounce) : json(debounce),
    idempotency_key: json(trigger.idempotencyKey),
    trace: json(trace && { traceparent: trace.traceparent, tracestate: trace.tracestate ?? null }),
  });
}

/**
 * @param {ReadonlyArray<BatchTrigger>} triggers
 * @param {BatchOptions} options
 * @returns {string}
 */
export function batchText(triggers, options) {
  check(options, BATCH_FIELDS);
  const list = `[${triggers.map(triggerText).join(",")}]`;
  if (options.dedup === undefined) return list;
  return objectText({ triggers: list, ...dedupTexts(options) });
}

/**
 * Whether the server takes a repeat within `withinMs` for the same trigger. A dedup key that a
 * start or an end releases may be free again by the time of the repeat.
 * @param {TriggerFields} trigger
 * @param {number} withinMs
 */
export function isRepeatable(trigger, withinMs) {
  if (trigger.idempotencyKey !== undefined) return true;
  if (trigger.dedup === undefined || trigger.dedupUntil !== undefined) return false;
  return toMs(trigger.dedupTtl ?? DEFAULT_DEDUP_TTL) > withinMs;
}

/** @param {BatchTrigger} trigger */
function payloadText(trigger) {
  if (trigger.payloadText === undefined) return toJson(trigger.payload);
  if (trigger.payload !== undefined) {
    throw new TypeError("both a payload and `payloadText` were given: give one of them");
  }
  return new JsonText(trigger.payloadText).text;
}

/** @param {DedupOptions} options */
function dedupTexts({ dedup, dedupTtl, dedupUntil }) {
  return {
    dedup: json(dedup),
    dedup_ttl: duration(dedupTtl, "dedupTtl"),
    dedup_until: json(dedupUntil),
  };
}

/** @param {{ min: Duration, max: Duration }} debounce */
function thresholds({ min, max }) {
  return json({ min: toText(min, "debounce.min"), max: toText(max, "debounce.max") });
}

/**
 * The server refuses a duration of zero, which means the same as none.
 * @param {Duration | undefined} value
 * @param {string} field
 */
function duration(value, field) {
  return value === undefined || value === 0 ? undefined : json(toText(value, field));
}

/** @param {unknown} value @returns {string | undefined} */
function json(value) {
  return value === undefined ? undefined : JSON.stringify(value);
}

/**
 * Refuses unknown options: a misspelled one may be the one that makes a repeat safe.
 * @param {object} options
 * @param {Set<string>} known
 */
function check(options, known) {
  for (const name of Object.keys(options)) {
    if (!known.has(name)) {
      throw new TypeError(`unknown option ${name}: the options are ${[...known].join(", ")}`);
    }
  }
}
