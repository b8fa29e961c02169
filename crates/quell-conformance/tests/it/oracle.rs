//! The oracle itself: a difference is found, made short, and tried first from then on.

use quell_conformance::bugs::{Bug, Buggy};
use quell_conformance::{Rig, oracle};

use crate::{open, opened};

async fn forgetful() -> quell_conformance::Opened {
    opened(Buggy::unrecorded(Bug::named("ForgetsMaxTriggers").unwrap(), Rig::START))
}

#[test]
fn a_difference_is_made_short_and_its_seed_is_tried_again_first() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.txt");
    // For as long as the process lives, which is what the runner asks for.
    let path: &'static str = Box::leak(kept.display().to_string().into_boxed_str());
    let failure = oracle::run(forgetful, oracle::COUNTED, 2_000, Some(path)).unwrap_err();
    let operations = failure.matches("Enqueue").count();
    assert!((1..=4).contains(&operations), "it is not short: {failure}");
    assert!(std::fs::read_to_string(&kept).unwrap().contains("\ncc "), "its seed is kept");
    assert!(oracle::run(forgetful, oracle::COUNTED, 1, Some(path)).is_err(), "it is tried again");
    assert!(
        oracle::run(open, oracle::COUNTED, 1, Some(path)).is_ok(),
        "and holds once it is fixed"
    );
}

async fn away() -> quell_conformance::Opened {
    panic!("there is no server")
}

#[test]
fn a_store_that_cannot_be_opened_leaves_no_seed_to_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.txt");
    let path: &'static str = Box::leak(kept.display().to_string().into_boxed_str());
    let ran = std::panic::catch_unwind(|| oracle::run(away, oracle::COUNTED, 2, Some(path)));
    assert!(ran.is_err(), "it says why");
    assert!(!kept.exists(), "no script is to blame");
}
