//! The page in docs/ is what the suite says today.

use quell_stores::{Kind, page, root};

#[tokio::test]
async fn the_page_is_what_the_suite_says() {
    let root = root().unwrap();
    let mut reports = Vec::new();
    for kind in Kind::ALL {
        reports.push(kind.report().await);
    }
    let written = std::fs::read_to_string(root.join(page::PLACE)).unwrap();
    let today = page::page(&root, &reports).unwrap();
    let differing = today.lines().zip(written.lines()).find(|(today, written)| today != written);
    assert!(
        today == written,
        "docs/conformance.md is out of date, run `cargo xtask conformance`: {differing:#?}"
    );
}
