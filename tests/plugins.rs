//! Plugins that go wrong: the connection ends in an error, the process goes on, and no byte comes
//! back while a key reaches it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use memreg::audit::audit;
use memreg::core::device::{DeviceError, errno};
use memreg::core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg::core::plugin::{API, Entry, OptionReader, OptionValue, Options};
use memreg::core::sizing::{Ask, Limits, SizeError};
use memreg::error::{ConnectError, DownCause, OpenError, Refusal};
use memreg::strategies::{BuildError, BuildOptions, Fmr, Frwr, RegistryError};
use memreg::{
    Caps, DmaBuf, Exposed, ExposureState, Fabric, Grant, NoReply, OpenOptions, Registry, Segment,
    Settings, SimDevice, State, Strategy, Tick, connect_pair, settle,
};
use std::cell::Cell;

thread_local! {
    /// Whether the slot that was named panics from now on.
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

/// `frwr`, until it panics in one slot.
struct Panics {
    slot: &'static str,
    honest: Frwr,
}

const SLOTS: &[&str] = &[
    "build",
    "name",
    "check",
    "open",
    "fill",
    "map",
    "unmap",
    "on_event",
    "on_events",
    "recover",
    "on_drained",
    "drop",
    "none",
];

impl Panics {
    fn reach(&self, slot: &str) {
        if self.slot == slot && ARMED.get() {
            panic!("{slot} of the plugin panics");
        }
    }
}

impl MemReg for Panics {
    fn name(&self) -> &'static str {
        self.reach("name");
        "panics"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.reach("check");
        self.honest.check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        self.reach("open");
        self.honest.open(caps, ask)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        self.reach("fill");
        self.honest.fill(ctl, regions)
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        // Half-way, with wishes made: those must be undone.
        self.honest.map(ctl, segs, out)?;
        self.reach("map");
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        self.honest.unmap(ctl, live, out)?;
        self.reach("unmap");
        Ok(())
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.reach("on_event");
        self.honest.on_event(region, event)
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        self.reach("on_events");
        regions.iter().try_for_each(|&region| self.on_event(region, event))
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.reach("recover");
        self.honest.recover(ctl, budget)
    }

    fn on_drained(&mut self) {
        self.reach("on_drained");
        self.honest.on_drained();
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.reach("drop");
    }
}

const ENTRY: Entry = Entry {
    name: "panics",
    api: API,
    about: "panics in the slot that its option names",
    check: |_| Ok(()),
    build: |options| {
        let mut options = OptionReader::new(options);
        let slot = options.choice("slot", "none", SLOTS)?;
        options.finish()?;
        let made = Panics { slot, honest: Frwr::new() };
        made.reach("build");
        Ok(Box::new(made))
    },
};

fn build(slot: &str) -> Result<Strategy, BuildError> {
    let mut registry = Registry::builtin();
    registry.register(ENTRY).unwrap();
    let slot = OptionValue::Text(slot.to_owned());
    let options: Options = [("slot".to_owned(), slot)].into();
    registry.build("panics", &BuildOptions { options, ..BuildOptions::default() })
}

type Owner = memreg::core::Transport<SimDevice, Strategy>;
type Peer = memreg::core::Transport<SimDevice, Fmr>;

/// An owner with a live exposure that the peer has written into.
struct Rig {
    owner: Owner,
    peer: Peer,
    exposed: Exposed,
    segment: Segment,
}

const NOW: Tick = Tick(0);
const WRITTEN: [u8; 5] = *b"hello";

impl Rig {
    /// Everything goes well until the end of this function.
    fn live(slot: &str) -> Rig {
        ARMED.set(false);
        let fabric = Fabric::new(1);
        let mut owner = open(&fabric, slot).unwrap();
        let options = OpenOptions::default();
        let peer = fabric.add_node("peer", Caps::default());
        let mut peer = Peer::open(peer, Fmr::new(), &options).unwrap();
        connect_pair(&mut owner, &mut peer).unwrap();
        let exposed = owner.expose(DmaBuf::new(100).unwrap(), Grant::PeerWrites).unwrap();
        owner.flush().unwrap();
        let segment = owner.segments(&exposed).unwrap()[0];
        let op = peer.write(&segment, 0, DmaBuf::from_bytes(&WRITTEN).unwrap()).unwrap();
        settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
        peer.take(op).unwrap().result.unwrap();
        ARMED.set(true);
        Rig { owner, peer, exposed, segment }
    }

    fn settle(&mut self) {
        settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
    }

    /// The exposure is as live as before: no bytes, and the peer can still write, for which the
    /// owner need not do anything.
    fn still_live(self) -> Rig {
        let Rig { mut owner, mut peer, exposed, segment } = self;
        assert_eq!(owner.exposure_state(&exposed), Ok(ExposureState::Exposed));
        let exposed = owner.reclaim(exposed).unwrap_err().exposed;
        let again = DmaBuf::from_bytes(&WRITTEN).unwrap();
        let op = peer.write(&segment, 0, again).unwrap();
        settle(NOW, &mut [&mut peer]).unwrap();
        peer.take(op).unwrap().result.unwrap();
        Rig { owner, peer, exposed, segment }
    }

