//! Text that claims to be a trace of the fence ledger.

use memreg::audit::audit;

/// Any text is audited or refused, and what is found can be printed. A trace that was safe is not
/// when its last line is cut off, and one with a line of nonsense in it is none.
pub fn trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let found = match audit(&text) {
        Ok(found) => found,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            return;
        }
    };
    let shown = found.to_string();
    assert_eq!(shown.starts_with("safe"), found.violations.is_empty());
    assert!(found.live <= found.keys.len() && found.lines <= text.lines().count());
    for key in &found.keys {
        assert!(!key.to_string().is_empty());
        assert!(key.evidence.is_none() || key.rule.is_some(), "proven without a claim");
    }
    if found.lines > 0 && found.violations.is_empty() {
        let end = text.trim_end().rfind('\n').expect("a header and a line");
        let kept = &text[..=end];
        let cut = audit(kept).expect("every line was one");
        assert!(!cut.violations.is_empty(), "a trace that was cut passes as safe:\n{kept}");
    }
    assert!(audit(&format!("{text}\nnonsense\n")).is_err());
}
