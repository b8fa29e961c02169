'use strict';
// Every operation that Quell needs, by Microsoft's SDK for JavaScript, on a stand-in that the test started.

const assert = require('assert');
const Long = require('long');
const { ServiceBusClient } = require('@azure/service-bus');

const CONNECTION = process.env.SERVICEBUS;
const WAIT = { maxWaitTimeInMs: 10_000 };
// The SDK renews locks on its own, which these acts do themselves.
const MANUAL = { maxAutoLockRenewalDurationInMs: 0 };
const BRIEF = { maxWaitTimeInMs: 500 };

const client = (connection = CONNECTION) =>
    new ServiceBusClient(connection, { retryOptions: { maxRetries: 0, timeoutInMs: 10_000 } });
const after = (ms) => new Date(Date.now() + ms);
const bodies = (messages) => messages.map(({ body }) => body);

async function one(receiver) {
    const messages = await receiver.receiveMessages(1, WAIT);
    assert.strictEqual(messages.length, 1);
    return messages[0];
}

async function none(receiver) {
    assert.deepStrictEqual(bodies(await receiver.receiveMessages(1, BRIEF)), []);
}

async function refused(code, promise) {
    await assert.rejects(promise, (error) => error.code === code || assert.fail(`${error.code}: ${error.message}`));
}

/** Runs with a sender and a receiver of the queue, which are closed after. */
async function on(bus, queue, act) {
    const [sender, receiver] = [bus.createSender(queue), bus.createReceiver(queue, MANUAL)];
    try { await act(sender, receiver); } finally { await Promise.all([sender.close(), receiver.close()]); }
}

