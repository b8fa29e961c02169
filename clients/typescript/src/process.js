// The process of a worker: its host, its version, its signals. It has no import, so that bundlers
// for browsers take it.

/** The package's version; a test compares it with package.json. */
const VERSION = "0.1.0";

const { process } = /** @type {any} */ (globalThis);

/** @returns {string} */
function host() {
  const name = process?.getBuiltinModule?.("node:os")?.hostname?.() || process?.env?.HOSTNAME;
  return String(name || "unknown")
    .replace(/[^\x21-\x7e]/g, "_")
    .slice(0, 100);
}

/** A random u32: it tells apart processes that use the same worker name one after the other. */
export function incarnation() {
  return Math.floor(Math.random() * 2 ** 32);
}

export function uniqueName() {
  return `${host()}-${process?.pid ?? 0}-${incarnation().toString(16).padStart(8, "0")}`;
}

export function processInfo() {
  return { host: host(), pid: process?.pid ?? 0, version: `quell-typescript/${VERSION}` };
}

/**
 * Calls `stop` at the first SIGTERM or SIGINT. The second has its default effect.
 * @param {() => void} stop
 * @returns {() => void} Removes the listeners.
 */
export function onTermination(stop) {
  const remove = () => {
    for (const name of ["SIGTERM", "SIGINT"]) process?.removeListener(name, first);
  };
  const first = () => {
    remove();
    stop();
  };
  for (const name of ["SIGTERM", "SIGINT"]) process?.on(name, first);
  return remove;
}
