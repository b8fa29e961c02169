'use strict';
// A queue with the rules of Azure Service Bus: locks, redelivery, schedules, duplicate detection, time
// to live and a dead-letter queue. It knows nothing of AMQP; `wake` is called when messages may be
// delivered.
//
// Invariant: a message is in one of `scheduled` and `ready`, and only ready messages have a lock.

const crypto = require('crypto');

/** An error of the service: a status of $management, and a condition of AMQP. */
class Refusal extends Error {
    constructor(status, condition, text) {
        super(text);
        this.status = status;
        this.condition = condition;
    }
}

const lockLost = () => new Refusal(410, 'com.microsoft:message-lock-lost',
    'The lock supplied is invalid. Either the lock expired, or the message has already been removed.');
const notFound = (what) => new Refusal(404, 'com.microsoft:message-not-found', `${what} not found.`);

const DEFAULTS = { lockMs: 60_000, maxDeliveries: 10, duplicateWindowMs: 0, ttlMs: 0, shiftMs: 0 };

class Queue {
    /** `dead` is the queue of the dead letters, which has none itself. */
    constructor(options, wake, dead) {
        Object.assign(this, DEFAULTS, options, { wake, dead });
        this.sequence = 0;
        this.scheduled = new Map();
        this.ready = new Map();
        this.seen = new Map();
        this.timer = undefined;
    }

    /** Stores a message, at once or at `due`; its sequence number, or 0 for a duplicate. */
    enqueue(message, due) {
        const now = Date.now();
        if (this.isDuplicate(message.id, now)) return 0;
        const sequence = ++this.sequence;
        Object.assign(message, { sequence, deliveries: 0, lock: undefined, enqueued: now });
        if (due === undefined) this.put(message, now);
        else this.scheduled.set(sequence, Object.assign(message, { due: due + this.shiftMs, announced: due }));
        this.advance();
        return sequence;
    }

    isDuplicate(id, now) {
        if (!this.duplicateWindowMs || id === undefined) return false;
        for (const [old, at] of this.seen) if (at + this.duplicateWindowMs <= now) this.seen.delete(old);
        if (this.seen.has(id)) return true;
        this.seen.set(id, now);
        return false;
    }

    put(message, now) {
        message.enqueued = now;
        const limits = [message.ttl, this.ttlMs].filter((ttl) => ttl > 0);
        message.expires = limits.length && this.dead ? now + Math.min(...limits) : Infinity;
        this.ready.set(message.sequence, message);
    }

    /** Locks the first free message, or removes it where the receiver settles nothing. */
    take(isSettled) {
        this.expire(Date.now());
        for (const message of this.ready.values()) {
            if (message.lock) continue;
            message.deliveries += 1;
            message.lock = { token: crypto.randomBytes(16), until: Date.now() + this.lockMs };
            if (isSettled) this.ready.delete(message.sequence);
            this.plan();
            return message;
        }
        return undefined;
    }

    locked(token) {
        this.expire(Date.now());
        for (const message of this.ready.values()) {
            if (message.lock && message.lock.token.equals(token)) return message;
        }
        throw lockLost();
    }

    renew(token) {
        const { lock } = this.locked(token);
        lock.until = Date.now() + this.lockMs;
        this.plan();
        return lock.until;
    }

    complete(token) {
        this.ready.delete(this.locked(token).sequence);
    }

    /** Completes a message that is delivered again all the same, as after a failover. */
    forget(token) {
        this.unlock(this.locked(token));
        this.advance();
    }

    abandon(token, isCounted = true) {
        const message = this.locked(token);
        if (!isCounted) message.deliveries -= 1;
        this.unlock(message);
        this.advance();
    }

    deadLetter(token, reason, description) {
        this.bury(this.locked(token), reason, description);
    }

    bury(message, reason, description) {
        this.ready.delete(message.sequence);
        this.dead.enqueue({ ...message, ttl: 0, buried: { reason, description } });
    }

    unlock(message) {
        message.lock = undefined;
        if (message.deliveries < this.maxDeliveries || !this.dead) return;
        const description = `Message could not be consumed after ${this.maxDeliveries} delivery attempts.`;
        this.bury(message, 'MaxDeliveryCountExceeded', description);
    }

    expireLocks() {
        for (const message of [...this.ready.values()]) if (message.lock) this.unlock(message);
        this.advance();
    }

    cancel(sequences) {
        const missing = sequences.find((sequence) => !this.scheduled.has(sequence));
        if (missing !== undefined) throw notFound(`The scheduled message ${missing} was`);
        for (const sequence of sequences) this.scheduled.delete(sequence);
        this.plan();
    }

    /** Messages from a sequence number on, in order; nothing is locked. */
    peek(from, most) {
        this.expire(Date.now());
        const all = [...this.ready.values(), ...this.scheduled.values()];
        all.sort((one, other) => one.sequence - other.sequence);
        return all.filter((message) => message.sequence >= from).slice(0, most);
    }

    counts() {
        this.expire(Date.now());
        const locked = [...this.ready.values()].filter((message) => message.lock).length;
        const counts = { ready: this.ready.size - locked, locked, scheduled: this.scheduled.size };
        return { ...counts, dead: this.dead ? this.dead.ready.size : 0 };
    }

    expire(now) {
        for (const message of [...this.ready.values()]) {
            if (message.lock && message.lock.until <= now) {
                this.unlock(message);
                setImmediate(this.wake);
            }
            if (!message.lock && message.expires <= now) this.ready.delete(message.sequence);
        }
    }

    advance() {
        const now = Date.now();
        this.expire(now);
        const isDue = (message) => message.due <= now;
        const due = [...this.scheduled.values()].filter(isDue).sort((one, other) => one.due - other.due);
        for (const message of due) {
            this.scheduled.delete(message.sequence);
            // A message gets another sequence number when its time comes.
            this.put(Object.assign(message, { sequence: ++this.sequence, due: undefined }), now);
        }
        this.plan();
        this.wake();
    }

    plan() {
        clearTimeout(this.timer);
        const times = [...this.scheduled.values()].map((message) => message.due);
        for (const { lock, expires } of this.ready.values()) times.push(lock ? lock.until : expires);
        const next = Math.min(...times, Date.now() + 0x7fffffff);
        if (times.length) this.timer = setTimeout(() => this.advance(), Math.max(0, next - Date.now()));
    }
}

module.exports = { Queue, Refusal };
