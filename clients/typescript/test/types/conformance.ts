// `src/` implements what `index.d.ts` declares, and exports nothing else.

import type * as Declared from "../../index.js";
import * as actual from "../../src/index.js";

export const implemented: typeof Declared = actual;

type Undeclared = Exclude<keyof typeof actual, keyof typeof Declared>;
export const complete: [Undeclared] extends [never] ? true : false = true;
