'use strict';
// A stand-in for Azure Service Bus that speaks AMQP 1.0 on a free port of the loopback address. It is
// controlled by lines of JSON on its standard input, answers each by one line, and ends with its input.
//
// Microsoft's unmodified SDKs for Python and JavaScript judge what it says on the wire: see
// tests/it/servicebus.rs. Invariant: it stores nothing on disk and keeps nothing beyond its process.

const crypto = require('crypto');
const readline = require('readline');
const rhea = require('rhea');
const { Queue, Refusal } = require('./queue.js');
const { encode, parse, parseTransfer, swapGuid } = require('./message.js');

const { message: codec, types } = rhea;
const KEY = { name: process.env.SERVICEBUS_KEY_NAME, key: process.env.SERVICEBUS_KEY };
const MAX_BYTES = 262_144;

const queues = new Map();
const connections = new Set();
let faults = [];
let clockMs = 0;
const stats = { tokens: 0, sends: 0, deliveries: 0, renewals: 0, completions: 0 };

const unauthorized = (text) => new Refusal(401, 'amqp:unauthorized-access', text);
const busy = () => new Refusal(503, 'com.microsoft:server-busy',
    'The request was terminated because the entity is being throttled. Error code : 50004. Please wait.');

/** The outcome of a refused message; the SDK for Python reads all three fields of its error. */
const rejection = ({ condition = 'amqp:internal-error', message: description }) =>
    codec.rejected({ error: { condition, description, info: {} } });

/** Whether this fault is set for the queue; it counts as used. */
function fails(name, kind) {
    const fault = faults.find((it) => it.queue === name && it.kind === kind && it.times > 0);
    if (fault) fault.times -= 1;
    return fault !== undefined;
}

/** The time of the service's own clock, by which tokens expire. */
const serviceNow = () => Date.now() + clockMs;

/** The path of an address or of a token's audience: some clients give URLs. */
const pathOf = (url) => url.replace(/^\w+:\/\/[^/]*\/?/, '').replace(/\/$/, '').toLowerCase();

/** The queue of an address such as `name/$DeadLetterQueue`, and its name. */
function find(address) {
    const [name, ...rest] = address.split('/');
    const queue = queues.get(name);
    if (!queue) throw new Refusal(404, 'amqp:not-found', `The messaging entity '${name}' could not be found.`);
    const isDead = rest.some((part) => part === '$deadletterqueue');
    return { name, queue: isDead ? queue.dead : queue };
}

// Tokens

/** The time at which a token expires, in milliseconds. */
function check(token) {
    const text = String(token).replace('SharedAccessSignature ', '');
    const { sr, sig, se, skn } = Object.fromEntries(text.split('&').map((part) => {
        const at = part.indexOf('=');
        return [part.slice(0, at), part.slice(at + 1)];
    }));
    const wanted = crypto.createHmac('sha256', KEY.key).update(`${sr}\n${se}`).digest('base64');
    if (skn !== KEY.name || decodeURIComponent(sig || '') !== wanted) {
        throw unauthorized('InvalidSignature: The token has an invalid signature.');
    }
    if (Number(se) * 1000 <= serviceNow()) throw unauthorized('ExpiredToken: The token is expired.');
    return { expires: Number(se) * 1000, path: pathOf(decodeURIComponent(sr)) };
}

function authorize(connection, address) {
    const covers = ({ path, expires }) => expires > serviceNow()
        && (path === '' || `${address}/`.startsWith(`${path}/`));
    if (connection.claims.some(covers)) return;
    throw unauthorized(`Unauthorized access. 'Listen' or 'Send' claim(s) are required on '${address}'.`);
}

/** Closes the links that no token covers any more. */
function closeExpired(connection) {
    connection.each_link((link) => {
        const address = link.address;
        if (!address || address === '$cbs' || !link.is_open()) return;
        try { authorize(connection, address); } catch (error) { close(link, error); }
    });
}

