//! The model: a plain map of key → bytes.

use memreg::{ExposureState, Grant, Segment};
use std::collections::BTreeMap;

/// What one live key reaches.
#[derive(Clone, Debug)]
pub struct Reach {
    pub addr: u64,
    pub bytes: Vec<u8>,
    pub grant: Grant,
}

/// Keys by number and start: all of physical's exposures share one number.
type Live = BTreeMap<(u32, u64), Reach>;

/// The plain map, and where each exposure stands.
#[derive(Debug, Default)]
pub struct Plain {
    pub live: Live,
    /// Every segment that there ever was.
    pub known: Vec<Segment>,
}

/// One exposure, as far as the model goes.
#[derive(Debug)]
pub struct Exposure {
    pub state: ExposureState,
    pub segments: Vec<Segment>,
    /// What each segment holds; the map has it while the key is live.
    pub content: Vec<Vec<u8>>,
    /// Whether its key is live, of each segment.
    pub open: Vec<bool>,
    /// A reply may invalidate its keys: the number, in this connection, of the first message that
    /// can be the last such reply.
    pub awaits: Option<u64>,
    /// Of these keys the device has not heard.
    pub staged: bool,
}

impl Plain {
    /// The keys of `e` open its bytes.
    pub fn grant(&mut self, e: &mut Exposure) {
        for (s, bytes) in e.segments.iter().zip(&e.content) {
            let reach = Reach { addr: s.addr, bytes: bytes.clone(), grant: s.grant };
            self.live.insert((s.rkey.to_bits(), s.addr), reach);
        }
        e.open.fill(true);
        e.state = ExposureState::Exposed;
        e.staged = false;
    }

    /// One key opens nothing any more.
    pub fn kill(&mut self, e: &mut Exposure, index: usize) {
        if std::mem::take(&mut e.open[index]) {
            let s = &e.segments[index];
            e.content[index] = self.live.remove(&(s.rkey.to_bits(), s.addr)).unwrap().bytes;
        }
    }

    /// No key of `e` opens anything any more.
    pub fn kill_all(&mut self, e: &mut Exposure) {
        for index in 0..e.segments.len() {
            self.kill(e, index);
        }
        e.state = ExposureState::Fenced;
        e.staged = false;
    }

    /// The bytes that an access reaches, if some live key allows it.
    pub fn reach(&mut self, rkey: u32, addr: u64, len: u64, grant: Grant) -> Option<&mut [u8]> {
        let of_key = self.live.range_mut((rkey, 0)..=(rkey, u64::MAX)).map(|(_, r)| r);
        let mut fitting = of_key.filter(|r| {
            let end = r.addr + r.bytes.len() as u64;
            r.grant == grant && r.addr <= addr && addr.checked_add(len).is_some_and(|e| e <= end)
        });
        let r = fitting.next()?;
        let from = (addr - r.addr) as usize;
        Some(&mut r.bytes[from..from + len as usize])
    }
}
