//! Sizes in bytes, with and without units.

/// Why a text is no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|h| format!(" (did you mean {h}?)")).unwrap_or_default())]
pub struct NoSize {
    /// What is wrong with it.
    pub message: &'static str,
    /// What was meant, if that can be told.
    pub hint: Option<String>,
}

/// Reads `4096`, `1MiB` or `1 MiB`: decimal digits, at most one space, and a unit. Case matters.
///
/// # Errors
/// [`NoSize`] for anything else, a fraction, a unit of doubtful spelling and more than 64 bits.
pub fn parse(text: &str) -> Result<u64, NoSize> {
    let fault = |message| NoSize { message, hint: None };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(fault(match text.as_bytes().first() {
            Some(b'-') => "is negative",
            Some(b' ') => "starts with a space",
            _ => "is not a size",
        }));
    }
    if unit.starts_with(['.', ',']) {
        return Err(fault("has a fraction; use a smaller unit"));
    }
    if number.len() > 1 && number.starts_with('0') {
        return Err(fault("has leading zeros"));
    }
    let factor = if unit.is_empty() {
        1
    } else {
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        known.map(|(_, factor)| *factor).ok_or_else(|| unknown_unit(number, unit))?
    };
    let number: Option<u64> = number.parse().ok();
    number.and_then(|n| n.checked_mul(factor)).ok_or_else(|| fault("is out of range"))
}

/// The size in the largest unit that divides it, such as `1 MiB`; `None` if that unit is the byte.
pub fn rounded(bytes: u64) -> Option<String> {
    let binary = UNITS.iter().rev().filter(|(_, factor)| factor.is_power_of_two() && *factor > 1);
    let (name, factor) = binary.into_iter().find(|(_, f)| bytes > 0 && bytes.is_multiple_of(*f))?;
    Some(format!("{} {name}", bytes / factor))
}

/// `B`, then powers of 1000, then powers of 1024. A bare `K`, `M` or `G` means either, so it is
/// refused.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

fn unknown_unit(number: &str, unit: &str) -> NoSize {
    let long = format!("{unit}B");
    let named = |name: &str| name.eq_ignore_ascii_case(unit) || name.eq_ignore_ascii_case(&long);
    if let Some((exact, _)) = UNITS.iter().find(|(name, _)| named(name)) {
        let number: String = number.chars().take(20).collect();
        let mut hint = format!("{number}{exact}");
        // A decimal unit in doubtful spelling may have been meant as the binary one.
        if let (2, Some(prefix)) = (exact.len(), exact.get(..1)) {
            hint = format!("{hint} or {number}{prefix}iB");
        }
        return NoSize { message: "has a unit that is not known", hint: Some(hint) };
    }
    NoSize { message: "has a unit that is not known", hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b108_units_are_exact() {
        for (text, bytes) in [
            ("4GB", 4_000_000_000),
            ("4GiB", 4 << 30),
            ("4 GiB", 4 << 30),
            ("4294967296", 4 << 30),
            ("0", 0),
            ("7B", 7),
            ("3KB", 3000),
            ("3KiB", 3072),
            ("2MB", 2_000_000),
            ("1TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn b108_doubtful_sizes_are_refused() {
        for (text, message, hint) in [
            ("4G", "has a unit that is not known", Some("4GB or 4GiB")),
            ("4gb", "has a unit that is not known", Some("4GB or 4GiB")),
            ("4gib", "has a unit that is not known", Some("4GiB")),
            ("4 KiBs", "has a unit that is not known", None),
            ("4  GiB", "has a unit that is not known", None),
            ("4GiB ", "has a unit that is not known", None),
            ("4 ", "has a unit that is not known", Some("4B")),
            (" 4GiB", "starts with a space", None),
            ("-1", "is negative", None),
            ("1.5GiB", "has a fraction; use a smaller unit", None),
            ("1,5GiB", "has a fraction; use a smaller unit", None),
            ("", "is not a size", None),
            ("GiB", "is not a size", None),
            ("+4", "is not a size", None),
            ("0x10", "has a unit that is not known", None),
            ("010", "has leading zeros", None),
            ("18446744073709551616", "is out of range", None),
            ("99999999999999999999999TiB", "is out of range", None),
            ("16777216TiB", "is out of range", None),
            ("4é", "has a unit that is not known", None),
        ] {
            let e = parse(text).unwrap_err();
            assert_eq!((e.message, e.hint.as_deref()), (message, hint), "{text}");
        }
    }

    #[test]
    fn rounding_never_loses_a_byte() {
        assert_eq!(rounded(1 << 20).as_deref(), Some("1 MiB"));
        assert_eq!(rounded(3 << 29).as_deref(), Some("1536 MiB"));
        assert_eq!(rounded((1 << 20) + 1), None);
        assert_eq!(rounded(0), None);
    }
}
