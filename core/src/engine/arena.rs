//! The bounce arenas: two long-lived registrations, one a direction, that exposures are copied
//! through.
//!
//! Their keys are never revoked while the connection lives. That is the danger which
//! `danger_trust_peer` names: the peer can read what ended exposures have left in the arena that
//! grants reading, and a late write can spoil a later operation's bytes in the one that grants
//! writing. Neither reaches a program's buffer, and no key grants both directions (MAP-16).

use super::Engine;
use super::buffers::{Lent, Place};
use super::exposure::ExposureId;
use super::keys::RegionKind;
use crate::device::{Device, DeviceError, LimitInfo, Verb, errno};
use crate::mem::{DmaBuf, ExposedBytes, Fenced};
use crate::memreg::RegionId;
use crate::types::{DmaAddr, Grant, MrId, Rkey};

/// Registered memory that is handed out in whole pages, first fit.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) grant: Grant,
    bytes: ExposedBytes,
    pub(crate) addr: DmaAddr,
    mr: Option<MrId>,
    pub(crate) rkey: Rkey,
    page: u64,
    /// Free runs, by start.
    free: Vec<(u64, u64)>,
}

/// Bytes per copy between a buffer and the arena.
const CHUNK: usize = 4096;

impl Arena {
    /// Maps and registers `len` bytes for one connection.
    pub(crate) fn open<D: Device>(
        eng: &Engine<D>,
        grant: Grant,
        len: u64,
    ) -> Result<Arena, DeviceError> {
        let no_memory = DeviceError::new(Verb::DmaMap, errno::ENOMEM);
        let size = usize::try_from(len).map_err(|_| no_memory)?;
        let (bytes, _) = DmaBuf::new(size).map_err(|_| no_memory)?.into_exposed();
        let addr = eng.device.dma_map(&bytes, None)?;
        let page = u64::from(eng.caps.page_size);
        let (mr, rkey) = (None, Rkey::from_bits(0));
        let mut arena = Arena { grant, bytes, addr, mr, rkey, page, free: vec![(0, len)] };
        if let Err(e) = arena.register(eng) {
            // Nothing was granted; if the device keeps the mapping all the same, it keeps the
            // memory with it.
            let _ = eng.device.dma_unmap(&arena.bytes, addr, Fenced::mint());
            return Err(e);
        }
        Ok(arena)
    }

    /// Gives the arena its key; at open and after each reconnect.
    pub(crate) fn register<D: Device>(&mut self, eng: &Engine<D>) -> Result<(), DeviceError> {
        if self.mr.is_none() {
            let len = self.bytes.len() as u64;
            let keys =
                eng.device.reg_mr(eng.pd, self.addr, len, self.grant.access() | eng.ordering)?;
            (self.mr, self.rkey) = (Some(keys.mr), keys.rkey);
        }
        Ok(())
    }

    /// Ends the key, so that it does not outlive its connection (rule 4).
    pub(crate) fn deregister<D: Device>(&mut self, eng: &mut Engine<D>) -> Result<(), DeviceError> {
        if let Some(mr) = self.mr {
            eng.dereg_mr(mr)?;
            self.mr = None;
        }
        Ok(())
    }

    /// Whether its key is dead.
    pub(crate) fn is_closed(&self) -> bool {
        self.mr.is_none()
    }

    /// At the end: ends key and mapping and gives the memory back. If the device does not let go,
    /// the memory stays mapped for the life of the process: the bytes of it.
    pub(crate) fn close<D: Device>(mut self, eng: &mut Engine<D>, qp_gone: bool) -> u64 {
        let closed = self.deregister(eng).is_ok() && qp_gone;
        if closed && eng.device.dma_unmap(&self.bytes, self.addr, Fenced::mint()).is_ok() {
            return 0;
        }
        let kept = self.bytes.len() as u64;
        std::mem::forget(self);
        kept
    }

    fn take(&mut self, len: u64) -> Option<u64> {
        let need = len.checked_next_multiple_of(self.page)?;
        let i = self.free.iter().position(|&(_, n)| n >= need)?;
        let (at, n) = self.free[i];
        if n == need {
            self.free.remove(i);
        } else {
            self.free[i] = (at + need, n - need);
        }
        Some(at)
    }