function putToken(connection, request) {
    const claim = check(request.body);
    if (fails(claim.path.split('/')[0], 'token')) throw unauthorized('InvalidSignature: The key was replaced.');
    stats.tokens += 1;
    connection.claims.push(claim);
    const left = Math.min(claim.expires - serviceNow() + 1, 0x7fffffff);
    connection.timers.push(setTimeout(() => closeExpired(connection), left));
    return {};
}

// Delivery

function creditOf({ link, deliveries }) {
    const { outgoing } = link.session;
    const unsent = deliveries.filter((delivery) => delivery.id >= outgoing.next_pending_delivery);
    return link.credit - unsent.length;
}

/** Delivers what is ready to the receivers that have credit, in turn. */
function deliver(queue) {
    for (;;) {
        const at = queue.receivers.findIndex((it) => it.link.is_open() && creditOf(it) > 0);
        if (at < 0) return;
        const isSettled = queue.receivers[at].link.snd_settle_mode === 1;
        const message = queue.take(isSettled);
        if (!message) break;
        stats.deliveries += 1;
        const [receiver] = queue.receivers.splice(at, 1);
        queue.receivers.push(receiver);
        const delivery = receiver.link.send(encode(message), message.lock.token, 0);
        const { outgoing } = receiver.link.session;
        receiver.deliveries = receiver.deliveries.filter((old) => old.id >= outgoing.next_pending_delivery);
        receiver.deliveries.push(delivery);
    }
    for (const { link } of queue.receivers) if (link._draining) link.set_drained(true);
}

function settle({ sender, delivery }, act, outcome) {
    let answer = outcome;
    try {
        const { queue, name } = find(sender.address);
        act(queue, delivery.tag, name);
    } catch (error) {
        answer = rejection(error);
    }
    delivery.update(true, answer.described());
    // The receiver settled, or does so by this answer: it does not answer again.
    delivery.remote_settled = true;
}

function complete(queue, token, name) {
    stats.completions += 1;
    if (fails(name, 'twice')) queue.forget(token);
    else queue.complete(token);
}

function bury(queue, token, info) {
    if (!queue.dead) throw new Refusal(400, 'amqp:not-allowed', 'A dead letter cannot be dead-lettered.');
    queue.deadLetter(token, info.DeadLetterReason, info.DeadLetterErrorDescription);
}

const container = rhea.create_container({
    id: 'servicebus',
    sender_options: { autosettle: false, treat_modified_as_released: false },
    receiver_options: { autoaccept: false, autosettle: false, credit_window: 0 },
});
container.sasl_server_mechanisms.enable_anonymous();
container.sasl_server_mechanisms.MSSBCBS = container.sasl_server_mechanisms.ANONYMOUS;

container.on('accepted', (context) => settle(context, complete, codec.accepted()));
container.on('released', (context) => settle(context, (queue, token) => {
    queue.abandon(token, false);
}, codec.released()));
container.on('modified', (context) => settle(context, (queue, token) => {
    const isDeferred = context.delivery.remote_state.undeliverable_here;
    if (isDeferred) throw new Refusal(501, 'amqp:not-implemented', 'No deferral.');
    queue.abandon(token);
}, codec.modified({})));
container.on('rejected', (context) => settle(context, (queue, token) => {
    const { error } = context.delivery.remote_state;
    bury(queue, token, (error && error.info) || {});
}, codec.rejected()));

// Links

function close(link, { condition = 'amqp:internal-error', message: description }) {
    link.close({ condition, description });
}

function open(link, address, attach) {
    link.address = pathOf(address || '');
    link.local.attach.snd_settle_mode = link.remote.attach.snd_settle_mode;
    link.local.attach.rcv_settle_mode = link.remote.attach.rcv_settle_mode;
    link.local.attach.max_message_size = MAX_BYTES;
    try {
        if (link.address !== '$cbs') {
            authorize(link.connection, link.address);
            const { name } = find(link.address);
            if (fails(name, 'busy-attach')) throw busy();
        }
        // Only the address is echoed: rhea shares one array among all empty lists that it reads.
        link.set_source({ address: link.source && link.source.address });
        link.set_target({ address: link.target && link.target.address });
        attach();
    } catch (error) {
        close(link, error);
    }
}

