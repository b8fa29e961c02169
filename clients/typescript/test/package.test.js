import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";
import * as client from "quell-client";
import { processInfo } from "../src/process.js";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const pack = JSON.parse(read("../package.json"));

test("workers report the version of the package", () => {
  assert.equal(processInfo().version, `quell-typescript/${pack.version}`);
});

test("the package has no runtime dependency, and its sources import only each other", () => {
  assert.equal(pack.dependencies, undefined);
  for (const name of readdirSync(new URL("../src", import.meta.url))) {
    const imports = [
      ...read(`../src/${name}`).matchAll(/^(?:import|\} from|export .* from) .*?"([^"]+)";$/gm),
    ];
    for (const [, from] of imports) assert.match(from, /^\.\/\w+\.js$/, name);
  }
});

test("the package is found by its name", () => {
  assert.deepEqual(Object.keys(client).sort(), [
    "Cancel",
    "JobAborted",
    "JsonText",
    "Permanent",
    "Quell",
    "QuellError",
    "Retry",
    "Snooze",
    "UnknownOutcomeError",
  ]);
});
