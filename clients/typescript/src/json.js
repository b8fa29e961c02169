// Exact JSON. `JSON.parse` rounds long numbers, so this module finds the raw text of values in a
// document and writes raw text into one. Its input has passed `JSON.parse`: it does not validate.

const LONE_SURROGATE = /\p{Surrogate}/gu;

/** The characters that may follow a number or a literal. */
const ENDS_SCALAR = /[,\]}\s]/g;
const NOT_SPACE = /\S/g;
const STRUCTURE = /["[\]{}]/g;

export class JsonText {
  /** @param {string} text */
  constructor(text) {
    JSON.parse(text);
    this.text = text;
  }

  /** @returns {never} */
  toJSON() {
    throw new TypeError("a JsonText is a whole payload, output or progress; it cannot be a part");
  }
}

/**
 * Returns the JSON text of a value. `undefined` is null.
 * @param {unknown} value
 * @returns {string}
 */
export function toJson(value) {
  if (value instanceof JsonText) return value.text;
  const text = JSON.stringify(value ?? null);
  if (text === undefined) throw new TypeError(`a ${typeof value} has no JSON text`);
  return text;
}

/**
 * Cuts a text for people. The server refuses half of a surrogate pair, so that is replaced.
 * @param {string} text
 * @param {number} maxLength
 */
export function cut(text, maxLength) {
  return text.slice(0, maxLength).replace(LONE_SURROGATE, "\ufffd");
}

/**
 * Returns an object's JSON text from the texts of its members; undefined members are left out.
 * @param {Record<string, string | undefined>} members
 * @returns {string}
 */
export function objectText(members) {
  const parts = [];
  for (const [name, text] of Object.entries(members)) {
    if (text !== undefined) parts.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${parts.join(",")}}`;
}

/**
 * Returns the raw texts of an object's members. The last of duplicate names wins, as in
 * `JSON.parse`.
 * @param {string} text
 * @returns {Map<string, string>}
 */
export function members(text) {
  const found = new Map();
  let at = next(text, next(text, 0) + 1);
  while (text[at] !== "}") {
    const nameEnd = endOfString(text, at);
    const name = JSON.parse(text.slice(at, nameEnd));
    const start = next(text, next(text, nameEnd) + 1);
    const end = endOfValue(text, start);
    found.set(name, text.slice(start, end));
    at = afterComma(text, end);
  }
  return found;
}

/**
 * Returns the raw texts of an array's elements.
 * @param {string} text
 * @returns {string[]}
 */
export function elements(text) {
  const found = [];
  let at = next(text, next(text, 0) + 1);
  while (text[at] !== "]") {
    const end = endOfValue(text, at);
    found.push(text.slice(at, end));
    at = afterComma(text, end);
  }
  return found;
}

/** @param {RegExp} pattern @param {string} text @param {number} from */
function search(pattern, text, from) {
  pattern.lastIndex = from;
  return pattern.exec(text)?.index ?? text.length;
}

/** The next character that is not white space. @param {string} text @param {number} from */
function next(text, from) {
  return search(NOT_SPACE, text, from);
}

/** @param {string} text @param {number} from */
function afterComma(text, from) {
  const at = next(text, from);
  return text[at] === "," ? next(text, at + 1) : at;
}

/** @param {string} text @param {number} start The opening quote. */
function endOfString(text, start) {
  let quote = start;
  for (;;) {
    quote = text.indexOf('"', quote + 1);
    if (quote < 0) throw new SyntaxError("unterminated string");
    let backslashes = 0;
    while (text[quote - 1 - backslashes] === "\\") backslashes += 1;
    if (backslashes % 2 === 0) return quote + 1;
  }
}

/** @param {string} text @param {number} start */
function endOfValue(text, start) {
  const first = text[start];
  if (first === '"') return endOfString(text, start);
  if (first !== "{" && first !== "[") return search(ENDS_SCALAR, text, start);
  let depth = 0;
  let at = start;
  do {
    at = search(STRUCTURE, text, at);
    if (at === text.length) throw new SyntaxError("unterminated value");
    if (text[at] === '"') {
      at = endOfString(text, at);
      continue;
    }
    depth += text[at] === "{" || text[at] === "[" ? 1 : -1;
    at += 1;
  } while (depth > 0);
  return at;
}
