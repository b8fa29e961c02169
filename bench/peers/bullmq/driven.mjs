// BullMQ on PostgreSQL, driven by `bench/peers/bullmq-postgres`: reads a call a line, and prints a
// line when one has ended and when a job starts. The calls of a line may overlap.

import { createInterface } from 'node:readline';
import { createPostgresBackend, withBackend } from 'bullmq';
import { BEST, open } from './queue.mjs';

// A silence of 0 leaves the lock and its checks as they are.
const [connectionString, settings, silence] = process.argv.slice(2);
const best = settings === 'best';
const locks = Number(silence) ? { lockDuration: Number(silence), stalledInterval: 1_000 } : {};
const connection = { connectionString, migrate: true, ...(best ? { max: 32 } : {}) };
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const classes = withBackend(createPostgresBackend);
const bull = await open(classes, connection, { ...(best ? BEST : {}), ...locks });
let worker;

const calls = {
  ready: () => {},
  enqueue: bull.enqueue,
  enqueueMany: bull.enqueueMany,
  debounce: bull.debounce,
  work: async (holds) => {
    worker = await bull.work(async () => {
      say({ start: true });
      if (holds) await new Promise(() => {});
    });
  },
  stop: () => worker.close(),
  close: () => bull.queue.close(),
};

async function answer(line) {
  const { id, call, args } = JSON.parse(line);
  try {
    await calls[call](...args);
    say({ id });
  } catch (error) {
    say({ id, error: String(error) });
  }
}

createInterface({ input: process.stdin })
  .on('line', answer)
  // A worker with jobs in hand would not end by itself.
  .on('close', () => process.exit(0));
