//! The nearest valid name of a misspelt one.

/// The known name that `given` most likely stands for, if any is close.
///
/// Case and the choice of `-` or `_` do not count. Of equally close names the first wins.
pub(crate) fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for name in known {
        if let Some(distance) = distance(given, name)
            && best.is_none_or(|(least, _)| distance < least)
        {
            best = Some((distance, name));
        }
    }
    best.map(|(_, name)| name)
}

/// As [`nearest`] for key paths: a key under the wrong section, or under none, also counts as
/// close.
pub(crate) fn nearest_path<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let by_path = nearest(given, known.clone());
    by_path.or_else(|| {
        let last = last_segment(given);
        let name = nearest(last, known.clone().into_iter().map(last_segment))?;
        known.into_iter().find(|path| last_segment(path) == name)
    })
}

/// Edits between the two, or `None` if there are too many for a misspelling.
fn distance(given: &str, name: &str) -> Option<usize> {
    if given.len() > LONGEST {
        return None;
    }
    let edits = strsim::damerau_levenshtein(&plain(given), &plain(name));
    let few = (given.chars().count() / 3).clamp(1, 4);
    (edits <= few).then_some(edits)
}

fn plain(s: &str) -> String {
    s.to_lowercase().replace('-', "_")
}

fn last_segment(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// A longer text is no misspelling, and the distance costs the product of the lengths.
const LONGEST: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_and_far_ones() {
        let known = ["queues.credits", "queues.backchannel", "device.name", "strategy.name"];
        for (given, near) in [
            ("queues.credit", Some("queues.credits")),
            ("Queues.Credits", Some("queues.credits")),
            ("credits", Some("queues.credits")),
            ("queue.credits", Some("queues.credits")),
            ("memory.backchanel", Some("queues.backchannel")),
            ("name", Some("device.name")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest_path(given, known), near, "{given}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), known), None);
    }
}
