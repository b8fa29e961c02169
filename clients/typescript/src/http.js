// Requests: timeouts, problem details as errors, and repeats where a repeat is safe.

import { QuellError, UnknownOutcomeError } from "./errors.js";
import { Backoff, Timer, clock, sleep } from "./time.js";

/**
 * What a repeat of a request may do: `read` changes nothing, `repeatable` changes nothing more,
 * `once` may act a second time.
 * @typedef {"read" | "repeatable" | "once"} Safety
 *
 * @typedef {object} Request
 * @property {string} [body] JSON text.
 * @property {number} [timeoutMs]
 * @property {AbortSignal | undefined} [signal]
 *
 * @typedef {{ value: any, text: string }} Answer
 */

/** Codes of a connection that was never established: the request was not sent. */
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

/** Deno has no codes; its messages name the phase that failed. */
const DENO_NOT_SENT = "client error (Connect)";

export class Http {
  /** @type {Record<string, string>} */
  #headers = { accept: "application/json" };
  #fetch;

  /**
   * @param {object} options
   * @param {string} options.url
   * @param {string | undefined} options.token
   * @param {number} options.timeoutMs
   * @param {number} options.retryMs
   * @param {typeof globalThis.fetch} options.fetch
   */
  constructor({ url, token, timeoutMs, retryMs, fetch }) {
    this.url = url;
    this.timeoutMs = timeoutMs;
    this.retryMs = retryMs;
    this.#fetch = fetch;
    if (token) this.#headers["authorization"] = `Bearer ${token}`;
  }

  /**
   * Sends a request, and repeats it within `retryMs` as its safety permits.
   * @param {string} method
   * @param {string} path
   * @param {Safety} safety
   * @param {Request} request
   * @returns {Promise<Answer>}
   */
  async call(method, path, safety, request) {
    const deadline = clock() + this.retryMs;
    const backoff = new Backoff();
    let unknown = false;
    for (;;) {
      try {
        return await this.once(method, path, request);
      } catch (error) {
        if (!(error instanceof QuellError)) throw error;
        const outcome = QuellError.outcome(error);
        if (outcome === "final") throw error;
        unknown ||= outcome === "unknown" && safety !== "read";
        const pause = Math.max(backoff.next(), error.retryAfterMs ?? 0);
        if ((unknown && safety === "once") || clock() + pause > deadline) {
          throw unknown ? new UnknownOutcomeError(error) : error;
        }
        await sleep(pause, request.signal);
      }
    }
  }

  /**
   * Sends a request once. Rejects with a QuellError, or with the reason of `signal`.
   * @param {string} method
   * @param {string} path
   * @param {Request} request
   * @returns {Promise<Answer>}
   */
  async once(method, path, { body, timeoutMs = this.timeoutMs, signal }) {
    signal?.throwIfAborted();
    const controller = new AbortController();
    const forward = () => controller.abort();
    let timedOut = false;
    const timer = new Timer(timeoutMs, () => {
      timedOut = true;
      controller.abort();
    });
    signal?.addEventListener("abort", forward, { once: true });
    try {
      const response = await this.#send(method, path, body, controller.signal);
      const text = await response.text();
      return response.ok ? { value: parse(text, response.status), text } : refuse(response, text);
    } catch (error) {
      if (error instanceof QuellError) throw error;
      signal?.throwIfAborted();
      throw timedOut ? timeout(method, path, timeoutMs) : transport(method, path, error);
    } finally {
      timer.clear();
      signal?.removeEventListener("abort", forward);
    }
  }

  /** @param {string} method @param {string} path @param {string | undefined} body
   *  @param {AbortSignal} signal */
  #send(method, path, body, signal) {
    const headers =
      body === undefined ? this.#headers : { ...this.#headers, "content-type": "application/json" };
    const fetch = this.#fetch;
    const init = { method, headers, body: body ?? null, signal };
    return fetch(this.url + path, { ...init, redirect: "manual" });
  }
}

/** @param {string} text @param {number} status */
function parse(text, status) {
  try {
    return JSON.parse(text);
  } catch (cause) {
    const message = `the response (status ${status}) is not JSON: check that the URL is a Quell server`;
    throw new QuellError({ kind: "protocol", message, status, cause });
  }
}

/** @param {Response} response @param {string} text @returns {never} */
function refuse(response, text) {
  const { status } = response;
  /** @type {{ kind?: string, field?: string, message?: string, id?: string } | undefined} */
  let error;
  try {
    error = JSON.parse(text)?.error;
  } catch {
    // A proxy's page: the status has to do.
  }
  throw new QuellError({
    kind: error?.kind ?? "http",
    message: error?.message ?? `the server responded with status ${status}`,
    field: error?.field ?? null,
    id: error?.id ?? null,
    status,
    retryAfterMs: retryAfter(response.headers.get("retry-after")),
  });
}

/** Milliseconds of `Retry-After`: seconds or a date. @param {string | null} header */
function retryAfter(header) {
  if (header === null) return null;
  const seconds = Number(header);
  const ms = Number.isFinite(seconds) ? seconds * 1_000 : Date.parse(header) - Date.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : null;
}

/** @param {string} method @param {string} path @param {number} ms */
function timeout(method, path, ms) {
  const message = `${method} ${path}: no response within ${Math.round(ms)} ms`;
  return new QuellError({ kind: "timeout", message });
}

/** @param {string} method @param {string} path @param {unknown} cause */
function transport(method, path, cause) {
  const codes = codesOf(cause);
  const sent = !codes.some((code) => NOT_SENT.has(code));
  const message = `${method} ${path}: the request failed: ${messagesOf(cause)}`;
  return new QuellError({ kind: "transport", message, sent, cause });
}

/** The message of an error and of its causes, which say more. @param {any} error */
function messagesOf(error) {
  /** @type {string[]} */
  const texts = [];
  for (let cause = error, depth = 0; cause !== undefined && depth < 8; depth += 1) {
    const { code, errors } = /** @type {{ code?: unknown, errors?: unknown }} */ (cause ?? {});
    // A connection that was tried at several addresses has no message of its own.
    const first = Array.isArray(errors) && errors[0] instanceof Error ? errors[0].message : "";
    const text = (cause instanceof Error ? cause.message : String(cause)) || first;
    const coded = typeof code === "string" && !text.includes(code) ? `${text} (${code})` : text;
    if (coded !== "" && !texts.some((shown) => shown.includes(coded))) texts.push(coded.trim());
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  return texts.join(": ");
}

/** The codes of an error and of its causes. @param {any} error @returns {string[]} */
function codesOf(error) {
  const codes = [];
  for (let cause = error, depth = 0; cause instanceof Error && depth < 8; depth += 1) {
    const { code } = /** @type {{ code?: unknown }} */ (cause);
    if (typeof code === "string") codes.push(code);
    if (cause.message.includes(DENO_NOT_SENT)) codes.push("ECONNREFUSED");
    cause = cause.cause;
  }
  return codes;
}
