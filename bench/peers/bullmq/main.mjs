// BullMQ, measured the way `bench` measures Quell: takes the arguments of `bench/peers/redis-common`
// and prints the same line. One process, as the others.

import { readFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Queue, Worker } from 'bullmq';
import { BEST, open } from './queue.mjs';

const PER_CALL = 1_000;

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: 'string', default: 'redis://127.0.0.1/' },
    settings: { type: 'string', default: 'defaults' },
    callers: { type: 'string', default: '32' },
    keys: { type: 'string', default: '100' },
    count: { type: 'string', default: '0' },
    samples: { type: 'string', default: '0' },
    budget: { type: 'string', default: '30' },
  },
});
const [workload] = positionals;
const number = (name) => Number.parseInt(values[name], 10);
const best = values.settings === 'best';
const { hostname, port } = new URL(values.url);
// Automatic pipelining was tried, and is slower here.
const connection = { host: hostname, port: Number(port || 6379), maxRetriesPerRequest: null };
const tuned = best
  ? 'concurrency 128, completed jobs are removed'
  : 'concurrency 1, completed jobs are kept';

const bull = await open({ Queue, Worker }, connection, best ? BEST : {});

const perSecond = (jobs, since) => ({ value: (jobs * 1_000) / (performance.now() - since), jobs });

async function callers(count, atOnce, call) {
  const each = Math.ceil(count / atOnce);
  const since = performance.now();
  await Promise.all(
    Array.from({ length: atOnce }, async (_, caller) => {
      for (let n = 0; n < each; n += 1) await call(caller, n);
    }),
  );
  return perSecond(each * atOnce, since);
}

async function batch(count) {
  const since = performance.now();
  for (let first = 0; first < count; first += PER_CALL) {
    await bull.enqueueMany(first, Math.min(PER_CALL, count - first));
  }
  return perSecond(count, since);
}

// A worker; `started` is called by each handler, first thing.
const work = (started) => bull.work(async () => started(performance.now()));

async function unfinished() {
  const counts = await bull.queue.getJobCounts('wait', 'active', 'delayed', 'failed', 'prioritized');
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

async function drain(count, toTheEnd) {
  if (toTheEnd && (await unfinished()) !== count) throw new Error('the jobs are not all queued');
  let starts = 0;
  let allStarted;
  const done = new Promise((resolve) => {
    allStarted = resolve;
  });
  const since = performance.now();
  const worker = await work(() => {
    starts += 1;
    if (starts === count) allStarted();
  });
  await done;
  while (toTheEnd && (await unfinished()) > 0) await sleep(1);
  const found = perSecond(count, since);
  // What still runs of a longer backlog need not end.
  await worker.close(!toTheEnd);
  return found;
}

async function latency(samples, budget) {
  let heard;
  const worker = await work((at) => heard(at));
  await sleep(1_000);
  const waits = [];
  const began = performance.now();
  for (let n = 0; n < samples && performance.now() - began < budget * 1_000; n += 1) {
    const start = new Promise((resolve) => {
      heard = resolve;
    });
    const since = performance.now();
    await bull.enqueue(n);
    waits.push((await start) - since);
    // Not in step with anybody's polls.
    await sleep(10 * (1 + ((n * 7) % 16) / 10));
  }
  await worker.close();
  waits.sort((a, b) => a - b);
  const at = (share) => waits[Math.floor(((waits.length - 1) * share) / 100)];
  return { value: at(50), p99: at(99), jobs: waits.length };
}

const workloads = {
  batch: () => batch(number('count')),
  single: () => {
    const atOnce = number('callers');
    return callers(number('count'), atOnce, (caller, n) => bull.enqueue(n * atOnce + caller));
  },
  debounced: () => {
    const keyOf = (caller, n) => (caller * 7_919 + n * 104_729) % number('keys');
    const call = (caller, n) => bull.debounce(keyOf(caller, n));
    return callers(number('count'), number('callers'), call);
  },
  windows: () => callers(number('count'), 512, (caller, n) => bull.debounce(n * 512 + caller)),
  drain: () => drain(number('count'), true),
  head: () => drain(number('count'), false),
  latency: () => latency(number('samples'), number('budget')),
};

const found = await workloads[workload]();
const lock = JSON.parse(readFileSync(new URL('package-lock.json', import.meta.url), 'utf8'));
const note = ['debounced', 'windows'].includes(workload)
  ? 'its debounce mode: each trigger replaces the delayed job of the key'
  : undefined;
const peer = `bullmq ${lock.packages['node_modules/bullmq'].version}`;
console.log(JSON.stringify({ peer, tuned, note, ...found }));
await bull.queue.close();
// A worker that was closed by force may still hold its connections.
process.exit(0);
