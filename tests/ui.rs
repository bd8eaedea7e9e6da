//! What must not compile: one promise a file in `tests/ui`, each with the compiler's answer.

#[test]
fn ui() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
