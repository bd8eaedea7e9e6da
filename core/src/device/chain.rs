//! Work requests that are posted together.

use super::wr::{PageEntry, Sge, Span, Wr, WrOp};
use crate::types::{Access, DmaAddr, MrId, MwId, Segment, WrId};

/// WRs that are posted with one call, in order, and the side tables they point into.
///
/// Binds and invalidations of windows may stand at the front as runs: a run is what many WRs have
/// in common, said once, and what differs in a list.
///
/// # Cost
/// Reused: [`clear`](WrChain::clear) keeps the capacity, so a warmed-up chain allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct WrChain {
    /// They come before the single WRs.
    runs: Vec<Run>,
    /// Those of all runs.
    segments: Vec<Segment>,
    singles: Vec<Wr>,
    sges: Vec<Sge>,
    pages: Vec<PageEntry>,
    inline: Vec<u8>,
}

/// What the binds of a run have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bind {
    /// What the windows are bound onto.
    pub(crate) mr: MrId,
    /// Their rights.
    pub(crate) access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: WrId,
    count: usize,
    signaled: bool,
    bind: Option<Bind>,
}

/// WRs on windows in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRun<'a> {
    /// Cookie of the first WR; each next one's is one more.
    pub(crate) first: WrId,
    /// Whether the last WR is signaled; the others are not.
    pub(crate) signaled: bool,
    /// The key that each window gets or loses, and where it lies then.
    pub(crate) segments: &'a [Segment],
    /// `None`: invalidations.
    pub(crate) bind: Option<Bind>,
}

impl WindowRun<'_> {
    fn wrs(self) -> impl Iterator<Item = Wr> {
        let last = self.segments.len().saturating_sub(1);
        self.segments.iter().enumerate().map(move |(i, s)| Wr {
            wr_id: WrId(self.first.0 + i as u64),
            signaled: self.signaled && i == last,
            op: match self.bind {
                None => WrOp::LocalInv(s.rkey),
                Some(Bind { mr, access }) => {
                    let (mw, rkey) = (MwId::of(s.rkey), s.rkey);
                    WrOp::BindMw { mw, rkey, mr, addr: DmaAddr(s.addr), len: s.len, access }
                }
            },
        })
    }
}

impl WrChain {
    /// An empty chain.
    #[must_use]
    pub fn new() -> WrChain {
        WrChain::default()
    }