    /// The connection goes down by itself or, with `cut`, because the owner ends it; then the bytes
    /// are there, and no key is.
    fn ends(mut self, cut: bool) -> DownCause {
        if cut {
            self.owner.disconnect();
        }
        if self.owner.exposure_state(&self.exposed) != Ok(ExposureState::Fenced) {
            let early = self.owner.reclaim(self.exposed).unwrap_err();
            self.exposed = early.exposed;
        }
        self.settle();
        let State::Down(cause) = self.owner.state().clone() else {
            panic!("the owner is {:?}", self.owner.state())
        };
        let node = self.owner.device().clone();
        assert_eq!(node.counters().fast_mrs_valid, 0, "a key is live");
        let bytes = self.owner.reclaim(self.exposed).unwrap().into_first().unwrap();
        assert_eq!(bytes[..5], WRITTEN);
        let trail = audit(&self.owner.ledger().to_string()).unwrap();
        assert!(trail.violations.is_empty() && trail.live == 0, "{trail}");
        assert_eq!(self.owner.stats().bytes_leaked, 0);

        // A plugin that has panicked is not trusted with another connection, and says so.
        let again = self.owner.reconnect();
        assert!(matches!(again, Err(ConnectError::Device(e)) if e.errno == errno::EIO));
        drop(self.owner);
        let c = node.counters();
        assert_eq!((c.pds, c.cqs, c.qps, c.mrs, c.mapped_ranges), (0, 0, 0, 0, 0));
        assert_eq!(c.iommu_faults, 0);
        cause
    }
}

fn open(fabric: &Fabric, slot: &str) -> Result<Owner, OpenError> {
    let node = fabric.add_node("owner", Caps::default());
    Owner::open(node, build(slot).unwrap(), &OpenOptions::default())
}

#[test]
fn nothing_panics_unless_told_to() {
    let mut rig = Rig::live("none");
    rig.owner.revoke(&rig.exposed, NoReply::Unmarked).unwrap();
    rig.settle();
    let bytes = rig.owner.reclaim(rig.exposed).unwrap().into_first().unwrap();
    assert_eq!(bytes[..5], WRITTEN);
    assert_eq!(*rig.owner.state(), State::Up);
}

#[test]
fn panic_in_build_is_an_error() {
    ARMED.set(true);
    let e = build("build").unwrap_err();
    assert_eq!(e.to_string(), "strategy panics: plugin panicked");
}

#[test]
fn panic_in_the_check_of_the_entry_is_an_error() {
    let entry = Entry { check: |_| panic!("the entry's check"), ..ENTRY };
    let mut registry = Registry::builtin();
    registry.register(entry).unwrap();
    let s = registry.build("panics", &BuildOptions::default()).unwrap();
    let node = Fabric::new(1).add_node("owner", Caps::default());
    let e = Owner::open(node.clone(), s, &OpenOptions::default()).unwrap_err();
    assert!(matches!(e, OpenError::Rejected { .. }), "{e}");
    assert_eq!(node.counters().pds, 0);
}

/// The three that run while a transport is opened; one that is open already notices nothing.
#[test]
fn panic_at_open_is_an_error_and_leaves_nothing() {
    for slot in ["check", "open", "fill", "recover"] {
        let mut rig = Rig::live("none");
        let node = Fabric::new(1).add_node("second", Caps::default());
        let s = build(slot).unwrap();
        let e = Owner::open(node.clone(), s, &OpenOptions::default()).unwrap_err();
        match slot {
            "check" => assert!(matches!(e, OpenError::Rejected { name: "panics", .. }), "{e}"),
            "open" => assert!(matches!(e, OpenError::Size { name: "panics", .. }), "{e}"),
            _ => assert!(matches!(e, OpenError::Device { name: "panics", .. }), "{e}"),
        }
        let c = node.counters();
        assert_eq!((c.pds, c.cqs, c.qps, c.mrs, c.mapped_ranges), (0, 0, 0, 0, 0), "{slot}");
        rig = rig.still_live();
        rig.owner.revoke(&rig.exposed, NoReply::Unmarked).unwrap();
        rig.settle();
        rig.owner.reclaim(rig.exposed).unwrap();
    }
}

/// The name is that of the entry: the plugin is never asked.
#[test]
fn panic_in_name_never_happens() {
    let rig = Rig::live("name").still_live();
    assert_eq!(rig.owner.strategy_name(), "panics");
    assert!(format!("{:?}", rig.owner).contains("panics"));
}

