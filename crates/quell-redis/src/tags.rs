//! The hash tags of a queue's shards. CRC16 determines the slots, and maps names that differ in one
//! digit near each other: numbers alone would put both halves of a queue on the same master of two.
//! So each tag is chosen for its slot: every shard is in its own part of them, and masters with equal
//! ranges get equally many.

use quell_core::QueueName;

use crate::slots::SLOTS;

/// Tags that are tried for one shard; as many as there are shards take a try each on average.
const TRIES: u32 = 100_000;

/// The tags of a queue of `count` shards, in their order.
pub(crate) fn tags_of(queue: &QueueName, count: u32) -> Vec<String> {
    if count <= 1 {
        return vec![queue.to_string()];
    }
    (0..count).map(|turn| placed(queue, count, turn)).collect()
}

fn placed(queue: &QueueName, count: u32, turn: u32) -> String {
    let mut tags = (0..TRIES).map(|salt| format!("{queue}#{turn}.{salt}"));
    let part = |tag: &String| u32::from(slot(tag.as_bytes())) * count / u32::from(SLOTS);
    let is_in_place = |tag: &String| part(tag) == turn;
    tags.find(is_in_place).unwrap_or_else(|| format!("{queue}#{turn}"))
}

/// CRC16 as Redis has it (polynomial 0x1021, from 0), of all slots.
pub(crate) fn slot(tag: &[u8]) -> u16 {
    let shifted = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let crc = tag
        .iter()
        .fold(0_u16, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| shifted(crc)));
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // From the specification of Redis Cluster, and from CLUSTER KEYSLOT.
        for (key, of_redis) in [("123456789", 0x31c3), ("foo", 12_182), ("user1000", 3_443)] {
            assert_eq!(slot(key.as_bytes()), of_redis, "{key}");
        }
    }

    #[test]
    fn each_shard_of_a_queue_is_in_its_own_part_of_the_slots() {
        for name in ["default", "mail", "a", "queue-0", "x.y:z_0123456789-0123456789-0123456789"] {
            let queue = QueueName::new(name).unwrap();
            for count in 2..=64 {
                let tags = tags_of(&queue, count);
                let parts = tags
                    .iter()
                    .map(|tag| u32::from(slot(tag.as_bytes())) * count / u32::from(SLOTS));
                assert!(parts.eq(0..count), "{tags:?}");
            }
            assert_eq!(tags_of(&queue, 1), [name]);
        }
    }
}
