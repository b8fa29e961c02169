use crate::*;
#[derive(Debug)]
pub struct MemoryStore;
