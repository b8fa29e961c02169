// The public API, written by hand: `npm run check` compares it with `src/` in both directions.

/** Milliseconds, or a text such as `250ms`, `10s` or `1h30m`. */
export type Duration = number | string;

/** The payload and the output of one task. */
export interface TaskTypes {
  payload: any;
  output: any;
}

/** The tasks of a client that declares none: any name, any payload. */
export type AnyTasks = Record<string, TaskTypes>;

export interface QuellOptions {
  /** The server's URL. Default: `QUELL_SERVER`, else `http://127.0.0.1:7777`. */
  url?: string | URL | undefined;
  /** The bearer token. Default: `QUELL_TOKEN`, else none. */
  token?: string | undefined;
  /** How long one request may take; default 10,000. */
  timeoutMs?: number | undefined;
  /** How long a call repeats requests that may be repeated; default 30,000. */
  retryMs?: number | undefined;
  /** A replacement of the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** A trace context (W3C Trace Context). */
export interface Trace {
  traceparent: string;
  tracestate?: string | null | undefined;
}

/** A dedup key and how long it is taken. */
export interface DedupOptions {
  /** Further triggers of the task with this key are duplicates while the key is taken. */
  dedup?: string | undefined;
  /** How long the key is taken, from acceptance; the server's default is an hour. */
  dedupTtl?: Duration | undefined;
  /** Release the key when the job has started, or when it has ended. */
  dedupUntil?: "started" | "done" | undefined;
}

export interface TriggerFields extends DedupOptions {
  /** The exact JSON text of the payload; it takes the payload's place. */
  payloadText?: string | undefined;
  /** Run no earlier than this long from now. */
  delay?: Duration | undefined;
  /** Run no earlier than this time. */
  runAt?: Date | string | undefined;
  /** Jobs of a higher priority start first. */
  priority?: number | undefined;
  /** The partition of the queue. */
  partition?: string | undefined;
  /** `false` for no debounce, or thresholds that replace the task's. */
  debounce?: false | { min: Duration; max: Duration } | undefined;
  /** A repeat with this key returns the job and the output of the first trigger. */
  idempotencyKey?: string | undefined;
  /** The trace that the trigger belongs to. */
  trace?: Trace | undefined;
}

export interface TriggerOptions extends TriggerFields {
  signal?: AbortSignal | undefined;
}

/** One trigger of a batch. */
export interface BatchTrigger<Payload = any> extends TriggerFields {
  payload?: Payload | JsonText;
}

/** A dedup key here applies to the batch as a whole. */
export interface BatchOptions extends DedupOptions {
  signal?: AbortSignal | undefined;
}

export type JobState =
  | "scheduled"
  | "running"
  | "succeeded"
  | "dead"
  | "cancelled"
  | "absorbed"
  | "unreadable";

export interface Receipt<Output = any> {
  receipt: "accepted" | "debounced" | "duplicate" | "existing" | "pending";
  task: string;
  /** The job that has the trigger; null while the receipt is `pending`. */
  job: string | null;
  trigger: string | null;
  /** When the job is due (RFC 3339). */
  due?: string;
  /** The number of triggers in the window. */
  triggers?: number;
  /** The state of an existing job. */
  state?: JobState;
  /** The output of an existing job. */
  output?: Output | null;
  /** The exact JSON text of `output`. */
  outputText?: string;
}

export interface Result<Output = any> {
  job: string;
  state: JobState;
  ended: boolean;
  output: Output | null;
  /** The exact JSON text of the output, or null. */
  outputText: string | null;
  /** The last error. */
  error: string | null;
}

/** What `GET /v1/jobs/{id}` returns. docs/openapi.json describes all members. */
export interface Explanation {
  job: { id: string; task: string; queue: string; state: JobState; [member: string]: any };
  attempts: Array<Record<string, any>>;
  text: string;
  [member: string]: any;
}

/** A client of one server. `Tasks` maps the names of tasks to their payloads and outputs. */
export class Quell<Tasks extends { [Name in keyof Tasks]: TaskTypes } = AnyTasks> {
  constructor(options?: QuellOptions);
  readonly url: string;

  /**
   * Triggers a task once.
   *
   * A request whose outcome is unknown is repeated only if a repeat cannot trigger a second time:
   * with `idempotencyKey`, or with `dedup` whose time outlasts the repeats. Otherwise the call
   * rejects with {@link UnknownOutcomeError}.
   */
  trigger<Name extends keyof Tasks & string>(
    task: Name,
    payload: Tasks[Name]["payload"] | JsonText | undefined,
    options?: TriggerOptions,
  ): Promise<Receipt<Tasks[Name]["output"]>>;

  /** Triggers a task several times; the server accepts all of the triggers or none. */
  triggerMany<Name extends keyof Tasks & string>(
    task: Name,
    triggers: ReadonlyArray<BatchTrigger<Tasks[Name]["payload"]>>,
    options?: BatchOptions,
  ): Promise<Array<Receipt<Tasks[Name]["output"]>>>;

  /**
   * Returns the result of a job: at once, or when it has ended, but within `waitMs`. Rejects with a
   * `TypeError` where the job is null, as in a receipt that is `pending`.
   */
  result<Output = any>(
    job: string | null,
    options?: { waitMs?: number | undefined; signal?: AbortSignal | undefined },
  ): Promise<Result<Output>>;

  /** Returns a job, its attempts, and why it ran when it did. */
  job(job: string, options?: { signal?: AbortSignal | undefined }): Promise<Explanation>;

