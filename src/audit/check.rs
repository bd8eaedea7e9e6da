//! What the evidence in a trace proves, and where a claim goes beyond it.

use super::line::{Event, KeyName, Line, TraceError, parse};
use std::collections::BTreeMap;

/// The life of one key: one registration of one region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyLife {
    /// The region.
    pub region: u64,
    /// Index and turn of the key.
    pub key: String,
    /// The exposure that it opened.
    pub exposure: u64,
    /// The WR that granted it; none if a verb did.
    pub granted_by: Option<u64>,
    /// The LOCAL_INV that was posted for it.
    pub invalidated_by: Option<u64>,
    /// The rule by which it ended, as claimed.
    pub rule: Option<String>,
    /// Sequence of the line that proves the end.
    pub evidence: Option<u64>,
    granted_at: u64,
    qp_bound: bool,
    unknown: bool,
    refused: Option<u64>,
    remote_inv: Option<u64>,
    ended: Option<u64>,
}

/// A claim that the evidence does not bear out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Sequence of the line that claims it.
    pub seq: u64,
    /// What is wrong.
    pub what: String,
}

/// What an audit found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// Lines read.
    pub lines: usize,
    /// Whether the trace starts with the transport: else earlier lines were dropped, and nothing is
    /// said of keys that were granted in them.
    pub complete: bool,
    /// Every key that the trace shows being granted, in that order.
    pub keys: Vec<KeyLife>,
    /// Keys that are live at the end.
    pub live: usize,
    /// Exposures whose bytes went back.
    pub exposures_back: usize,
    /// Empty if the trace is safe.
    pub violations: Vec<Violation>,
}

/// Audits the text of a trace.
///
/// # Errors
/// [`TraceError`] if it is not one; what is wrong *in* a trace is in [`Audit::violations`].
pub fn audit(text: &str) -> Result<Audit, TraceError> {
    let (promised, lines) = parse(text)?;
    let mut checker = Checker::default();
    checker.audit.complete = lines.first().is_none_or(|l| l.seq == 0);
    checker.audit.lines = lines.len();
    let mut expected = lines.first().map(|l| l.seq);
    for line in &lines {
        match expected {
            Some(seq) if seq == line.seq => {}
            Some(seq) => checker.wrong(line, format!("line {seq} is missing")),
            None => checker.wrong(line, "no line follows the last number there is".to_owned()),
        }
        expected = line.seq.checked_add(1);
        checker.take(line);
    }
    if promised != lines.len() {
        let what = format!(
            "the header promises {promised} lines, {} are here: cut off or put together?",
            lines.len()
        );
        let seq = lines.last().map_or(0, |l| l.seq);
        checker.audit.violations.push(Violation { seq, what });
    }
    checker.audit.live = checker.open.len();
    Ok(checker.audit)
}

#[derive(Default)]
struct Checker {
    audit: Audit,
    /// Live keys, by name: index into `audit.keys`.
    open: BTreeMap<KeyName, usize>,
    /// Completions of the current QP: sequence of the WR, success, sequence of the line.
    completed: Vec<(u64, bool, u64)>,
    /// Line of the last destroyed QP.
    qp_destroyed: Option<u64>,
}

/// A WR's cookie: connection epoch (16 bits), queue (8), place in post order (40).
fn epoch_and_place(wr: u64) -> (u64, u64) {
    (wr >> 48, wr & ((1 << 40) - 1))
}

impl Checker {
    fn wrong(&mut self, line: &Line, what: String) {
        self.audit.violations.push(Violation { seq: line.seq, what });
    }

    fn take(&mut self, line: &Line) {
        match (&line.key, &line.event) {
            (None, event) => self.connection(line, event),
            (Some(key), Event::Granted { exposure, wr, qp_bound }) => {
                self.granted(
                    line,
                    key,
                    KeyLife {
                        exposure: *exposure,
                        granted_by: *wr,
                        qp_bound: *qp_bound,
                        ..KeyLife::default()
                    },
                );
            }
            (Some(key), event) => {
                let Some(&i) = self.open.get(key) else {
                    // Evidence about a key whose grant was dropped proves nothing and harms
                    // nothing.
                    if self.audit.complete && !matches!(event, Event::Ended) {
                        self.wrong(line, format!("{event:?} of key {} that is not live", key.key));
                    }
                    return;
                };
                self.of_key(line, key, i, event);
            }
        }
    }