const isNode = (address) => address === '$cbs' || address.endsWith('/$management');

container.on('sender_open', ({ sender }) => open(sender, sender.source && sender.source.address, () => {
    if (!isNode(sender.address)) find(sender.address).queue.receivers.push({ link: sender, deliveries: [] });
}));
container.on('receiver_open', ({ receiver }) => open(receiver, receiver.target && receiver.target.address, () => {
    receiver.add_credit(500);
}));
container.on('sender_flow', ({ sender }) => {
    if (isNode(sender.address)) return;
    deliver(find(sender.address).queue);
});

function leave(leaves) {
    for (const queue of [...queues.values()].flatMap((it) => [it, it.dead])) {
        queue.receivers = queue.receivers.filter(({ link }) => !leaves(link));
    }
}

container.on('sender_close', ({ sender }) => leave((link) => link === sender));
container.on('session_close', ({ session }) => leave((link) => link.session === session));

container.on('message', ({ receiver, delivery, message, format }) => {
    receiver.add_credit(1);
    if (isNode(receiver.address)) {
        delivery.update(true, codec.accepted().described());
        reply(receiver, message);
        return;
    }
    const bytes = format === undefined ? message.bytes : message;
    const { name, queue } = find(receiver.address);
    let outcome = codec.accepted();
    try {
        if (fails(name, 'busy')) throw busy();
        if (fails(name, 'drop-before')) return receiver.connection.socket.destroy();
        for (const { message: one, due } of parseTransfer(bytes, format)) {
            stats.sends += 1;
            queue.enqueue(one, due);
        }
        if (fails(name, 'drop-after')) return receiver.connection.socket.destroy();
        if (fails(name, 'no-answer')) return;
    } catch (error) {
        outcome = rejection(error);
    }
    delivery.update(true, outcome.described());
});

// $cbs and $management

const OPERATIONS = {
    'com.microsoft:schedule-message': (queue, { messages }) => {
        const sequences = messages.map(({ message }) => {
            const { message: one, due } = parse(message);
            stats.sends += 1;
            return queue.enqueue(one, due === undefined ? Date.now() : due);
        });
        return { 'sequence-numbers': types.wrap_array(sequences, 0x81) };
    },
    'com.microsoft:cancel-scheduled-message': (queue, body) => {
        queue.cancel([].concat(body['sequence-numbers']).map(Number));
    },
    'com.microsoft:renew-lock': (queue, body) => {
        stats.renewals += body['lock-tokens'].length;
        const until = body['lock-tokens'].map((token) => queue.renew(swapGuid(token)));
        return { expirations: types.wrap_array(until, 0x83) };
    },
    'com.microsoft:peek-message': (queue, body) => {
        const found = queue.peek(Number(body['from-sequence-number']), Number(body['message-count']));
        if (!found.length) throw new Refusal(204, undefined, 'No content.');
        const wrap = (it) => types.wrap_map({ message: types.wrap_binary(encode(it)) });
        return { messages: types.wrap_list(found.map(wrap)) };
    },
    'com.microsoft:update-disposition': (queue, body, name) => {
        const reasons = {
            DeadLetterReason: body['deadletter-reason'],
            DeadLetterErrorDescription: body['deadletter-description'],
        };
        const acts = {
            completed: (token) => complete(queue, token, name),
            abandoned: (token) => queue.abandon(token),
            suspended: (token) => bury(queue, token, reasons),
        };
        const act = acts[body['disposition-status']];
        if (!act) throw new Refusal(400, 'amqp:not-implemented', body['disposition-status']);
        for (const token of body['lock-tokens']) act(swapGuid(token));
    },
};