const acts = {
    sendsAndCompletes: (bus) => on(bus, 'plain', async (sender, receiver) => {
        await sender.sendMessages({ body: 'hello', messageId: 'm1', subject: 's', applicationProperties: { n: 7, t: 'x' } });
        const got = await one(receiver);
        assert.deepStrictEqual([got.body, got.messageId, got.subject], ['hello', 'm1', 's']);
        assert.deepStrictEqual(got.applicationProperties, { n: 7, t: 'x' });
        assert.strictEqual(got.deliveryCount, 0);
        assert.match(got.lockToken, /^[0-9a-f]{8}-/);
        assert.ok(got.enqueuedTimeUtc <= got.lockedUntilUtc);
        await receiver.completeMessage(got);
        await none(receiver);
    }),

    sendsBatches: (bus) => on(bus, 'plain', async (sender, receiver) => {
        const batch = await sender.createMessageBatch();
        for (let number = 0; number < 5; number += 1) assert.ok(batch.tryAddMessage({ body: `b${number}` }));
        await sender.sendMessages(batch);
        await sender.sendMessages([{ body: 'b5' }]);
        const found = [];
        while (found.length < 6) {
            const messages = await receiver.receiveMessages(4, WAIT);
            assert.ok(messages.length >= 1 && messages.length <= 4);
            found.push(...bodies(messages));
            for (const message of messages) await receiver.completeMessage(message);
        }
        assert.deepStrictEqual(found.sort(), ['b0', 'b1', 'b2', 'b3', 'b4', 'b5']);
        const large = 'x'.repeat(200_000);
        await sender.sendMessages({ body: large });
        const got = await one(receiver);
        assert.strictEqual(got.body, large);
        await receiver.completeMessage(got);
    }),

    schedulesAndCancels: (bus) => on(bus, 'plain', async (sender, receiver) => {
        const due = after(1_500);
        await sender.scheduleMessages({ body: 'managed' }, due);
        await sender.sendMessages({ body: 'annotated', scheduledEnqueueTimeUtc: due });
        const numbers = await sender.scheduleMessages([{ body: 'never' }, { body: 'never' }], due);
        const peeked = await receiver.peekMessages(10);
        assert.deepStrictEqual(bodies(peeked), ['managed', 'annotated', 'never', 'never']);
        assert.deepStrictEqual(peeked.map(({ state }) => state), Array(4).fill('scheduled'));
        await sender.cancelScheduledMessages(numbers);
        await refused('MessageNotFound', sender.cancelScheduledMessages(numbers));
        const found = [];
        while (found.length < 2) {
            const got = await one(receiver);
            assert.ok(after(50) >= due, 'it came early');
            found.push(got.body);
            await receiver.completeMessage(got);
        }
        assert.deepStrictEqual(found.sort(), ['annotated', 'managed']);
        await none(receiver);
    }),

    locksExpireAndAreRenewed: (bus) => on(bus, 'short', async (sender, receiver) => {
        await sender.sendMessages({ body: 'locked' });
        const got = await one(receiver);
        const firstEnd = got.lockedUntilUtc;
        await on(bus, 'short', async (_, rival) => {
            while (after(-500) < firstEnd) {
                const until = got.lockedUntilUtc;
                assert.ok(await receiver.renewMessageLock(got) > until);
                await none(rival);
            }
            const again = await one(rival);
            assert.deepStrictEqual([again.body, again.deliveryCount], ['locked', 1]);
            await refused('MessageLockLost', receiver.renewMessageLock(got));
            await refused('MessageLockLost', receiver.completeMessage(got));
            await rival.completeMessage(again);
        });
    }),

    abandonsAndDeadLetters: (bus) => on(bus, 'strict', async (sender, receiver) => {
        const dead = bus.createReceiver('strict', { ...MANUAL, subQueueType: 'deadLetter' });
        await sender.sendMessages({ body: 'worn', applicationProperties: { kept: 'yes' } });
        for (let count = 0; count < 2; count += 1) {
            const got = await one(receiver);
            assert.strictEqual(got.deliveryCount, count);
            await receiver.abandonMessage(got);
        }
        await none(receiver);
        await sender.sendMessages({ body: 'refused' });
        await receiver.deadLetterMessage(await one(receiver), { deadLetterReason: 'poison', deadLetterErrorDescription: 'why' });
        assert.deepStrictEqual(bodies(await dead.peekMessages(9)), ['worn', 'refused']);
        const [worn, poison] = [await one(dead), await one(dead)];
        assert.strictEqual(worn.deadLetterReason, 'MaxDeliveryCountExceeded');
        assert.strictEqual(worn.applicationProperties.kept, 'yes');
        assert.strictEqual(poison.body, 'refused');
        assert.deepStrictEqual([poison.deadLetterReason, poison.deadLetterErrorDescription], ['poison', 'why']);
        await dead.completeMessage(worn);
        await dead.completeMessage(poison);
        await none(dead);
        await dead.close();
    }),

    consumersCompete: (bus) => on(bus, 'plain', (sender, first) => on(bus, 'plain', async (_, second) => {
        const sent = Array.from({ length: 20 }, (_it, number) => number);
        await sender.sendMessages(sent.map((body) => ({ body })));
        const found = [];
        const consume = async (receiver) => {
            while (found.length < sent.length) {
                const messages = await receiver.receiveMessages(3, BRIEF);
                assert.ok(messages.length <= 3);
                found.push(...bodies(messages));
                for (const message of messages) await receiver.completeMessage(message);
            }
        };
        await Promise.all([consume(first), consume(second)]);
        assert.deepStrictEqual(found.sort((one_, other) => one_ - other), sent);
    })),

    messagesAreRemovedOnReceipt: (bus) => on(bus, 'plain', async (sender, receiver) => {
        const taker = bus.createReceiver('plain', { receiveMode: 'receiveAndDelete' });
        await sender.sendMessages({ body: 'gone' });
        assert.strictEqual((await one(taker)).body, 'gone');
        await taker.close();
        assert.deepStrictEqual(await receiver.peekMessages(1), []);
    }),

    duplicatesAndOldMessagesGo: async (bus) => {
        await on(bus, 'unique', async (sender, receiver) => {
            for (const body of ['kept', 'dropped']) await sender.sendMessages({ body, messageId: 'same' });
            await sender.scheduleMessages({ body: 'dropped', messageId: 'same' }, after(100));
            const got = await one(receiver);
            assert.strictEqual(got.body, 'kept');
            await receiver.completeMessage(got);
            await none(receiver);
        });
        await on(bus, 'brief', async (sender, receiver) => {
            await sender.sendMessages({ body: 'old' });
            const deadline = after(10_000);
            const fromSequenceNumber = Long.fromNumber(1);
            while ((await receiver.peekMessages(1, { fromSequenceNumber })).length) {
                assert.ok(new Date() < deadline, 'it never expired');
            }
            await none(receiver);
        });
    },

    faultsAreWhatTheSdkExpects: async (bus) => {
        await on(bus, 'busy', (sender) => refused('ServiceBusy', sender.sendMessages({ body: 'x' })));
        await on(bus, 'twice', async (sender, receiver) => {
            await sender.sendMessages({ body: 'again' });
            for (let count = 0; count < 2; count += 1) {
                const got = await one(receiver);
                assert.deepStrictEqual([got.body, got.deliveryCount], ['again', count]);
                await receiver.completeMessage(got);
            }
            await none(receiver);
        });
        const stranger = client(CONNECTION.replace('SharedAccessKey=', 'SharedAccessKey=wrong'));
        await refused('UnauthorizedAccess', stranger.createSender('plain').sendMessages({ body: 'x' }));
        await stranger.close();
        await refused('MessagingEntityNotFound', bus.createSender('missing').sendMessages({ body: 'x' }));
        // The SDK sends again on a new connection: the message is stored twice.
        const patient = new ServiceBusClient(CONNECTION, { retryOptions: { maxRetries: 2, retryDelayInMs: 10, timeoutInMs: 2_000 } });
        await on(patient, 'lossy', async (sender, receiver) => {
            await sender.sendMessages({ body: 'stored' });
            for (let count = 0; count < 2; count += 1) {
                const got = await one(receiver);
                assert.strictEqual(got.body, 'stored');
                await receiver.completeMessage(got);
            }
            await none(receiver);
        });
        await patient.close();
    },
};

async function main() {
    const bus = client();
    for (const [name, act] of Object.entries(acts)) {
        const began = Date.now();
        await act(bus);
        console.log(`ok ${name} ${Date.now() - began} ms`);
    }
    await bus.close();
    console.log('all ok');
}

setTimeout(() => {
    console.error('it takes too long');
    process.exit(2);
}, 180_000).unref();
main().catch((error) => {
    console.error(error);
    process.exit(1);
});