    /// Removes all WRs; keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.runs.clear();
        self.segments.clear();
        self.singles.clear();
        self.sges.clear();
        self.pages.clear();
        self.inline.clear();
    }

    /// How many WRs.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.segments.len() + self.singles.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The WRs in post order.
    pub fn iter(&self) -> impl Iterator<Item = Wr> + '_ {
        self.runs().flat_map(WindowRun::wrs).chain(self.singles.iter().copied())
    }

    /// The last WR.
    #[must_use]
    pub fn last(&self) -> Option<Wr> {
        let run = || self.runs().last().and_then(|run| run.wrs().last());
        self.singles.last().copied().or_else(run)
    }

    /// The runs, if there is nothing else.
    #[inline]
    #[cfg(any(test, feature = "verbs"))]
    pub(crate) fn only_runs(&self) -> Option<impl Iterator<Item = WindowRun<'_>>> {
        (self.singles.is_empty() && !self.runs.is_empty()).then(|| self.runs())
    }

    #[inline]
    fn runs(&self) -> impl Iterator<Item = WindowRun<'_>> {
        let mut segments = &*self.segments;
        self.runs.iter().map(move |&Run { first, count, signaled, bind }| {
            let (mine, rest) = segments.split_at_checked(count).unwrap_or((segments, &[]));
            segments = rest;
            WindowRun { first, signaled, segments: mine, bind }
        })
    }

    /// Appends a WR that uses spans of this chain.
    #[inline]
    pub fn push(&mut self, wr: Wr) {
        self.singles.push(wr);
    }

    /// Appends WRs on windows.
    #[inline(always)] // Without its argument in memory it is half as long.
    pub(crate) fn push_run(&mut self, run: WindowRun<'_>) {
        let WindowRun { first, signaled, segments, bind } = run;
        if !self.singles.is_empty() {
            return self.push_singly(first, signaled, segments, bind);
        }
        let count = segments.len();
        match self.runs.last_mut() {
            // It goes on as the last one does.
            Some(last)
                if last.bind == bind
                    && !last.signaled
                    && last.first.0.wrapping_add(last.count as u64) == first.0 =>
            {
                last.count += count;
                last.signaled = signaled;
            }
            _ => self.runs.push(Run { first, count, signaled, bind }),
        }
        self.segments.extend_from_slice(segments);
    }

    #[cold]
    fn push_singly(
        &mut self,
        first: WrId,
        signaled: bool,
        segments: &[Segment],
        bind: Option<Bind>,
    ) {
        self.singles.extend(WindowRun { first, signaled, segments, bind }.wrs());
    }

    /// The last WR is to be signaled. False if it was, or if there is none.
    pub(crate) fn signal_last(&mut self) -> bool {
        let signaled = match (self.singles.last_mut(), self.runs.last_mut()) {
            (Some(wr), _) => &mut wr.signaled,
            (None, Some(run)) => &mut run.signaled,
            (None, None) => return false,
        };
        !std::mem::replace(signaled, true)
    }

    /// Removes all but the first `count` WRs; the side tables stay.
    pub fn truncate(&mut self, count: usize) {
        let kept = self.iter().take(count).collect();
        self.runs.clear();
        self.segments.clear();
        self.singles = kept;
    }

    /// Stores SGEs and returns their span.
    pub fn add_sges(&mut self, sges: impl IntoIterator<Item = Sge>) -> Span {
        let start = self.sges.len();
        self.sges.extend(sges);
        Span::between(start, self.sges.len())
    }

    /// Stores page-list entries and returns their span.
    pub fn add_pages(&mut self, pages: impl IntoIterator<Item = PageEntry>) -> Span {
        let start = self.pages.len();
        self.pages.extend(pages);
        Span::between(start, self.pages.len())
    }

    /// Copies inline bytes and returns their span.
    pub fn add_inline(&mut self, bytes: &[u8]) -> Span {
        let start = self.inline.len();
        self.inline.extend_from_slice(bytes);
        Span::between(start, self.inline.len())
    }

    /// The SGEs of a span; empty if the span is not of this chain.
    #[must_use]
    pub fn sges(&self, s: Span) -> &[Sge] {
        self.sges.get(s.range()).unwrap_or(&[])
    }

    /// The page list of a span; empty if the span is not of this chain.
    #[must_use]
    pub fn pages(&self, s: Span) -> &[PageEntry] {
        self.pages.get(s.range()).unwrap_or(&[])
    }

    /// The inline bytes of a span; empty if the span is not of this chain.
    #[must_use]
    pub fn inline(&self, s: Span) -> &[u8] {
        self.inline.get(s.range()).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, Grant, Rkey};

    fn segment(n: u32) -> Segment {
        let (rkey, grant, epoch) = (Rkey::from_bits(n << 8), Grant::PeerReads, Epoch(1));
        Segment { rkey, addr: u64::from(n) << 12, len: u64::from(n), grant, epoch }
    }

    #[test]
    fn runs_say_what_single_wrs_would() {
        let all: Vec<Segment> = (0..4).map(segment).collect();
        let (access, mr) = (Access::REMOTE_READ, MrId(5));
        let bind = |first, signaled, range: std::ops::Range<usize>| WindowRun {
            first: WrId(first),
            signaled,
            segments: &all[range],
            bind: Some(Bind { mr, access }),
        };
        let inv =
            |first| WindowRun { first: WrId(first), signaled: true, segments: &all, bind: None };
        let single = Wr { wr_id: WrId(99), signaled: false, op: WrOp::LocalInv(all[3].rkey) };
        let mut chain = WrChain::new();
        chain.push_run(bind(10, false, 0..3));
        chain.push_run(inv(20));
        chain.push_run(bind(30, true, 3..4));
        assert!(chain.only_runs().is_some_and(|runs| runs.count() == 3));
        assert!(!chain.signal_last(), "it is signaled already");
        chain.push(single);
        assert!(chain.only_runs().is_none());
        chain.push_run(inv(40));
        let ids: Vec<u64> = chain.iter().map(|wr| wr.wr_id.0).collect();
        assert_eq!(ids, [10, 11, 12, 20, 21, 22, 23, 30, 99, 40, 41, 42, 43]);
        assert_eq!((chain.len(), chain.last()), (ids.len(), chain.iter().last()));
        let signaled: Vec<u64> = chain.iter().filter(|w| w.signaled).map(|w| w.wr_id.0).collect();
        assert_eq!(signaled, [23, 30, 43]);
        let of = |n: u64| chain.iter().find(|wr| wr.wr_id.0 == n).map(|wr| wr.op);
        let (mw, Segment { rkey, addr, len, .. }) = (MwId(3), all[3]);
        let addr = DmaAddr(addr);
        assert_eq!(of(30), Some(WrOp::BindMw { mw, rkey, mr, addr, len, access }));
        assert_eq!(of(22), Some(WrOp::LocalInv(all[2].rkey)));
        chain.clear();
        chain.push_run(bind(10, false, 0..2));
        chain.push_run(bind(12, true, 2..4));
        chain.push_run(bind(14, false, 0..1));
        chain.push_run(bind(16, false, 0..1));
        let other = Some(Bind { mr: MrId(6), access });
        chain.push_run(WindowRun { bind: other, ..bind(17, false, 1..2) });
        let of = |runs: Option<&WindowRun<'_>>| runs.map(|r| (r.first.0, r.segments.len()));
        let runs: Vec<WindowRun<'_>> = chain.only_runs().unwrap().collect();
        assert_eq!(of(runs.first()), Some((10, 4)), "one goes on as the other");
        assert_eq!((runs.len(), of(runs.last())), (4, Some((17, 1))), "onto another MR");
        let ids: Vec<(u64, bool)> = chain.iter().map(|wr| (wr.wr_id.0, wr.signaled)).collect();
        assert_eq!(ids[..4], [(10, false), (11, false), (12, false), (13, true)]);
        chain.clear();
        assert!(chain.is_empty() && chain.last().is_none() && !chain.signal_last());
        chain.push_run(bind(1, false, 0..2));
        assert!(chain.signal_last() && chain.last().is_some_and(|wr| wr.signaled));
    }
}
