//! MessagePack for the scripts: what they read as arrays, strings and numbers.

use rmp::encode::{write_array_len, write_bool, write_sint, write_str_len};

/// One value of a request.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Text(Vec<u8>),
    Number(i64),
    Flag(bool),
    List(Vec<Item>),
}

impl From<&str> for Item {
    fn from(text: &str) -> Self {
        Item::Text(text.as_bytes().to_vec())
    }
}

impl From<String> for Item {
    fn from(text: String) -> Self {
        Item::Text(text.into_bytes())
    }
}

impl From<Vec<u8>> for Item {
    fn from(bytes: Vec<u8>) -> Self {
        Item::Text(bytes)
    }
}

impl From<i64> for Item {
    fn from(number: i64) -> Self {
        Item::Number(number)
    }
}

impl From<usize> for Item {
    /// Counts beyond what Redis takes as an integer mean all of them.
    fn from(number: usize) -> Self {
        Item::Number(u32::try_from(number).unwrap_or(u32::MAX).into())
    }
}

impl From<bool> for Item {
    fn from(flag: bool) -> Self {
        Item::Flag(flag)
    }
}

impl Item {
    /// Stands for what is not there: MessagePack's nil would end an array of Lua.
    pub(crate) const NOTHING: Item = Item::Flag(false);

    /// A number that is not below zero; scripts know none beyond 2^63.
    pub(crate) fn from_count(count: u64) -> Self {
        Item::Number(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

/// A list of values of several kinds.
macro_rules! list {
    ($($item:expr),* $(,)?) => { $crate::pack::Item::List(vec![$($crate::pack::Item::from($item)),*]) };
}
pub(crate) use list;

/// A list as the scripts unpack it.
pub(crate) fn pack(items: &[Item]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_list(&mut bytes, items);
    bytes
}

fn write_list(bytes: &mut Vec<u8>, items: &[Item]) {
    // Writing to memory does not fail.
    let _written = write_array_len(bytes, length(items.len()));
    for item in items {
        match item {
            Item::Text(text) => {
                let _written = write_str_len(bytes, length(text.len()));
                bytes.extend_from_slice(text);
            }
            Item::Number(number) => {
                let _written = write_sint(bytes, *number);
            }
            Item::Flag(flag) => {
                let _written = write_bool(bytes, *flag);
            }
            Item::List(items) => write_list(bytes, items),
        }
    }
}

/// No request comes near to 4 GiB: payloads and batches have limits far below.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
