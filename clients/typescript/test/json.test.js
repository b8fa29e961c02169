import assert from "node:assert/strict";
import test from "node:test";
import { JsonText, elements, members, objectText, toJson } from "../src/json.js";

test("members are found as they are written", () => {
  const table = [
    ["{}", {}],
    [" { } ", {}],
    ['{"a":1}', { a: "1" }],
    [
      '\n{ "a" :\t12345678901234567890123 , "b" : 1.50e400 }',
      { a: "12345678901234567890123", b: "1.50e400" },
    ],
    [
      '{"a":{"payload":[1,{"x":"}"}]},"payload":"]}"}',
      { a: '{"payload":[1,{"x":"}"}]}', payload: '"]}"' },
    ],
    [
      '{"a":"\\"}","b":"\\\\","c":"\\\\\\",","d":null}',
      { a: '"\\"}"', b: '"\\\\"', c: '"\\\\\\","', d: "null" },
    ],
    ['{"pay\\u006coad":[ ]}', { payload: "[ ]" }],
    ['{"a":1,"a":{"a":2},"b":true}', { a: '{"a":2}', b: "true" }],
    ['{"":"","__proto__":[1]}', { "": '""', ["__proto__"]: "[1]" }],
    ['{"a":"{[\\u0022"}', { a: '"{[\\u0022"' }],
  ];
  for (const [text, expected] of table) {
    const found = members(text);
    assert.deepEqual([...found].sort(), Object.entries(expected).sort(), text);
    for (const [name, raw] of found)
      assert.deepEqual(JSON.parse(raw), JSON.parse(text)[name], text);
  }
});

test("elements are found as they are written", () => {
  const table = [
    ["[]", []],
    [" [ ] ", []],
    ["[1]", ["1"]],
    ['[ 1 , [2, 3] ,"a,]", {"b": [4]}, -0.0 ]', ["1", "[2, 3]", '"a,]"', '{"b": [4]}', "-0.0"]],
  ];
  for (const [text, expected] of table) assert.deepEqual(elements(text), expected, text);
});

test("raw texts of random documents parse to the values that JSON.parse finds", () => {
  const random = generator(7);
  for (let round = 0; round < 2_000; round += 1) {
    const text = `{"a":${document(random, 4)},"b":${document(random, 4)} , "list":[${document(random, 3)},${document(random, 3)}]}`;
    const whole = JSON.parse(text);
    const found = members(text);
    for (const name of ["a", "b", "list"]) {
      assert.deepEqual(JSON.parse(found.get(name)), whole[name], text);
    }
    assert.deepEqual(
      elements(found.get("list")).map((raw) => JSON.parse(raw)),
      whole.list,
      text,
    );
  }
});

test("a JsonText is sent as it is, as a whole only", () => {
  const exact = new JsonText('{"n":12345678901234567890123,"n":1}');
  assert.equal(toJson(exact), '{"n":12345678901234567890123,"n":1}');
  assert.throws(() => toJson({ part: exact }), TypeError);
  assert.throws(() => new JsonText('{"a":1},"b":2'), SyntaxError);
  assert.equal(toJson(undefined), "null");
  assert.throws(() => toJson(() => {}), /function has no JSON text/);
  assert.equal(objectText({ a: "1", b: undefined, 'c"': "[2]" }), '{"a":1,"c\\"":[2]}');
});

/** A small generator of random numbers below 1 (mulberry32). */
function generator(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

function document(random, depth) {
  const space = () => " \n\t"[Math.floor(random() * 12)] ?? "";
  const pick = (list) => list[Math.floor(random() * list.length)];
  const string = () =>
    JSON.stringify(
      Array.from({ length: random() * 5 }, () =>
        pick(['"', "\\", "{", "}", "[", "]", ",", ":", "é", "\u2028", "a", "payload", "\n"]),
      ).join(""),
    );
  const kind = depth === 0 ? Math.floor(random() * 3) : Math.floor(random() * 5);
  if (kind === 0)
    return (
      space() + pick(["0", "-1.5e3", "123456789012345678901", "true", "false", "null"]) + space()
    );
  if (kind < 3) return space() + string() + space();
  const items = Array.from({ length: random() * 4 }, () => document(random, depth - 1));
  if (kind === 3) return `${space()}[${items.join(",")}${space()}]${space()}`;
  return `${space()}{${items.map((item) => `${string()}${space()}:${item}`).join(",")}${space()}}${space()}`;
}
