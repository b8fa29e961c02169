// The public names. `index.d.ts` describes them.

export { Quell } from "./client.js";
export { JsonText } from "./json.js";
export {
  Cancel,
  JobAborted,
  Permanent,
  QuellError,
  Retry,
  Snooze,
  UnknownOutcomeError,
} from "./errors.js";
