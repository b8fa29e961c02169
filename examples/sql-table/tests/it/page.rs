//! The tutorial shows the code of this crate, and nothing else.

const PAGE: &str = include_str!("../../../../docs/write-a-store.md");
/// Where the code of the page stands.
const SOURCES: [&str; 2] = [include_str!("../../src/lib.rs"), include_str!("main.rs")];

/// The lines without their indentation, which the page does not keep.
fn flush_left(text: &str) -> String {
    text.lines().map(|line| line.trim_start().to_owned() + "\n").collect()
}

/// The blocks between fences, without the fences.
fn blocks(page: &str) -> Vec<String> {
    let (mut blocks, mut open) = (Vec::new(), None);
    for line in page.lines() {
        open = match (open, line.starts_with("```")) {
            (None, true) => Some(String::new()),
            (None, false) => None,
            (Some(block), true) => {
                blocks.push(block);
                None
            }
            (Some(block), false) => Some(block + line + "\n"),
        };
    }
    assert_eq!(open, None, "a block of the page has no end");
    blocks
}

#[test]
fn each_block_of_the_page_is_code_of_this_crate() {
    let blocks = blocks(PAGE);
    assert!(blocks.len() >= 10, "the page has {} blocks", blocks.len());
    let sources = SOURCES.map(flush_left);
    for block in blocks {
        let code = flush_left(&block);
        assert!(sources.iter().any(|source| source.contains(&code)), "not in a source:\n{block}");
    }
}

#[test]
fn the_page_shows_each_method_of_a_table() {
    for method in ["fn bounds", "fn now", "fn get", "fn range", "fn commit"] {
        assert!(blocks(PAGE).iter().any(|block| block.contains(method)), "{method} is missing");
    }
}