function operate(receiver, { application_properties: { operation }, body }) {
    if (operation === 'put-token') return putToken(receiver.connection, { body });
    const { queue, name } = find(receiver.address);
    if (fails(name, 'busy-management')) throw busy();
    const act = OPERATIONS[operation];
    if (!act) throw new Refusal(400, 'amqp:not-implemented', `The operation ${operation} is not known.`);
    const result = act(queue, body, name);
    if (fails(name, 'no-answer-management')) return undefined;
    if (fails(name, 'timeout-management')) throw new Refusal(408, 'com.microsoft:timeout', 'It took too long.');
    return result || {};
}

function reply(receiver, request) {
    let status = { code: 200, text: 'OK' };
    let body = {};
    try {
        body = operate(receiver, request);
    } catch (error) {
        status = { code: error.status || 500, text: error.message, condition: error.condition };
    }
    if (body === undefined) return;
    const application = receiver.address === '$cbs'
        ? { 'status-code': types.wrap_int(status.code), 'status-description': status.text }
        : { statusCode: types.wrap_int(status.code), statusDescription: status.text };
    if (status.condition) application.errorCondition = types.wrap_symbol(status.condition);
    const answer = {
        correlation_id: request.message_id,
        application_properties: application,
        body: types.wrap_map(body),
    };
    // Several links may share an address.
    const links = [];
    receiver.connection.each_link((link) => {
        if (link.is_sender() && link.address === receiver.address && link.is_open()) links.push(link);
    });
    const isAddressed = ({ target }) => target && target.address === request.reply_to;
    const link = links.find(isAddressed) || links[0];
    // It is sent settled: the SDKs expect no disposition for it.
    if (link) link.send(answer).settled = true;
}

// Connections

function forget(connection) {
    // One that never spoke AMQP was never opened.
    if (!connections.delete(connection)) return;
    connection.timers.forEach(clearTimeout);
    leave((link) => link.connection === connection);
}

container.on('connection_open', ({ connection }) => {
    connection.socket.setNoDelay(true);
    connections.add(Object.assign(connection, { claims: [], timers: [] }));
});
container.on('connection_close', ({ connection }) => forget(connection));
container.on('disconnected', ({ connection }) => forget(connection));
const ERRORS = ['error', 'protocol_error', 'connection_error', 'session_error', 'receiver_error', 'sender_error'];
for (const event of ERRORS) {
    container.on(event, (error) => process.stderr.write(`${event}: ${error.message || ''}\n`));
}

// Control

function make(options) {
    const queue = new Queue(options, () => deliver(queue), new Queue({}, () => deliver(queue.dead)));
    queue.receivers = [];
    queue.dead.receivers = [];
    return queue;
}

const CONTROLS = {
    create: ({ queue, options }) => void queues.set(queue.toLowerCase(), make(options)),
    fault: ({ queue: name, kind, times }) => {
        const queue = name.toLowerCase();
        const isOther = (fault) => fault.queue !== queue || fault.kind !== kind;
        faults = [...faults.filter(isOther), { queue, kind, times }];
    },
    shift: ({ queue, ms }) => void (find(queue).queue.shiftMs = ms),
    expire: ({ queue }) => find(queue).queue.expireLocks(),
    counts: ({ queue }) => find(queue).queue.counts(),
    dead: ({ queue }) => find(queue).queue.dead.peek(0, Infinity).map(({ buried }) => buried.reason || ''),
    disconnect: () => connections.forEach(({ socket }) => socket.destroy()),
    clock: ({ ms }) => void (clockMs = ms),
    stats: () => ({ ...stats, connections: connections.size }),
};

const server = container.listen({ port: 0, host: '127.0.0.1' });
server.on('listening', () => process.stdout.write(`${server.address().port}\n`));
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', (line) => {
    let answer;
    try {
        const command = JSON.parse(line);
        answer = { ok: CONTROLS[command.do](command) || {} };
    } catch (error) {
        answer = { error: error.message };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
});
lines.on('close', () => process.exit(0));
