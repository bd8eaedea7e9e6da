//! A plugin at arm's length: its panics and its nonsense cost its own connection, nothing else.

use memreg_core::device::{Caps, DeviceError, FastMrKind, Verb, errno};
use memreg_core::memreg::{
    Control, Event, MAX_REGIONS, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::plugin::{Entry, Options};
use memreg_core::sizing::{Ask, KeyScope, Limits, SizeError};
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Wraps a strategy of another crate.
///
/// # Shape
/// After a panic in any method it is broken: every later call is refused without calling the plugin
/// again.
///
/// A program built with `panic = "abort"` ends at the panic itself; nothing can be kept apart
/// there.
pub struct Guarded {
    name: &'static str,
    /// The entry's own check, asked before the strategy's.
    check: Option<Check>,
    /// `None` only while it is being dropped.
    inner: Option<Box<dyn MemReg>>,
    broken: Cell<bool>,
    /// It has said that its keys are QP-bound, and is kept to it.
    windows_only: bool,
}

type Check = fn(&Caps) -> Result<(), Reject>;

const PANICKED: &str = "plugin panicked";

impl Guarded {
    /// Wraps `inner` under the name by which it is configured.
    #[must_use]
    pub fn new(name: &'static str, inner: Box<dyn MemReg>) -> Guarded {
        let broken = Cell::new(false);
        Guarded { name, check: None, inner: Some(inner), broken, windows_only: false }
    }

    /// Builds what `entry` announces.
    ///
    /// # Errors
    /// The plugin's text, or that it panicked.
    pub fn build(entry: &Entry, options: &Options) -> Result<Guarded, String> {
        let inner = quietly(|| (entry.build)(options)).ok_or(PANICKED)??;
        let mut guarded = Guarded::new(entry.name, inner);
        guarded.check = Some(entry.check);
        Ok(guarded)
    }

    /// Whether a panic has ended it.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Calls the plugin; `None` if it is broken, or breaks now.
    fn call<T>(&mut self, f: impl FnOnce(&mut dyn MemReg) -> T) -> Option<T> {
        if self.broken.get() {
            return None;
        }
        let inner = self.inner.as_deref_mut()?;
        let answer = quietly(|| f(inner));
        self.note(answer)
    }

    fn note<T>(&self, answer: Option<T>) -> Option<T> {
        if answer.is_none() {
            self.broken.set(true);
            tracing::error!(strategy = self.name, "{PANICKED}; its connection ends");
        }
        answer
    }
}

impl MemReg for Guarded {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        let refused = || Reject::Other(PANICKED.to_owned());
        if self.broken.get() {
            return Err(refused());
        }
        let Some(inner) = self.inner.as_deref() else { return Err(refused()) };
        let both = || {
            if let Some(entry_check) = self.check {
                entry_check(caps)?;
            }
            inner.check(caps)
        };
        self.note(quietly(both)).unwrap_or_else(|| Err(refused()))
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        let limits = self.call(|p| p.open(caps, ask)).ok_or(SizeError::Other(PANICKED))??;
        if let Some(why) = implausible(&limits, caps, ask) {
            return Err(SizeError::Other(why));
        }
        self.windows_only = limits.key_scope == KeyScope::Qp;
        Ok(limits)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        let mut ctl = Kept { ctl, windows_only: self.windows_only };
        self.call(|p| p.fill(&mut ctl, regions))
            .unwrap_or(Err(DeviceError::new(Verb::AllocMr, errno::EIO)))
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let mut ctl = Kept { ctl, windows_only: self.windows_only };
        self.call(|p| p.map(&mut ctl, segs, out)).unwrap_or(Err(MapError::Other(PANICKED)))
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        self.call(|p| p.unmap(ctl, live, out)).unwrap_or(Err(Poison(PANICKED)))
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.call(|p| p.on_event(region, event)).unwrap_or(Err(Poison(PANICKED)))
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        self.call(|p| p.on_events(regions, event)).unwrap_or(Err(Poison(PANICKED)))
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        let mut ctl = Kept { ctl, windows_only: self.windows_only };
        self.call(|p| p.recover(&mut ctl, budget))
            .unwrap_or(Err(DeviceError::new(Verb::DeregMr, errno::EIO)))
            .map(|rebuilt| rebuilt.min(budget))
    }

    fn on_drained(&mut self) {
        // Nothing can be returned here; a panic shows at the next call.
        let _ = self.call(|p| p.on_drained());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let inner = self.inner.take();
        let _ = quietly(|| drop(inner));
    }
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").field("name", &self.name).field("broken", &self.broken).finish()
    }
}