    /// Rule 2: a region is registered again only when its last key is dead.
    fn granted(&mut self, line: &Line, key: &KeyName, life: KeyLife) {
        let other = self.open.keys().find(|k| k.region == key.region).cloned();
        if let Some(other) = other {
            let what = format!("key {} granted while {} is live", key.key, other.key);
            self.wrong(line, what);
        }
        self.audit.keys.push(KeyLife {
            region: key.region,
            key: key.key.clone(),
            granted_at: line.seq,
            ..life
        });
        self.open.insert(key.clone(), self.audit.keys.len() - 1);
    }

    fn of_key(&mut self, line: &Line, key: &KeyName, i: usize, event: &Event) {
        let life = &mut self.audit.keys[i];
        match event {
            Event::Unknown => life.unknown = true,
            Event::InvPosted { wr } => life.invalidated_by = Some(*wr),
            Event::Refused { wr } => {
                life.refused = Some(*wr);
                if life.invalidated_by == Some(*wr) {
                    life.invalidated_by = None;
                }
            }
            Event::RemoteInv => life.remote_inv = Some(line.seq),
            Event::Ended => life.ended = Some(line.seq),
            Event::Killed { rule } => {
                life.rule = Some(rule.clone());
                match self.proof(i, rule, line.seq) {
                    Ok(seq) => self.audit.keys[i].evidence = Some(seq),
                    Err(what) => {
                        let what = format!("key {} killed by {rule}: {what}", key.key);
                        self.wrong(line, what);
                    }
                }
                self.open.remove(key);
            }
            _ => {}
        }
    }

