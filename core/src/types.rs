//! The words of the field as types; no bare integer crosses a module boundary.

use crate::error::Disposition;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Defines a newtype over an integer that is only a name for a thing.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $int);
    };
}

id!(
    /// One opened device in this process; never reused, so a registration can tell whose it is.
    DeviceId, u64);
id!(
    /// A protection domain of one device.
    PdId, u32);
id!(
    /// A completion queue of one device.
    CqId, u32);
id!(
    /// A queue pair of one device; its number on the wire (24 bits).
    QpId, u32);
id!(
    /// A memory region object of one device: an ordinary MR or one for REG_MR.
    MrId, u32);
id!(
    /// A type-2 memory window object of one device: the index of its keys.
    MwId, u32);
id!(
    /// An address as the device sees it. On the software device it is a counter, never a pointer.
    DmaAddr, u64);
id!(
    /// A moment, in nanoseconds since an origin of the caller's choice.
    ///
    /// # Ordering
    /// Moments given to one transport must not go back; one that does counts as the latest seen.
    Tick, u64);
id!(
    /// The life of one connection: counts up at each (re)connect, so that nothing of an earlier one
    /// is believed.
    Epoch, u32);
id!(
    /// One transport in this process; tells a handle of another transport apart.
    TransportId, u64);
id!(
    /// The cookie of a WR. The engine packs epoch, operation and ring sequence into it.
    WrId, u64);

impl DeviceId {
    /// An id that no device of this process has had.
    pub(crate) fn fresh() -> DeviceId {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        DeviceId(OPENED.fetch_add(1, Ordering::Relaxed))
    }
}

impl Tick {
    /// The moment `ns` nanoseconds later; saturates.
    #[must_use]
    pub const fn after(self, ns: u64) -> Tick {
        Tick(self.0.saturating_add(ns))
    }
}

/// Names a registered range in an SGE of a local WR. Useless to a peer, and not interchangeable
/// with [`Rkey`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lkey(u32);

impl Lkey {
    /// Wraps what the device returned.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Lkey {
        Lkey(bits)
    }

    /// The number that goes into an SGE.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }
}

/// A capability: whoever holds it may reach the memory. `Debug` shows the index only, never the
/// tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(u32);

impl MwId {
    /// The window that a key belongs to, if it is a window's.
    #[must_use]
    #[inline]
    pub const fn of(rkey: Rkey) -> MwId {
        MwId(rkey.index())
    }
}

impl Rkey {
    /// Wraps what the device or a peer gave.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Rkey {
        Rkey(bits)
    }

    /// The number that goes on the wire.
    #[must_use]
    #[inline]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The upper 24 bits, fixed for the life of the MR or window.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The low 8 bits, which each registration changes.
    #[must_use]
    #[inline]
    pub const fn tag(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// The key with the next tag; 0xff wraps to 0x00 and the index does not change (MAP-13).
    #[must_use]
    #[inline]
    pub const fn next_tag(self) -> Rkey {
        Rkey((self.0 & !0xff) | (self.tag().wrapping_add(1) as u32))
    }

    /// The key that this one is the next of.
    #[must_use]
    pub(crate) const fn last_tag(self) -> Rkey {
        Rkey((self.0 & !0xff) | (self.tag().wrapping_sub(1) as u32))
    }
}

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rkey({:#x}..)", self.index())
    }
}

/// What the peer may do with an exposure: one direction, never both (MAP-16).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Grant {
    /// The peer may RDMA READ the bytes.
    PeerReads,
    /// The peer may RDMA WRITE the bytes.
    PeerWrites,
}

impl Grant {
    /// The rights that a registration for this direction carries, and no more.
    ///
    /// # Source
    /// `ibv_reg_mr(3)`: remote write requires local write.
    #[must_use]
    #[inline]
    pub const fn access(self) -> Access {
        match self {
            Grant::PeerReads => Access::REMOTE_READ,
            Grant::PeerWrites => Access::REMOTE_WRITE.union(Access::LOCAL_WRITE),
        }
    }
}

bitflags::bitflags! {
    /// Access rights of a registration, with the bit values of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u32 {
        /// The device may write on behalf of the owner (receive, RDMA READ sink).
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may use atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound onto the MR.
        const MW_BIND = 1 << 4;
        /// Not a right: the device may write in any order. A kernel or device that does not know
        /// it may ignore it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Rights that need memory which may be written; the kernel counts the binding of windows among
    /// them.
    pub const WRITING: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::MW_BIND);
    /// Rights that let a peer in.
    pub const REMOTE: Access =
        Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
}

/// What names one run of exposed bytes to the peer: key, address and length, for one connection
/// epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// The capability.
    pub rkey: Rkey,
    /// Where the run starts in the region's address space (its iova).
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The direction granted.
    pub grant: Grant,
    /// The owner's connection epoch in which the key was granted.
    pub epoch: Epoch,
}

