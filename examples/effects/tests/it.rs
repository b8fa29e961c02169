//! The program prints what its page shows: one charge, wherever the worker dies.

use std::process::Command;

#[test]
fn r23_the_program_prints_what_the_readme_shows() {
    let output = Command::new(env!("CARGO_BIN_EXE_quell-example-effects")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let readme = include_str!("../README.md");
    assert!(readme.contains(&format!("effects\n{printed}```")), "it prints:\n{printed}");
}