    /// Returns a run and joins it with its neighbours.
    pub(crate) fn free(&mut self, at: u64, len: u64) {
        let len = len.next_multiple_of(self.page);
        let i = self.free.partition_point(|&(start, _)| start < at);
        self.free.insert(i, (at, len));
        if i + 1 < self.free.len() && at + len == self.free[i + 1].0 {
            self.free[i].1 += self.free.remove(i + 1).1;
        }
        if i > 0 && self.free[i - 1].0 + self.free[i - 1].1 == at {
            self.free[i - 1].1 += self.free.remove(i).1;
        }
    }

    fn in_use(&self) -> u64 {
        self.bytes.len() as u64 - self.free.iter().map(|&(_, n)| n).sum::<u64>()
    }
}

impl<D: Device> Engine<D> {
    /// Takes a part of the arena for the payload bytes `range` and copies them in.
    pub(crate) fn bounce_in(
        &mut self,
        id: ExposureId,
        range: std::ops::Range<u64>,
    ) -> Result<RegionId, DeviceError> {
        let len = range.end - range.start;
        let unsupported = DeviceError::new(Verb::RegMr, errno::EOPNOTSUPP);
        let grant = self.slots.exposures.get(id).map(|e| e.grant).ok_or(unsupported)?;
        let arena = self.arenas.iter_mut().find(|a| a.grant == grant).ok_or(unsupported)?;
        let Some(at) = arena.take(len) else {
            let (limit, in_use) = (arena.bytes.len() as u64, arena.in_use());
            let info = LimitInfo { what: "bounce arena bytes", need: len, limit, in_use };
            return Err(DeviceError::limit(Verb::RegMr, errno::EAGAIN, info));
        };
        let rkey = arena.rkey;
        let region = self.keys.add_live(RegionKind::Bounce { at, len, grant }, rkey, id);
        // For a peer that writes too: what it does not write must be what was there, and never
        // what another operation left in the arena.
        self.bounce_copy(id, at, range, true);
        Ok(region)
    }

    /// Copies what the peer wrote into the buffers of the exposure.
    pub(crate) fn bounce_out(&mut self, id: ExposureId, region: RegionId) {
        let Some(RegionKind::Bounce { at, .. }) = self.keys.get(region).map(|r| r.kind) else {
            return;
        };
        let Some(e) = self.slots.exposures.get(id) else { return };
        let Some(k) = e.regions.iter().position(|&r| r == region) else { return };
        let Some(part) = e.parts.get(k) else { return };
        if e.grant == Grant::PeerWrites {
            let range = part.bytes.clone();
            self.bounce_copy(id, at, range, false);
        }
    }

    fn bounce_copy(&mut self, id: ExposureId, at: u64, range: std::ops::Range<u64>, inward: bool) {
        let Some(e) = self.slots.exposures.get(id) else { return };
        let Some(arena) = self.arenas.iter().find(|a| a.grant == e.grant) else { return };
        let mut buf = [0u8; CHUNK];
        let mut arena_at = at as usize;
        for (i, span) in e.buffers.spans(Place::default(), range) {
            let Some(Lent { bytes, .. }) = e.lent.get(i) else { return };
            let mut pos = span.start;
            while pos < span.end {
                let n = CHUNK.min(span.end - pos);
                let (from, from_at, to, to_at) = if inward {
                    (bytes, pos, &arena.bytes, arena_at)
                } else {
                    (&arena.bytes, arena_at, bytes, pos)
                };
                // Both ranges were checked when the exposure was made and the run was taken.
                let _ = from.copy_out(from_at, &mut buf[..n]) && to.copy_in(to_at, &buf[..n]);
                (pos, arena_at) = (pos + n, arena_at + n);
            }
        }
        self.stats.copies += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_again_in_any_order() {
        let (bytes, _) = DmaBuf::new(8 * 4096).unwrap().into_exposed();
        let mut a = Arena {
            grant: Grant::PeerReads,
            bytes,
            addr: DmaAddr(0),
            mr: None,
            rkey: Rkey::from_bits(0),
            page: 4096,
            free: vec![(0, 8 * 4096)],
        };
        let runs: Vec<_> = (0..4).map(|i| (a.take(4096 * (i % 2) + 1).unwrap(), i)).collect();
        assert_eq!(a.in_use(), 6 * 4096);
        assert_eq!(a.take(3 * 4096), None);
        for i in [2, 0, 3, 1] {
            let (at, k) = runs[i];
            a.free(at, 4096 * (k % 2) + 1);
        }
        assert_eq!(a.free, [(0, 8 * 4096)]);
    }
}
