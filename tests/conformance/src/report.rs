//! What a run found.

use std::fmt;

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It held.
    Passed,
    /// It does not apply; the reason names the declared capability.
    Skipped(String),
    /// It did not hold; the text says what was expected and what happened.
    Failed(String),
}

/// The outcomes of one subject. `Display` is one line, and one more for each failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The subject's label.
    pub label: String,
    /// Each check with its outcome, in the order in which they ran.
    pub results: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Whether no check failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.results.iter().any(|(_, o)| matches!(o, Outcome::Failed(_)))
    }

    fn count(&self, which: fn(&Outcome) -> bool) -> usize {
        self.results.iter().filter(|(_, o)| which(o)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.count(|o| *o == Outcome::Passed);
        let skipped = self.count(|o| matches!(o, Outcome::Skipped(_)));
        write!(f, "conformance {}: {passed} passed, {skipped} skipped", self.label)?;
        let mut sep = " (";
        for (name, outcome) in &self.results {
            if let Outcome::Skipped(why) = outcome {
                write!(f, "{sep}{name}: {why}")?;
                sep = "; ";
            }
        }
        if skipped > 0 {
            f.write_str(")")?;
        }
        for (name, outcome) in &self.results {
            if let Outcome::Failed(what) = outcome {
                write!(f, "\nFAILED {name}: {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_and_one_for_each_failure() {
        let results = vec![
            ("a", Outcome::Passed),
            ("b", Outcome::Skipped("no x".into())),
            ("c", Outcome::Skipped("no y".into())),
        ];
        let mut r = Report { label: "l".into(), results };
        let line = "conformance l: 1 passed, 2 skipped (b: no x; c: no y)";
        assert_eq!(r.to_string(), line);
        assert!(r.passed());
        r.results.push(("d", Outcome::Failed("z".into())));
        assert_eq!(r.to_string(), format!("{line}\nFAILED d: z"));
        assert!(!r.passed());
    }
}
