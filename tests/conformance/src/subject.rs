//! What is under test.

use crate::pair::Pair;
use crate::verdict::{Stop, skip};
use memreg_core::MemReg;
use memreg_core::device::sim::Fabric;
use memreg_core::device::{AnyDevice, Caps, Device};
use memreg_core::sizing::Ask;

/// A strategy on a kind of device.
pub struct Subject<S> {
    /// Names it in the report.
    pub label: String,
    /// The attributes of the owner's and the peer's device.
    pub caps: Caps,
    /// The sizes asked for.
    pub ask: Ask,
    /// Opens a real device for one end; `None`: a software node of these attributes.
    open: Option<fn() -> AnyDevice>,
    make: Box<dyn Fn() -> S>,
}

impl<S: MemReg> Subject<S> {
    /// A subject with small queues; `make` gives a strategy that has not been opened.
    #[must_use]
    pub fn new(label: impl Into<String>, caps: Caps, make: impl Fn() -> S + 'static) -> Subject<S> {
        let ask = Ask {
            max_payload_bytes: 256 << 10,
            credits: 4,
            // Whether to trust the peer is the strategy's own switch here.
            danger_trust_peer: true,
            ..Ask::default()
        };
        Subject { label: label.into(), caps, ask, open: None, make: Box::new(make) }
    }

    /// The same subject with other sizes.
    #[must_use]
    pub fn with_ask(mut self, ask: Ask) -> Subject<S> {
        self.ask = ask;
        self
    }

    /// The same subject on a device that `open` opens anew for each end, and whose attributes are
    /// as they are. Checks that need to look inside are skipped.
    #[must_use]
    pub fn on(mut self, open: fn() -> AnyDevice) -> Subject<S> {
        self.caps = open().caps();
        self.open = Some(open);
        self
    }

    /// A fresh pair of connected transports.
    pub(crate) fn pair(&self) -> Result<Pair<S>, Stop> {
        self.pair_with(&self.caps, &self.ask)
    }

    /// A fresh pair with other sizes.
    pub(crate) fn pair_with(&self, caps: &Caps, ask: &Ask) -> Result<Pair<S>, Stop> {
        let (owner, peer) = match self.open {
            Some(_) if *caps != self.caps => {
                return skip("the limits of a real device are its own");
            }
            Some(open) => (open(), open()),
            None => {
                let fabric = Fabric::new(1);
                let owner = fabric.add_node("owner", caps.clone());
                (owner.into(), fabric.add_node("peer", caps.clone()).into())
            }
        };
        Pair::open((self.make)(), owner, peer, ask)
    }
}

impl<S> std::fmt::Debug for Subject<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("label", &self.label).finish_non_exhaustive()
    }
}