    /// The line that proves the death of a key by a rule.
    fn proof(&self, i: usize, rule: &str, seq: u64) -> Result<u64, &'static str> {
        let life = &self.audit.keys[i];
        match rule {
            "local-inv" if life.unknown => Err("a flushed key ends by dereg only (rule 3)"),
            "local-inv" => {
                let wr = life.invalidated_by.ok_or("no LOCAL_INV was accepted for it")?;
                self.success(wr).ok_or("no completion proves its LOCAL_INV")
            }
            "remote-inv" => life.remote_inv.ok_or("no receive says so"),
            "dereg" | "dealloc" => life.ended.ok_or("no verb ended it"),
            "qp-destroyed" if !life.qp_bound => Err("it is good in its whole PD (rule 4)"),
            "qp-destroyed" => self
                .qp_destroyed
                .filter(|&at| at > life.granted_at)
                .ok_or("its QP was not destroyed"),
            "never-posted" if life.refused.is_some() && life.refused == life.granted_by => Ok(seq),
            "never-posted" => Err("the device accepted its registration"),
            // The strategy that trusts its peer: the key is the arena's, no longer the exposure's.
            "bounce-released" if life.granted_by.is_none() => Ok(seq),
            "bounce-released" => Err("it is no part of an arena"),
            _ => Err("there is no such rule"),
        }
    }

    /// A WR succeeded if it, or a later one of its queue, completed well. A later one that
    /// completed badly proves nothing here: this one's own error may be what was lost.
    fn success(&self, wr: u64) -> Option<u64> {
        let (epoch, place) = epoch_and_place(wr);
        let hit = self.completed.iter().find(|(w, ok, _)| {
            let (e, p) = epoch_and_place(*w);
            e == epoch && p >= place && *ok
        });
        hit.map(|(_, _, seq)| *seq)
    }

    fn connection(&mut self, line: &Line, event: &Event) {
        match event {
            Event::Completed { wr, status } => {
                self.completed.push((*wr, *status == 0, line.seq));
            }
            Event::QpUp { .. } => {
                // Rule 4: no new QP beside a key that is not dead.
                if let Some(key) = self.open.keys().next().cloned() {
                    self.wrong(line, format!("new QP while key {} is live", key.key));
                }
                self.completed.clear();
            }
            Event::QpDestroyed { .. } => self.qp_destroyed = Some(line.seq),
            Event::BytesBack { exposure } => {
                let keys = &self.audit.keys;
                let live = self.open.iter().find(|(_, i)| keys[**i].exposure == *exposure);
                if let Some((key, _)) = live {
                    let what = format!("bytes given back while key {} is live", key.key);
                    self.wrong(line, what);
                }
                self.audit.exposures_back += 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Audit {
        let body: Vec<String> =
            lines.iter().enumerate().map(|(i, l)| format!("{i} 0 {l}")).collect();
        audit(&format!("memreg-trace 1 lines={}\n{}\n", body.len(), body.join("\n"))).unwrap()
    }

    const GRANT: &str = "granted region=1 key=0x1.1 exposure=9 wr=5";
    const INV: &str = "inv-posted region=1 key=0x1.1 wr=6";

    #[test]
    fn a_normal_life_is_safe_and_names_its_proof() {
        let kill = "killed region=1 key=0x1.1 rule=local-inv";
        let a = of(&[GRANT, INV, "completed wr=6 status=0", kill, "bytes-back exposure=9"]);
        assert_eq!(a.violations, []);
        assert_eq!((a.keys[0].evidence, a.live, a.exposures_back), (Some(2), 0, 1));
    }

    #[test]
    fn a_later_success_proves_an_earlier_wr_and_a_later_error_does_not() {
        let kill = "killed region=1 key=0x1.1 rule=local-inv";
        assert_eq!(of(&[GRANT, INV, "completed wr=7 status=0", kill]).violations, []);
        assert_eq!(of(&[GRANT, INV, "completed wr=7 status=5", kill]).violations.len(), 1);
    }

    #[test]
    fn claims_beyond_the_evidence_are_named() {
        let local = "killed region=1 key=0x1.1 rule=local-inv";
        let cases: [(&[&str], &str); 13] = [
            (&[GRANT, "bytes-back exposure=9"], "bytes given back while key"),
            (&[GRANT, local], "no LOCAL_INV was accepted"),
            (&[GRANT, INV, local], "no completion proves"),
            (&[GRANT, INV, "completed wr=6 status=5", local], "no completion proves"),
            (&[GRANT, INV, "completed wr=5 status=0", local], "no completion proves"),
            (&[GRANT, INV, "completed wr=281474976710662 status=0", local], "no completion"),
            (
                &[GRANT, INV, "unknown region=1 key=0x1.1", "completed wr=9 status=0", local],
                "a flushed key ends by dereg only",
            ),
            (&[GRANT, "killed region=1 key=0x1.1 rule=remote-inv"], "no receive says so"),
            (&[GRANT, "killed region=1 key=0x1.1 rule=dereg"], "no verb ended it"),
            (&[GRANT, "killed region=1 key=0x1.1 rule=never-posted"], "accepted its registration"),
            (&[GRANT, "granted region=1 key=0x1.2 exposure=3 wr=8"], "granted while 0x1.1 is live"),
            (&[GRANT, "qp-up qp=2 epoch=2"], "new QP while key"),
            (
                &[GRANT, "qp-destroyed qp=1", "killed region=1 key=0x1.1 rule=qp-destroyed"],
                "good in its whole PD",
            ),
        ];
        for (lines, expected) in cases {
            let a = of(lines);
            assert_eq!(a.violations.len(), 1, "{lines:?}: {:?}", a.violations);
            assert!(a.violations[0].what.contains(expected), "{:?}", a.violations);
        }
    }

    #[test]
    fn a_key_of_its_qp_alone_ends_with_the_qp() {
        let grant = "granted region=1 key=0x1.1 exposure=9 wr=5 scope=qp";
        let kill = "killed region=1 key=0x1.1 rule=qp-destroyed";
        let a = of(&[grant, "qp-destroyed qp=1", kill, "bytes-back exposure=9"]);
        assert_eq!((a.violations.len(), a.keys[0].evidence), (0, Some(1)));
        assert_eq!(of(&[grant, kill, "qp-destroyed qp=1"]).violations.len(), 1);
    }

    #[test]
    fn a_refused_invalidation_proves_nothing() {
        let refused = "refused region=1 key=0x1.1 wr=6";
        let kill = "killed region=1 key=0x1.1 rule=local-inv";
        let a = of(&[GRANT, INV, refused, "completed wr=7 status=0", kill]);
        assert_eq!(a.violations.len(), 1);
    }

    #[test]
    fn missing_lines_are_seen_and_a_cut_start_is_said() {
        let a = audit("memreg-trace 1 lines=2\n5 0 qp-up qp=1 epoch=1\n7 0 qp-destroyed qp=1\n");
        let a = a.unwrap();
        assert!(!a.complete);
        assert_eq!(a.violations[0].what, "line 6 is missing");
    }

    #[test]
    fn nothing_follows_the_last_number_there_is() {
        let last = format!("{} 0 qp-up qp=1 epoch=1", u64::MAX);
        let a = audit(&format!("memreg-trace 1 lines=1\n{last}\n")).unwrap();
        assert_eq!(a.violations, []);
        let a = audit(&format!("memreg-trace 1 lines=2\n{last}\n0 0 qp-destroyed qp=1\n"));
        assert_eq!(a.unwrap().violations[0].what, "no line follows the last number there is");
    }

    #[test]
    fn a_trace_that_was_cut_off_is_not_safe() {
        let a = audit("memreg-trace 1 lines=2\n0 0 qp-up qp=1 epoch=1\n").unwrap();
        assert!(a.violations[0].what.contains("promises 2 lines, 1 are here"), "{a}");
    }
}