/// Why the wire form of a segment is not usable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// Fewer or more bytes than [`Segment::WIRE_LEN`].
    #[error("segment is {got} bytes on the wire, expected {}", Segment::WIRE_LEN)]
    Length {
        /// Bytes given.
        got: usize,
    },
    /// The first byte is not a version that this build knows.
    #[error("segment has wire version {got}, expected {}", Segment::WIRE_VERSION)]
    Version {
        /// The version byte.
        got: u8,
    },
    /// The grant byte is neither read nor write.
    #[error("segment grants {got}, expected 1 (peer reads) or 2 (peer writes)")]
    Grant {
        /// The grant byte.
        got: u8,
    },
    /// Reserved bytes must be zero, or a later format would be misread.
    #[error("segment has reserved bytes that are not zero")]
    Reserved,
    /// Length zero, or the end is past the address space.
    #[error("segment of {len} bytes at {addr:#x} is empty or wraps")]
    Range {
        /// Start.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The segment belongs to an earlier connection; its key is dead or about to be.
    #[error("segment is of connection epoch {got}, the peer's current one is {current}")]
    StaleEpoch {
        /// Epoch in the segment.
        got: u32,
        /// Epoch of the connection.
        current: u32,
    },
}

impl SegmentError {
    /// What to do about it: a segment of an earlier connection must be asked for anew.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            SegmentError::StaleEpoch { .. } => Disposition::Reconnect,
            _ => Disposition::Fatal,
        }
    }
}

impl Segment {
    /// Bytes of the wire form.
    pub const WIRE_LEN: usize = 28;
    /// First byte of the wire form.
    pub const WIRE_VERSION: u8 = 1;

    /// Encodes for a message to the peer: version, grant, two zero bytes, then epoch, rkey (32 bits
    /// each), address and length (64 bits each), big-endian.
    #[must_use]
    pub fn to_wire(&self) -> [u8; Segment::WIRE_LEN] {
        let mut out = [0; Segment::WIRE_LEN];
        out[0] = Segment::WIRE_VERSION;
        out[1] = match self.grant {
            Grant::PeerReads => 1,
            Grant::PeerWrites => 2,
        };
        out[4..8].copy_from_slice(&self.epoch.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_bits().to_be_bytes());
        out[12..20].copy_from_slice(&self.addr.to_be_bytes());
        out[20..28].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Decodes what a peer sent and refuses what cannot be meant for the connection epoch
    /// `current`.
    ///
    /// # Errors
    /// [`SegmentError`] for anything but a well-formed segment of the current epoch. Nothing has
    /// been posted.
    pub fn from_wire(bytes: &[u8], current: Epoch) -> Result<Segment, SegmentError> {
        let b: &[u8; Segment::WIRE_LEN] =
            bytes.try_into().map_err(|_| SegmentError::Length { got: bytes.len() })?;
        if b[0] != Segment::WIRE_VERSION {
            return Err(SegmentError::Version { got: b[0] });
        }
        let grant = match b[1] {
            1 => Grant::PeerReads,
            2 => Grant::PeerWrites,
            got => return Err(SegmentError::Grant { got }),
        };
        if b[2] != 0 || b[3] != 0 {
            return Err(SegmentError::Reserved);
        }
        let u32_at = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| (u64::from(u32_at(i)) << 32) | u64::from(u32_at(i + 4));
        let seg = Segment {
            epoch: Epoch(u32_at(4)),
            rkey: Rkey::from_bits(u32_at(8)),
            addr: u64_at(12),
            len: u64_at(20),
            grant,
        };
        if seg.len == 0 || seg.addr.checked_add(seg.len).is_none() {
            return Err(SegmentError::Range { addr: seg.addr, len: seg.len });
        }
        if seg.epoch != current {
            return Err(SegmentError::StaleEpoch { got: seg.epoch.0, current: current.0 });
        }
        Ok(seg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seg() -> Segment {
        Segment {
            rkey: Rkey::from_bits(0x0102_03ff),
            addr: 0x1_0000_0010,
            len: 8 << 30,
            grant: Grant::PeerWrites,
            epoch: Epoch(7),
        }
    }

    #[test]
    fn wire_form_round_trips_and_is_fixed() {
        let w = seg().to_wire();
        assert_eq!(Segment::from_wire(&w, Epoch(7)), Ok(seg()));
        assert_eq!(&w[..12], &[1, 2, 0, 0, 0, 0, 0, 7, 1, 2, 3, 0xff]);
    }

    #[test]
    fn wire_form_refuses_every_kind_of_damage() {
        let good = seg().to_wire();
        for len in 0..40 {
            let mut v = good.to_vec();
            v.resize(len, 0);
            assert_eq!(Segment::from_wire(&v, Epoch(7)).is_ok(), len == Segment::WIRE_LEN);
        }
        let damage = |i: usize, v: u8| {
            let mut w = good;
            w[i] = v;
            Segment::from_wire(&w, Epoch(7))
        };
        assert_eq!(damage(0, 2), Err(SegmentError::Version { got: 2 }));
        assert_eq!(damage(1, 3), Err(SegmentError::Grant { got: 3 }));
        assert_eq!(damage(3, 1), Err(SegmentError::Reserved));
        assert_eq!(damage(7, 6), Err(SegmentError::StaleEpoch { got: 6, current: 7 }));
        let wraps = Segment { addr: u64::MAX - 1, len: 3, ..seg() }.to_wire();
        assert!(matches!(Segment::from_wire(&wraps, Epoch(7)), Err(SegmentError::Range { .. })));
    }

    #[test]
    fn map_13_tag_wraps_without_touching_the_index() {
        let k = Rkey::from_bits(0x0001_02ff);
        assert_eq!(k.next_tag().to_bits(), 0x0001_0200);
        assert!(!format!("{k:?}").contains("ff"));
    }

    #[test]
    fn map_16_one_direction_only() {
        assert_eq!(Grant::PeerReads.access(), Access::REMOTE_READ);
        assert_eq!(Grant::PeerWrites.access(), Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    }
}
