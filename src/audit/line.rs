//! One line of a trace into one event.

/// What a line says happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Granted { exposure: u64, wr: Option<u64>, qp_bound: bool },
    Unknown,
    Killed { rule: String },
    InvPosted { wr: u64 },
    Refused { wr: u64 },
    RemoteInv,
    Ended,
    Completed { wr: u64, status: u32 },
    QpUp { qp: u32 },
    QpDestroyed { qp: u32 },
    BytesBack { exposure: u64 },
}

/// A key, as a trace names it: region, and the key's index and turn. The tag is never shown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct KeyName {
    pub(super) region: u64,
    pub(super) key: String,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line {
    pub(super) seq: u64,
    pub(super) at: u64,
    pub(super) key: Option<KeyName>,
    pub(super) event: Event,
}

/// A text that is not a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The first line does not name the format.
    #[error("not a trace: the first line must be `memreg-trace 1 lines=N`")]
    Header,
    /// A line cannot be read.
    #[error("line {line}: {what}")]
    Line {
        /// Counts from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// Reads a whole trace: how many lines its header promises, and the lines.
pub(super) fn parse(text: &str) -> Result<(usize, Vec<Line>), TraceError> {
    let mut lines = text.lines().enumerate();
    let header = lines.next().and_then(|(_, l)| l.strip_prefix("memreg-trace 1 lines="));
    let promised = header.and_then(|n| n.parse().ok()).ok_or(TraceError::Header)?;
    let at = |(i, what)| TraceError::Line { line: i + 1, what };
    let lines = lines
        .filter(|(_, l)| !l.is_empty())
        .map(|(i, l)| one(l).map_err(|what| at((i, what))))
        .collect::<Result<_, _>>()?;
    Ok((promised, lines))
}

fn one(text: &str) -> Result<Line, String> {
    let mut words = text.split_ascii_whitespace();
    let seq = number(words.next(), "sequence")?;
    let at = number(words.next(), "time")?;
    let name = words.next().ok_or("no event")?;
    let fields: Vec<(&str, &str)> = words
        .map(|w| w.split_once('=').ok_or_else(|| format!("`{w}` is not name=value")))
        .collect::<Result<_, _>>()?;
    let field = |name: &str| fields.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    let need = |name: &str| field(name).ok_or_else(|| format!("no {name}"));
    let num = |name: &str| number(field(name), name);
    let event = match name {
        "granted" => {
            let wr = field("wr").map(|v| number(Some(v), "wr")).transpose()?;
            let qp_bound = match field("scope") {
                None => false,
                Some("qp") => true,
                Some(other) => return Err(format!("unknown scope `{other}`")),
            };
            Event::Granted { exposure: num("exposure")?, wr, qp_bound }
        }
        "unknown" => Event::Unknown,
        "killed" => Event::Killed { rule: need("rule")?.to_owned() },
        "inv-posted" => Event::InvPosted { wr: num("wr")? },
        "refused" => Event::Refused { wr: num("wr")? },
        "remote-inv" => Event::RemoteInv,
        "ended" => Event::Ended,
        "completed" => Event::Completed { wr: num("wr")?, status: small(num("status")?)? },
        "qp-up" => Event::QpUp { qp: small(num("qp")?)? },
        "qp-destroyed" => Event::QpDestroyed { qp: small(num("qp")?)? },
        "bytes-back" => Event::BytesBack { exposure: num("exposure")? },
        other => return Err(format!("unknown event `{other}`")),
    };
    let key = match (field("region"), field("key")) {
        (Some(r), Some(k)) => {
            Some(KeyName { region: number(Some(r), "region")?, key: k.to_owned() })
        }
        (None, None) => None,
        _ => return Err("region and key go together".to_owned()),
    };
    let of_key = !matches!(
        event,
        Event::Completed { .. }
            | Event::QpUp { .. }
            | Event::QpDestroyed { .. }
            | Event::BytesBack { .. }
    );
    if of_key != key.is_some() {
        return Err(format!("`{name}` {} a key", if of_key { "needs" } else { "is not about" }));
    }
    Ok(Line { seq, at, key, event })
}

fn number(text: Option<&str>, what: &str) -> Result<u64, String> {
    let text = text.ok_or_else(|| format!("no {what}"))?;
    text.parse().map_err(|_| format!("{what} `{text}` is not a whole number"))
}

fn small(n: u64) -> Result<u32, String> {
    u32::try_from(n).map_err(|_| format!("{n} is more than 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_damage_names_its_line() {
        assert_eq!(parse(""), Err(TraceError::Header));
        assert_eq!(parse("memreg-trace 2 lines=0\n"), Err(TraceError::Header));
        assert_eq!(parse("memreg-trace 1 lines=x\n"), Err(TraceError::Header));
        for bad in [
            "x 0 qp-up qp=1",
            "0 0",
            "0 0 dance",
            "0 0 qp-up qp=99999999999",
            "0 0 qp-up qp",
            "0 0 granted exposure=1",
            "0 0 granted region=1 exposure=1",
            "0 0 granted region=1 key=0x1.1",
            "0 0 granted region=1 key=0x1.1 exposure=1 scope=pd",
            "0 0 qp-up qp=1 region=1 key=0x1.1",
            "0 0 killed region=1 key=0x1.1",
        ] {
            let text = format!("memreg-trace 1 lines=1\n{bad}\n");
            assert!(matches!(parse(&text), Err(TraceError::Line { line: 2, .. })), "{bad}");
        }
    }
}