  /** Cancels a scheduled or running job. */
  cancel(
    job: string,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<{ job: string; state: JobState }>;

  /** Makes the open window of a key due now. */
  flush(
    task: keyof Tasks & string,
    key: string,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<{ job: string; flushed: true }>;

  /** Cancels the open window of a key. */
  cancelWindow(
    task: keyof Tasks & string,
    key: string,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<{ job: string; cancelled: true }>;

  /** Creates a pull worker. It claims nothing before {@link Worker.run}. */
  worker(options?: WorkerOptions): Worker<Tasks>;
}

export interface WorkerOptions {
  /** The most handlers that run at once, 1 to 1000; default 8. */
  slots?: number | undefined;
  /** The worker's name, unique among running workers. Default: host, process id, random digits. */
  name?: string | undefined;
  /** The term of a lease, 1 s to 1 h; default 30,000. The worker renews at each third of it,
   *  and at least every 10 s. */
  leaseMs?: number | undefined;
  /** How long handlers may finish after `stop()`; default 30,000. */
  graceMs?: number | undefined;
  /** How long a claim waits on the server where nothing is due, up to 25 s; default 20,000. */
  waitMs?: number | undefined;
  /**
   * Receives failures of the worker itself, such as an unreachable server: the first failure of
   * each outage. Errors of handlers go to the server. Default: `console.error`.
   */
  onError?: ((error: unknown, during: WorkerActivity) => void) | undefined;
}

export type WorkerActivity = "claim" | "renew" | "settle" | "handler";

export type Handler<Payload = any, Output = any> = (
  payload: Payload,
  job: Job,
) => Output | JsonText | Promise<Output | JsonText>;

/** Runs the jobs of its tasks. */
export interface Worker<Tasks extends { [Name in keyof Tasks]: TaskTypes } = AnyTasks> {
  readonly name: string;
  /** The number of slots in use. */
  readonly busy: number;

  /** Sets the handler of a task. */
  task<Name extends keyof Tasks & string>(
    name: Name,
    handler: Handler<Tasks[Name]["payload"], Tasks[Name]["output"]>,
  ): this;
  /** The same, with types given in place by a client that declares no tasks. */
  task<Payload, Output>(
    name: string extends keyof Tasks ? string : never,
    handler: Handler<Payload, Output>,
  ): this;

  /**
   * Claims and runs jobs until `stop()`, until `signal` aborts, or with `signals` (Node, Deno,
   * Bun) until SIGTERM or SIGINT; a second signal ends the process at once. Resolves when the
   * worker has stopped.
   * Rejects if the server refuses the very first claim, such as for an unknown task or token.
   */
  run(options?: { signals?: boolean | undefined; signal?: AbortSignal | undefined }): Promise<void>;

  /** Stops gracefully; resolves when `run()` has ended. Safe to call more than once. */
  stop(): Promise<void>;
}

/** One attempt of a job, as its handler sees it. */
export interface Job {
  readonly id: string;
  readonly task: string;
  readonly queue: string;
  /** The debounce key. */
  readonly key: string | null;
  /** The number of this attempt. */
  readonly attempt: number;
  /** The number of starts, including those whose lease expired. */
  readonly starts: number;
  /** A token unique to this attempt. It begins with `starts`. */
  readonly fencingToken: string;
  /** The number of triggers that the job covers. */
  readonly triggers: number;
  readonly firstAt: Date;
  readonly dueAt: Date;
  readonly startedAt: Date;
  /** How long the attempt may take; Infinity without a limit. */
  readonly timeoutMs: number;
  readonly traces: ReadonlyArray<{ traceparent: string; tracestate: string | null }>;
  /** The exact JSON text of the payload. */
  readonly payloadText: string;
  /** Aborts with a {@link JobAborted} when the attempt must stop; later results are dropped. */
  readonly signal: AbortSignal;
  /** Shows a value (4 KiB of JSON at most) with the job; sent with the next renewal. */
  progress(value: unknown): void;
  /** Adds a line to the attempt's log; sent with the next renewal or the attempt's end. */
  log(line: string): void;
}

/** JSON text that is sent as it is: a payload, an output, or progress, each as a whole. */
export class JsonText {
  /** Throws a SyntaxError where `text` is not JSON. */
  constructor(text: string);
  readonly text: string;
}

/** A request that the server refused, or that failed. */
export class QuellError extends Error {
  protected constructor(failure: never);
  /** The server's kind, such as `invalid` or `not_found`; or `transport`, `timeout`, `protocol`. */
  readonly kind: string;
  /** The field at fault. */
  readonly field: string | null;
  /** The HTTP status, or 0 without a response. */
  readonly status: number;
  /** The id under which the server's log has the error. */
  readonly id: string | null;
  /** The delay that `Retry-After` asked for. */
  readonly retryAfterMs: number | null;
}

/** The server may or may not have carried out the request. `cause` has the last failure. */
export class UnknownOutcomeError extends QuellError {}

/** The reason of a job's aborted signal. */
export class JobAborted extends Error {
  protected constructor(reason: never);
  readonly reason: "lost" | "timeout" | "shutdown";
}

/** Thrown by a handler: the job is dead at once. */
export class Permanent extends Error {
  constructor(message: string, options?: { cause?: unknown });
}

/** Thrown by a handler: the attempt failed, and the next one starts after `delay`. */
export class Retry extends Error {
  constructor(delay: Duration, message?: string, options?: { cause?: unknown });
  readonly delay: Duration;
}

/** Thrown by a handler: run again after `delay`, without spending an attempt. */
export class Snooze extends Error {
  constructor(delay: Duration);
  readonly delay: Duration;
}

/** Thrown by a handler: cancel the job. */
export class Cancel extends Error {
  constructor(reason: string);
}
