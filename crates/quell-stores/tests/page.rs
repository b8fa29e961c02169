//! docs/conformance.md shows every test of the suite on every store. The stores' own tests run the
//! suite, so the page need not: it is compared with what passing tests mean.

use quell_stores::{Kind, page, root};

#[tokio::test]
async fn the_page_is_what_the_suite_says() {
    let root = root().unwrap();
    let mut reports = Vec::new();
    for kind in Kind::ALL {
        reports.push(kind.expected().await);
    }
    let written = std::fs::read_to_string(root.join(page::PLACE)).unwrap();
    let today = page::page(&root, &reports).unwrap();
    let differing = today.lines().zip(written.lines()).find(|(today, written)| today != written);
    assert!(
        today == written,
        "docs/conformance.md is out of date, run `cargo xtask conformance`: {differing:#?}"
    );
}

#[test]
fn each_stores_tests_run_the_suite() {
    let root = root().unwrap();
    for kind in Kind::ALL {
        let text = std::fs::read_to_string(root.join(kind.tests())).unwrap();
        let runs = ["quell_conformance::suite!(", "quell_conformance::prove!("];
        assert!(runs.iter().any(|run| text.contains(run)), "{}: {}", kind.name(), kind.tests());
    }
}
