// Time for I/O: a monotonic clock, sleeps that end early, and backoff.

/** The longest delay of a timer: 2^31 - 1 ms. */
const MAX_TIMER = 2_147_483_647;

/** Monotonic milliseconds. */
export function clock() {
  return performance.now();
}

/** Runs a function later. A delay beyond the timers' range, as Infinity is, never ends. */
export class Timer {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {number} ms @param {() => void} run */
  constructor(ms, run) {
    if (ms <= MAX_TIMER) this.#timer = setTimeout(run, Math.max(0, ms));
  }

  clear() {
    clearTimeout(this.#timer);
  }
}

/** A sleep that `wake()` ends. A `wake()` while nothing sleeps ends the next sleep. */
export class Wakeup {
  #woken = false;
  /** @type {(() => void) | undefined} */
  #resume;

  wake() {
    this.#woken = true;
    this.#resume?.();
  }

  /** @param {number} [ms] @returns {Promise<void>} */
  async sleep(ms = Infinity) {
    if (!this.#woken && ms > 0) {
      /** @type {Timer | undefined} */
      let timer;
      await new Promise((resolve) => {
        this.#resume = () => resolve(undefined);
        timer = new Timer(ms, this.#resume);
      });
      timer?.clear();
      this.#resume = undefined;
    }
    this.#woken = false;
  }
}

/**
 * Sleeps; ends early if `signal` aborts.
 * @param {number} ms
 * @param {AbortSignal} [signal]
 */
export async function sleep(ms, signal) {
  const wakeup = new Wakeup();
  const wake = () => wakeup.wake();
  if (signal?.aborted) return;
  signal?.addEventListener("abort", wake, { once: true });
  await wakeup.sleep(ms);
  signal?.removeEventListener("abort", wake);
}

/** Exponential backoff with equal jitter: half of the delay is random. */
export class Backoff {
  #failures = 0;

  /** @param {number} [minMs] @param {number} [maxMs] */
  constructor(minMs = 100, maxMs = 5_000) {
    this.minMs = minMs;
    this.maxMs = maxMs;
  }

  next() {
    const delay = Math.min(this.maxMs, this.minMs * 2 ** Math.min(this.#failures, 30));
    this.#failures += 1;
    return delay / 2 + (delay / 2) * Math.random();
  }

  reset() {
    this.#failures = 0;
  }
}
