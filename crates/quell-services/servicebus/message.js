'use strict';
// Messages on the wire: the sections that the sender wrote pass unchanged, and the service's own header
// and annotations come before them.

const { message: codec, types } = require('rhea');

/** The format of a transfer whose data sections are messages. */
const BATCH = 0x80013700;
const SECTION = { header: 0x70, deliveryAnnotations: 0x71, annotations: 0x72, application: 0x74 };

/** Reads an encoded message; `due` is set where the sender scheduled it. */
function parse(bytes) {
    const decoded = codec.decode(bytes);
    const annotations = { ...decoded.message_annotations };
    const due = annotations['x-opt-scheduled-enqueue-time'];
    delete annotations['x-opt-scheduled-enqueue-time'];
    const message = {
        id: decoded.message_id,
        ttl: decoded.ttl,
        application: decoded.application_properties,
        annotations,
        sections: split(bytes),
    };
    return { message, due: due === undefined ? undefined : Number(due) };
}

/** The messages of a transfer: one, or a batch. */
function parseTransfer(bytes, format) {
    if (format !== BATCH) return [parse(bytes)];
    const { content, multiple } = codec.decode(bytes).body;
    return (multiple ? content : [content]).map(parse);
}

function split(bytes) {
    const reader = new types.Reader(bytes);
    const sections = [];
    while (reader.remaining()) {
        const start = reader.position;
        const code = Number(reader.read().descriptor.value);
        sections.push({ code, bytes: bytes.subarray(start, reader.position) });
    }
    return sections;
}

/** Encodes a message as a receiver gets it. */
function encode(message) {
    const annotations = {
        ...message.annotations,
        'x-opt-sequence-number': types.wrap_long(message.sequence),
        'x-opt-enqueued-time': types.wrap_timestamp(message.enqueued),
        'x-opt-message-state': types.wrap_int(message.due === undefined ? 0 : 2),
    };
    if (message.lock) annotations['x-opt-locked-until'] = types.wrap_timestamp(message.lock.until);
    if (message.due) annotations['x-opt-scheduled-enqueue-time'] = types.wrap_timestamp(message.announced);
    const header = { durable: true, delivery_count: Math.max(0, message.deliveries - 1) };
    if (message.ttl) header.ttl = message.ttl;
    const own = [SECTION.header, SECTION.deliveryAnnotations, SECTION.annotations];
    const sections = message.sections.filter(({ code }) => !own.includes(code));
    sections.push(section(SECTION.header, header));
    sections.push(section(SECTION.annotations, { message_annotations: annotations }));
    return Buffer.concat(withReasons(message, sections).sort(byCode).map(({ bytes }) => bytes));
}

const byCode = (one, other) => one.code - other.code;

/** Adds to a dead letter's application properties why it is one. */
function withReasons({ buried, application }, sections) {
    if (!buried) return sections;
    const reasons = { DeadLetterReason: buried.reason, DeadLetterErrorDescription: buried.description };
    const given = Object.entries(reasons).filter(([, text]) => typeof text === 'string');
    const fields = { application_properties: { ...application, ...Object.fromEntries(given) } };
    const others = sections.filter(({ code }) => code !== SECTION.application);
    return [...others, section(SECTION.application, fields)];
}

/** Encodes one section of these fields: the codec encodes whole messages. */
function section(wanted, fields) {
    return split(codec.encode({ ...fields, body: '' })).find(({ code }) => code === wanted);
}

/** A lock token as a GUID in network order: in delivery tags, the first three fields are little-endian. */
function swapGuid(bytes) {
    const order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    return Buffer.from(order.map((at) => bytes[at]));
}

// The codec drops the encoding of what it decodes; it is kept for the sections that pass unchanged.
const decode = codec.decode;
codec.decode = (bytes) => {
    const decoded = decode(bytes);
    Object.defineProperty(decoded, 'bytes', { value: bytes, enumerable: false });
    return decoded;
};

module.exports = { encode, parse, parseTransfer, swapGuid };
