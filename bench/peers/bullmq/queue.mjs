// The queue of BullMQ that is measured, the same on Redis and on PostgreSQL.

const HOUR = 3_600_000;
const NAME = 'bench';

// What a worker runs with at its best; the defaults are BullMQ's own.
export const BEST = { concurrency: 128, removeOnComplete: { count: 0 } };

export async function open({ Queue, Worker }, connection, options) {
  const queue = new Queue(NAME, { connection });
  await queue.waitUntilReady();
  return {
    queue,
    enqueue: (n) => queue.add('noop', { n }),
    enqueueMany: (first, length) =>
      queue.addBulk(Array.from({ length }, (_, n) => ({ name: 'noop', data: { n: first + n } }))),
    // The debounce mode of the documentation: the latest trigger replaces the job that waits.
    debounce: (key) =>
      queue.add('meter', { key }, {
        deduplication: { id: `customer-${key}`, ttl: HOUR, extend: true, replace: true },
        delay: HOUR,
      }),
    // A worker; `handler` is the whole of what a job does.
    work: async (handler) => {
      const worker = new Worker(NAME, handler, { connection, ...options });
      worker.on('error', (error) => {
        throw error;
      });
      await worker.waitUntilReady();
      return worker;
    },
  };
}
