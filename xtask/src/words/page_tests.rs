//! Pages with one thing wrong each, and pages that only look wrong.

use super::*;

fn lines_found(page: &str) -> Vec<(usize, String)> {
    let glossary = Glossary::parse("told | sent\nof which | the number\n").unwrap();
    let findings = findings(&glossary, page, true, false);
    findings.into_iter().map(|it| (it.line, it.what)).collect()
}

fn words(count: usize) -> String {
    vec!["word"; count].join(" ")
}

#[test]
fn listed_words_are_found_in_prose_headings_and_tables() {
    let table = [
        ("# It is told\n", 1),
        ("One.\n\nIt is\nTold.\n", 4),
        ("- one\n- told\n", 2),
        ("| what is told | b |\n| --- | --- |\n| c | d |\n", 1),
        ("| a | b |\n| --- | --- |\n| c | ten, of which two |\n", 3),
        ("a [told](x.md) link\n", 1),
    ];
    for (page, line) in table {
        let found = lines_found(page);
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [line], "{page}");
    }
}

#[test]
fn code_quotations_targets_and_tags_are_not_prose() {
    let table = [
        "`told` and ``a `told` b``\n",
        "```sh\ntold\n```\n",
        "1. item\n   ```sh\n   told\n   ```\n",
        "> told\n",
        "[a](told.md#told)\n",
        "<a id=\"told\"></a>a\n",
    ];
    for page in table {
        assert_eq!(lines_found(page), [], "{page}");
    }
}

#[test]
fn prose_after_code_is_read_again() {
    let found = lines_found("```sh\ncode\n```\ntold\n");
    assert_eq!(found, [(4, "`told`: write: sent".to_string())]);
}

#[test]
fn a_sentence_has_at_most_thirty_words() {
    let (fits, long) = (words(30), words(31));
    assert_eq!(lines_found(&format!("{fits}. {fits}! {fits}? (\"{fits}.\") {fits}\n")), []);
    let found = lines_found(&format!("Short.\n\n{fits}.\n{long}.\n"));
    let what = "a sentence of 31 words, at most 30: \"word word word word word word …\"";
    assert_eq!(found, [(4, what.to_string())]);
}

#[test]
fn bullets_cells_and_headings_end_a_sentence() {
    let half = words(20);
    let table = [
        format!("- {half}\n- {half}\n"),
        format!("{half}\n\n{half}\n"),
        format!("{half}\n1. {half}\n"),
        format!("| {half} | {half} |\n| {half} | {half} |\n"),
        format!("# {}\n{half}\n", words(40)),
        format!("| {} | a |\n| --- | --- |\n", words(40)),
    ];
    for page in table {
        assert_eq!(lines_found(&page), [], "{page}");
    }
}

#[test]
fn code_spans_and_links_count_as_the_words_that_are_seen() {
    let fits = words(28);
    assert_eq!(lines_found(&format!("{fits} `two. words`\n")), []);
    assert_eq!(lines_found(&format!("{fits} `three. more words`\n")).len(), 1);
    assert_eq!(lines_found(&format!("{fits} [two words](a/b c/d.md).\n")), []);
    assert_eq!(lines_found(&format!("{fits} [three more words](a.md).\n")).len(), 1);
    assert_eq!(lines_found(&format!("[{}.](a.md) {fits}\n", words(10))), []);
}

#[test]
fn a_rules_number_is_a_link_to_the_rule() {
    let wrong = ["An attempt (R21) ends.\n", "[R21](guide.md)\n", "| a |\n| --- |\n| R21 |\n"];
    for page in wrong {
        let found = lines_found(page);
        assert_eq!(found.len(), 1, "{page}");
        assert!(found[0].1.contains("[R21](semantics.md#r21)"), "{found:?}");
    }
    let right = [
        "([R21](semantics.md#r21))\n",
        "[R6–R8, R12](../docs/semantics.md)\n",
        "## What R21 means\n",
        "`R21` R43 R0 R121 AR21 R21a R\n",
    ];
    for page in right {
        assert_eq!(lines_found(page), [], "{page}");
    }
}

#[test]
fn other_pages_are_read_for_words_only() {
    let glossary = Glossary::parse("told | sent\n").unwrap();
    let page = format!("R21 {} told\n", words(40));
    assert_eq!(findings(&glossary, &page, false, false).len(), 1);
    assert_eq!(findings(&glossary, &page, true, true).len(), 2);
    assert_eq!(findings(&glossary, &page, true, false).len(), 3);
}