/// The [`Control`] of a plugin, which keeps it to the scope of keys that it has announced: one that
/// says QP-bound can make windows and nothing else, so what it says is true.
struct Kept<'a> {
    ctl: &'a mut dyn Control,
    windows_only: bool,
}

impl Kept<'_> {
    fn check(&self, verb: Verb) -> Result<(), DeviceError> {
        if self.windows_only {
            return Err(DeviceError::new(verb, errno::EINVAL));
        }
        Ok(())
    }
}

impl Control for Kept<'_> {
    fn alloc_region(&mut self, depth: u32, kind: FastMrKind) -> Result<RegionId, DeviceError> {
        self.check(Verb::AllocMr)?;
        self.ctl.alloc_region(depth, kind)
    }

    fn alloc_window(&mut self) -> Result<RegionId, DeviceError> {
        self.ctl.alloc_window()
    }

    fn reg_mr(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError> {
        self.check(Verb::RegMr)?;
        self.ctl.reg_mr(bytes)
    }

    fn dereg(&mut self, region: RegionId) -> Result<(), DeviceError> {
        self.ctl.dereg(region)
    }

    fn bounce(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError> {
        self.check(Verb::RegMr)?;
        self.ctl.bounce(bytes)
    }
}

/// Runs a plugin's code; `None` if it panicked.
fn quietly<T>(f: impl FnOnce() -> T) -> Option<T> {
    // After a panic the plugin's value is called only to drop it, so no broken state is ever seen.
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(v) => Some(v),
        Err(payload) => {
            // The payload is the plugin's as well, and its drop could panic again.
            std::mem::forget(payload);
            None
        }
    }
}

