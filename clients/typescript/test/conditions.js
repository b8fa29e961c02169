// Waiting for conditions with a deadline, so that no test depends on a sleep.

/**
 * Waits until `predicate` returns a truthy value, and returns it.
 * @template T
 * @param {string} what For the error.
 * @param {() => T | Promise<T>} predicate
 * @param {number} [withinMs]
 * @returns {Promise<NonNullable<T>>}
 */
export async function until(what, predicate, withinMs = 20_000) {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const value = await predicate();
    if (value) return value;
    if (performance.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A promise and the functions that settle it. */
export function deferred() {
  /** @type {(value?: any) => void} */
  let resolve = () => {};
  /** @type {(error: any) => void} */
  let reject = () => {};
  const promise = new Promise((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  return { promise, resolve, reject };
}

/** Resolves when a signal has aborted. @param {AbortSignal} signal */
export function aborted(signal) {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(signal.reason);
    else signal.addEventListener("abort", () => resolve(signal.reason), { once: true });
  });
}
