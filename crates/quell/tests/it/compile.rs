//! What the compiler says to a user whose handler has the wrong shape.

#[test]
fn a_wrong_handler_is_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