/// Why sizes cannot be right, whatever the plugin does: the queues are made from them.
fn implausible(l: &Limits, caps: &Caps, ask: &Ask) -> Option<&'static str> {
    let send = u64::from(l.credits) * u64::from(l.wr_per_request) + u64::from(l.backchannel) + 1;
    let recv = u64::from(l.credits) + u64::from(l.backchannel);
    let rules = [
        (
            l.regions_per_request == 0 || l.regions_per_request as usize > MAX_REGIONS,
            "plugin's regions_per_request is out of range",
        ),
        (l.credits == 0 || l.credits > ask.credits, "plugin's credits are out of range"),
        (l.wr_per_request == 0, "plugin's wr_per_request is zero"),
        (l.backchannel != ask.backchannel, "plugin changed the backchannel slots"),
        (
            u64::from(l.max_send_wr) < send || l.max_send_wr > caps.max_qp_wr,
            "plugin's max_send_wr is too small for its credits, or above max_qp_wr",
        ),
        (
            u64::from(l.max_recv_wr) < recv || l.max_recv_wr > caps.max_qp_wr,
            "plugin's max_recv_wr is too small for its credits, or above max_qp_wr",
        ),
        (
            u64::from(l.cq_entries) < u64::from(l.max_send_wr) + u64::from(l.max_recv_wr)
                || l.cq_entries > caps.max_cqe,
            "plugin's cq_entries are too few for its queues, or above max_cqe",
        ),
        (
            l.max_segments == 0 || l.max_segments as usize > MAX_REGIONS,
            "plugin's max_segments is out of range",
        ),
        (
            l.max_payload_bytes == 0 || l.max_payload_bytes > ask.max_payload_bytes,
            "plugin's max_payload_bytes is out of range",
        ),
        (
            l.page_list_depth > caps.max_fast_reg_page_list_len,
            "plugin's page_list_depth is above max_fast_reg_page_list_len",
        ),
        (
            l.arena_bytes > 0 && !ask.danger_trust_peer,
            "plugin wants a bounce arena; set strategy.danger_trust_peer = true to allow it",
        ),
        // MRs outlive their QP; only windows do not. See `Kept`.
        (
            l.key_scope == KeyScope::Qp && (l.arena_bytes > 0 || !caps.has_windows()),
            "plugin's keys cannot be QP-bound without windows, though it says so",
        ),
    ];
    rules.iter().find(|(broken, _)| *broken).map(|&(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Call, Mock};
    use crate::{Fmr, Frwr};
    use memreg_core::memreg::SegShape;
    use std::panic::panic_any;

    /// Panics in the slot named, with a payload that panics again when dropped.
    struct Bad {
        at: &'static str,
        inner: Frwr,
        limits: fn(&mut Limits),
    }

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("second panic");
        }
    }

    impl Bad {
        fn boxed(at: &'static str) -> Box<dyn MemReg> {
            Box::new(Bad { at, inner: Frwr::new(), limits: |_| {} })
        }

        fn hit(&self, slot: &str) {
            if self.at == slot {
                panic_any(Bomb);
            }
        }
    }

    impl Drop for Bad {
        fn drop(&mut self) {
            self.hit("drop");
        }
    }

    impl MemReg for Bad {
        fn name(&self) -> &'static str {
            self.hit("name");
            "bad"
        }
        fn check(&self, caps: &Caps) -> Result<(), Reject> {
            self.hit("check");
            self.inner.check(caps)
        }
        fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
            self.hit("open");
            let mut l = self.inner.open(caps, ask)?;
            (self.limits)(&mut l);
            Ok(l)
        }
        fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
            self.hit("fill");
            self.inner.fill(ctl, regions)
        }
        fn map(
            &mut self,
            ctl: &mut dyn Control,
            segs: &SegList<'_>,
            out: &mut WrBatch,
        ) -> Result<(), MapError> {
            self.hit("map");
            self.inner.map(ctl, segs, out)
        }
        fn unmap(
            &mut self,
            ctl: &mut dyn Control,
            live: &[RegionId],
            out: &mut WrBatch,
        ) -> Result<(), Poison> {
            self.hit("unmap");
            self.inner.unmap(ctl, live, out)
        }
        fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
            self.hit("on_event");
            self.inner.on_event(region, event)
        }
        fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
            self.hit("on_events");
            self.inner.on_events(regions, event)
        }
        fn recover(&mut self, ctl: &mut dyn Control, _: usize) -> Result<usize, DeviceError> {
            self.hit("recover");
            self.inner.recover(ctl, 1)?;
            Ok(usize::MAX)
        }
        fn on_drained(&mut self) {
            self.hit("on_drained");
            self.inner.on_drained();
        }
    }

    /// Calls every slot once and lists those that failed.
    fn tour(s: &mut Guarded) -> Vec<&'static str> {
        let (caps, ask) = (Caps::default(), Ask::default());
        let (mut ctl, mut out) = (Mock::new(), WrBatch::new());
        let segs = [SegShape { page_offset: 0, len: 1 }];
        let segs = SegList::new(&segs, 4096);
        let mut failed = vec![];
        let mut note = |slot, ok: bool| {
            if !ok {
                failed.push(slot);
            }
        };
        note("check", s.check(&caps).is_ok());
        note("open", s.open(&caps, &ask).is_ok());
        note("fill", s.fill(&mut ctl, 1).is_ok());
        note("map", s.map(&mut ctl, &segs, &mut out).is_ok());
        note("unmap", s.unmap(&mut ctl, &[], &mut out).is_ok());
        note("on_event", s.on_event(RegionId::default(), Event::Registered).is_ok());
        note("on_events", s.on_events(&[RegionId::default()], Event::Registered).is_ok());
        note("recover", s.recover(&mut ctl, 1) == Ok(1));
        s.on_drained();
        note("on_drained", !s.is_broken());
        failed
    }

    #[test]
    fn a_panic_in_any_slot_is_an_error_and_ends_the_plugin() {
        let slots = [
            "check",
            "open",
            "fill",
            "map",
            "unmap",
            "on_event",
            "on_events",
            "recover",
            "on_drained",
        ];
        for (i, slot) in slots.iter().enumerate() {
            let mut s = Guarded::new("bad", Bad::boxed(slot));
            assert_eq!(tour(&mut s), slots[i..], "everything from the panic on is refused");
            assert!(s.is_broken());
        }
        for slot in ["drop", "name", "none"] {
            let mut s = Guarded::new("bad", Bad::boxed(slot));
            assert_eq!(s.name(), "bad");
            assert_eq!(tour(&mut s), [""; 0]);
        }
    }

    #[test]
    fn a_panic_while_building_is_an_error() {
        let entry = Entry {
            name: "bad",
            api: memreg_core::plugin::API,
            about: "panics",
            check: |_| Ok(()),
            build: |_| panic!("no"),
        };
        assert_eq!(Guarded::build(&entry, &Options::new()).unwrap_err(), PANICKED);
        let entry = Entry { check: |_| panic!("no"), build: |_| Ok(Box::new(Fmr::new())), ..entry };
        let s = Guarded::build(&entry, &Options::new()).unwrap();
        assert!(s.check(&Caps::default()).is_err() && s.is_broken());
    }

    #[test]
    fn sizes_that_cannot_be_right_are_refused() {
        let lies: [fn(&mut Limits); 14] = [
            |l| l.regions_per_request = 0,
            |l| l.regions_per_request = 17,
            |l| l.credits = u32::MAX,
            |l| l.wr_per_request = u32::MAX,
            |l| l.backchannel = 1,
            |l| l.max_send_wr = 1,
            |l| l.max_recv_wr = 0,
            |l| l.cq_entries = 1,
            |l| l.max_segments = 0,
            |l| l.max_payload_bytes = 0,
            |l| l.max_payload_bytes = u64::MAX,
            |l| l.page_list_depth = 100_000,
            |l| l.arena_bytes = 1,
            |l| l.key_scope = KeyScope::Qp,
        ];
        for (i, limits) in lies.into_iter().enumerate() {
            let bad = Bad { at: "", inner: Frwr::new(), limits };
            let mut s = Guarded::new("bad", Box::new(bad));
            let e = s.open(&Caps::default(), &Ask::default());
            assert!(matches!(e, Err(SizeError::Other(_))), "{i}: {e:?}");
        }
    }

    #[test]
    fn a_plugin_that_says_qp_bound_gets_windows_and_nothing_else() {
        /// Says QP-bound, and registers by verb.
        struct Liar;
        impl MemReg for Liar {
            fn name(&self) -> &'static str {
                "liar"
            }
            fn check(&self, _: &Caps) -> Result<(), Reject> {
                Ok(())
            }
            fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
                memreg_core::sizing::window_limits(caps, ask)
            }
            fn fill(&mut self, ctl: &mut dyn Control, _: usize) -> Result<(), DeviceError> {
                ctl.alloc_window()?;
                ctl.alloc_region(1, FastMrKind::Pages).map(|_| ())
            }
            fn map(
                &mut self,
                ctl: &mut dyn Control,
                _: &SegList<'_>,
                _: &mut WrBatch,
            ) -> Result<(), MapError> {
                assert!(ctl.bounce(0..1).is_err());
                Ok(ctl.reg_mr(0..1).map(|_| ())?)
            }
            fn unmap(
                &mut self,
                _: &mut dyn Control,
                _: &[RegionId],
                _: &mut WrBatch,
            ) -> Result<(), Poison> {
                Ok(())
            }
            fn on_event(&mut self, _: RegionId, _: Event) -> Result<(), Poison> {
                Ok(())
            }
            fn recover(&mut self, ctl: &mut dyn Control, _: usize) -> Result<usize, DeviceError> {
                ctl.alloc_region(1, FastMrKind::Gaps).map(|_| 1)
            }
            fn on_drained(&mut self) {}
        }

        let caps = Caps { mem_window_type_2b: true, max_mw: 100, ..Caps::default() };
        let mut s = Guarded::new("liar", Box::new(Liar));
        assert_eq!(s.open(&caps, &Ask::default()).unwrap().key_scope, KeyScope::Qp);
        let mut ctl = Mock::new();
        let segs = [SegShape { page_offset: 0, len: 1 }];
        assert!(s.fill(&mut ctl, 1).is_err());
        assert!(s.map(&mut ctl, &SegList::new(&segs, 4096), &mut WrBatch::new()).is_err());
        assert!(s.recover(&mut ctl, 1).is_err());
        assert_eq!(ctl.calls, [Call::AllocWindow]);
        // The same as a window strategy that keeps its word.
        let windows = Caps { max_fast_reg_page_list_len: 0, ..caps };
        let mut s = Guarded::new("good", Box::new(Frwr::new()));
        s.open(&windows, &Ask::default()).unwrap();
        s.fill(&mut ctl, 2).unwrap();
        s.map(&mut ctl, &SegList::new(&segs, 4096), &mut WrBatch::new()).unwrap();
        assert_eq!(ctl.calls.len(), 3);
    }
}
