//! The committed corpora, replayed: whatever a fuzzer once found stays found.

use std::path::Path;

#[test]
fn every_input_of_every_corpus_holds() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, check) in quell_fuzz::CHECKS {
        let files: Vec<_> = std::fs::read_dir(corpora.join(name)).unwrap().collect();
        assert!(files.len() >= 3, "the corpus of {name} has {} inputs", files.len());
        for file in files {
            check(&std::fs::read(file.unwrap().path()).unwrap());
        }
    }
}
