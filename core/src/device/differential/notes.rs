//! The known differences, by name, and the operations that they explain.

use super::ops::{Bound, Key, MEMORIES, Op, Range, Side, Work};
use super::world::{Outcome, Received};
use crate::device::{DeviceErrorKind, WcStatus};

/// A difference that a `# Divergence` section tells.
pub(super) struct Note {
    pub(super) name: &'static str,
    /// The file with the section, and words of it.
    text: (&'static str, &'static str),
    explains: fn(&Case) -> bool,
}

/// The first WR whose end differs, if any does.
struct Case<'a> {
    side: Side,
    works: &'a [Work],
    first: Option<(Work, Option<WcStatus>, Option<WcStatus>)>,
    start: Bound,
    /// Just before that WR.
    bound: Bound,
    /// On the software device.
    a: &'a Outcome,
    b: &'a Outcome,
}

const PROFILE: &str = include_str!("../sim/profile.rs");
const NO_SUCH_KEY: &str = "an lkey that no MR has";
const SIM: &str = include_str!("../sim/mod.rs");

pub(super) const NOTES: [Note; 8] = [
    Note {
        name: "window bounds are not enforced",
        text: (PROFILE, "the bounds of a window are not enforced"),
        explains: |c| match c.first {
            Some((work, Some(WcStatus::RemAccessErr), Some(WcStatus::Success))) => {
                c.outside_window(work)
            }
            _ => false,
        },
    },
    Note {
        name: "a window is bound onto an MR of another PD",
        text: (PROFILE, "a window can be bound onto an MR of another PD"),
        explains: |c| {
            let other_pd = MEMORIES.len() - 1;
            matches!(c.first,
                Some((Work::Bind { onto, .. }, Some(WcStatus::MwBindErr), Some(WcStatus::Success)))
                if onto.memory == other_pd)
        },
    },
    Note {
        name: "a message longer than the receive",
        text: (PROFILE, "a message longer than the receive ends in a remote operation error"),
        explains: |c| {
            matches!(
                c.first,
                Some((Work::Send(_), Some(WcStatus::RemInvReqErr), Some(WcStatus::RemOpErr)))
            )
        },
    },
    Note {
        name: "the sink of a READ is checked last",
        text: (PROFILE, "the sink of a READ is checked when the answer arrives"),
        explains: |c| {
            matches!(
                c.first,
                Some((Work::Read { .. }, Some(WcStatus::LocProtErr), Some(WcStatus::RemAccessErr)))
            )
        },
    },
    Note {
        name: NO_SUCH_KEY,
        text: (PROFILE, "a WR under an lkey that no MR has ends in a local QP operation error"),
        explains: |c| {
            matches!(c.first, Some((
                Work::Write { from, .. } | Work::Send(from),
                Some(WcStatus::LocProtErr),
                Some(WcStatus::LocQpOpErr),
            )) if from.bad_key)
        },
    },
    Note {
        name: "a peer invalidates a window of another QP",
        text: (PROFILE, "a peer can invalidate a window that is bound on another QP"),
        explains: |c| {
            let statuses =
                |o: &Outcome| -> Vec<_> { o.receives.iter().map(|r| r.status).collect() };
            c.works.iter().any(|w| match w {
                Work::SendInv(Key::Window(i)) => {
                    c.start[*i].is_some_and(|(side, _)| side != Side::Owner)
                }
                _ => false,
            }) && statuses(c.a) == [WcStatus::RemInvReqErr]
                && statuses(c.b) == [WcStatus::Success]
        },
    },
    Note {
        name: "a refused SEND_WITH_INV delivers bytes",
        text: (SIM, "SEND_WITH_INV whose key is refused delivers no byte"),
        explains: |c| {
            let same = Outcome { bytes: c.a.bytes, ..c.b.clone() } == *c.a;
            let refused = c.a.receives.iter().any(|r| r.status == WcStatus::RemInvReqErr);
            same && refused && c.works.iter().any(|w| matches!(w, Work::SendInv(_)))
        },
    },
    Note {
        name: "an invalidation that could harm the kernel is refused when posted",
        text: (SIM, "LOCAL_INV of a key that is not bound on the QP is accepted and fails"),
        explains: |c| {
            c.b.refused == Some((0, DeviceErrorKind::Invalid))
                && c.a.refused.is_none()
                && c.invalidates_what_is_not_bound()
        },
    },
];

/// The note that explains why `a`, on the software device, and `b` differ.
pub(super) fn explain(op: &Op, bound: Bound, a: &Outcome, b: &Outcome) -> Option<&'static Note> {
    let Op::Post(side, works) = op else { return None };
    let place = a.sends.iter().zip(&b.sends).position(|(a, b)| a != b);
    let mut before = bound;
    for work in &works[..place.unwrap_or(0)] {
        step(&mut before, *side, work);
    }
    let first = place.map(|i| (works[i], a.sends[i], b.sends[i]));
    let case = Case { side: *side, works, first, start: bound, bound: before, a, b };
    NOTES.iter().find(|note| (note.explains)(&case))
}

/// The note that explains why receives ended differently, in the post that failed with them.
pub(super) fn explain_receives(a: &[Received], b: &[Received]) -> Option<&'static Note> {
    let no_such_key = |(a, b): (&Received, &Received)| {
        a == b || (a.status, b.status) == (WcStatus::LocProtErr, WcStatus::LocQpOpErr)
    };
    let all = a.len() == b.len() && a.iter().zip(b).all(no_such_key);
    if all { NOTES.iter().find(|n| n.name == NO_SUCH_KEY) } else { None }
}

impl Case<'_> {
    /// Whether the access is outside the window that it names, and inside the parent.
    fn outside_window(&self, work: Work) -> bool {
        let (Work::Write { key, to: at, .. } | Work::Read { key, from: at, .. }) = work else {
            return false;
        };
        let Key::Window(i) = key else { return false };
        let Some((_, window)) = self.bound[i] else { return false };
        let end = |r: Range| r.offset + i64::from(r.len);
        let whole = Range { offset: 0, len: MEMORIES[0].0 as u32, ..window };
        let within = |r: Range| at.offset >= r.offset && end(at) <= end(r);
        window.memory == at.memory && within(whole) && !within(window)
    }

    fn invalidates_what_is_not_bound(&self) -> bool {
        let mut bound = self.bound;
        self.works.iter().any(|work| {
            let good = match work {
                Work::Inv(Key::Window(i)) => bound[*i].is_some_and(|(side, _)| side == self.side),
                Work::Inv(_) => false,
                _ => true,
            };
            step(&mut bound, self.side, work);
            !good
        })
    }
}

fn step(bound: &mut Bound, side: Side, work: &Work) {
    match work {
        Work::Bind { window, onto, .. } => bound[*window] = Some((side, *onto)),
        Work::Inv(Key::Window(i)) | Work::SendInv(Key::Window(i)) => bound[*i] = None,
        _ => {}
    }
}

#[test]
fn every_note_is_told_in_a_section_on_divergence() {
    for Note { name, text: (file, words), .. } in &NOTES {
        let joined: Vec<_> = file.lines().map(|l| l.trim_start_matches(['/', '!', ' '])).collect();
        let joined = joined.join(" ");
        let at = joined.find(words).unwrap_or_else(|| panic!("{name}: the words are gone"));
        assert!(joined[..at].contains("# Divergence"), "{name}");
    }
}