#[test]
fn panic_in_map_returns_the_buffer_and_costs_the_connection_only() {
    let mut rig = Rig::live("map");
    let data = [7; 50];
    let refused = rig.owner.expose(DmaBuf::from_bytes(&data).unwrap(), Grant::PeerReads);
    let refused = refused.unwrap_err();
    assert!(matches!(refused.why, Refusal::Map(MapError::Other("plugin panicked"))));
    assert_eq!(refused.buffers.into_first().unwrap()[..], data);
    rig.ends(true);
}

#[test]
fn panic_in_unmap_takes_the_connection_down() {
    let mut rig = Rig::live("unmap");
    let e = rig.owner.revoke(&rig.exposed, NoReply::Unmarked).unwrap_err();
    assert!(matches!(e, Refusal::Down(DownCause::Strategy(Poison("plugin panicked")))), "{e}");
    let cause = rig.ends(false);
    assert_eq!(cause, DownCause::Strategy(Poison("plugin panicked")));
}

#[test]
fn panic_in_unmap_for_a_dropped_handle_takes_the_connection_down() {
    let mut rig = Rig::live("unmap");
    let node = rig.owner.device().clone();
    drop(rig.exposed);
    settle(NOW, &mut [&mut rig.owner, &mut rig.peer]).unwrap();
    assert!(matches!(rig.owner.state(), State::Down(DownCause::Strategy(_))));
    assert_eq!((rig.owner.stats().exposures_now, node.counters().fast_mrs_valid), (0, 0));
}

#[test]
fn panic_in_on_event_takes_the_connection_down() {
    let mut rig = Rig::live("on_event");
    rig.owner.revoke(&rig.exposed, NoReply::Unmarked).unwrap();
    let cause = rig.ends(false);
    assert_eq!(cause, DownCause::Strategy(Poison("plugin panicked")));
}

#[test]
fn panic_in_recover_is_an_error() {
    let mut rig = Rig::live("recover");
    assert_eq!(rig.owner.recover(1).unwrap_err().errno, errno::EIO);
    rig.still_live().ends(true);
}

#[test]
fn panic_in_on_drained_costs_the_next_connection() {
    assert_eq!(Rig::live("on_drained").ends(true), DownCause::Local);
}

#[test]
fn panic_in_fill_at_reconnect_is_an_error() {
    let mut rig = Rig::live("fill");
    rig.owner.disconnect();
    rig.settle();
    rig.owner.reconnect().unwrap_err();
    rig.ends(false);
}

#[test]
fn panic_in_drop_leaves_nothing() {
    let rig = Rig::live("drop").still_live();
    let node = rig.owner.device().clone();
    drop(rig.owner);
    let c = node.counters();
    assert_eq!((c.pds, c.cqs, c.qps, c.mrs, c.mapped_ranges), (0, 0, 0, 0, 0));
}

/// A program that unwinds for another reason drops the transport and the plugin on the way.
#[test]
fn panic_in_drop_while_the_program_unwinds_does_not_abort() {
    let unwound = std::panic::catch_unwind(|| {
        let _rig = Rig::live("drop");
        panic!("the program's own");
    });
    let said = unwound.unwrap_err();
    assert_eq!(said.downcast_ref::<&str>(), Some(&"the program's own"));
}

#[test]
fn options_of_the_wrong_type_are_named() {
    let mut registry = Registry::builtin();
    registry.register(ENTRY).unwrap();
    let said = |name: &str, value: OptionValue| {
        let options: Options = [(name.to_owned(), value)].into();
        let options = BuildOptions { options, ..BuildOptions::default() };
        registry.build("panics", &options).unwrap_err().to_string()
    };
    let wrong = said("slot", OptionValue::Int(3));
    assert!(wrong.starts_with("strategy panics: option slot: 3 is a whole number, not"), "{wrong}");
    let wrong = said("slot", OptionValue::Text("mop".into()));
    assert!(wrong.starts_with("strategy panics: option slot: \"mop\" is text, not"), "{wrong}");
    let wrong = said("slto", OptionValue::Text("map".into()));
    assert_eq!(wrong, "strategy panics: option slto: not known; known are slot");
}

#[test]
fn a_plugin_for_another_api_is_an_error() {
    let mut registry = Registry::builtin();
    let e = registry.register(Entry { api: API + 1, ..ENTRY }).unwrap_err();
    assert_eq!(e, RegistryError::Api { name: "panics", got: API + 1 });
    assert!(!registry.contains("panics"));
}

// Two crates that came upon the same name, linked into one program.
inventory::submit!(Entry { about: "the first", name: "twins", ..ENTRY });
inventory::submit!(Entry { about: "the second", name: "twins", ..ENTRY });

#[test]
fn linked_duplicates_are_an_error_before_anything_is_opened() {
    let e = Registry::new().unwrap_err();
    let text = "two strategies are named twins: \"the first\" and \"the second\"";
    assert_eq!(e.to_string(), text);
    let e = memreg::open(&Settings::default()).unwrap_err();
    assert!(matches!(e, memreg::OpenError::Registry(RegistryError::Duplicate { .. })));
}
