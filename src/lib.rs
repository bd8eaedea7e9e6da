//! Expose memory to a remote peer over RDMA, fast, and take it back safely.
//!
//! This crate is the whole of `memreg` for an application: the types of its parts, [`open`] from a
//! configuration, and the command line. The logic is in the parts: [`core`] (who owns the bytes,
//! when a key is dead), [`strategies`] (how memory is granted), [`selector`] (which strategy, and
//! why), [`config`] (what the user wants).
//!
//! ```text
//! DmaBuf ─expose─► Exposed ─send─► the peer reads or writes ─revoke, poll─► reclaim ─► DmaBuf
//! ```
//! While a buffer is exposed there is no way to look at its bytes: `expose` has moved it away, and
//! `reclaim` gives it back only once no key reaches it.
//!
//! # Example
//! Two ends on one software fabric; the peer writes into a buffer of the owner.
//! ```
//! use memreg::{DmaBuf, Grant, NoReply, Reply, Settings, Tick, connect_pair, settle};
//!
//! let settings = Settings::default();
//! let mut owner = memreg::open(&settings)?.transport;
//! let mut peer = memreg::open_beside(&owner, &settings)?.transport;
//! connect_pair(&mut owner, &mut peer)?;
//! let now = Tick(0);
//!
//! // The owner exposes 64 bytes and tells the peer where they are.
//! let exposed = owner.expose(DmaBuf::new(64)?, Grant::PeerWrites)?;
//! let segment = owner.segments(&exposed)?[0];
//! owner.send(&segment.to_wire(), Reply::InvalidatesNothing)?;
//! settle(now, &mut [&mut owner, &mut peer])?;
//!
//! // The peer writes, and says so.
//! let mut message = vec![];
//! peer.recv(&mut message).ok_or("no message")?;
//! let segment = peer.import(&message)?;
//! let written = peer.write(&segment, 0, DmaBuf::from_bytes(&[7; 64])?)?;
//! settle(now, &mut [&mut owner, &mut peer])?;
//! assert_eq!(peer.take(written)?.result?, 64);
//!
//! // The owner takes the access back; only then can it see the bytes.
//! owner.revoke(&exposed, NoReply::Unmarked)?;
//! settle(now, &mut [&mut owner, &mut peer])?;
//! let buf = owner.reclaim(exposed)?.into_first().ok_or("no buffer")?;
//! assert_eq!(&buf[..], &[7; 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod audit;
pub mod cli;
mod open;

pub use open::{
    OpenError, Opened, ShareError, open, open_beside, open_device, open_in, open_on, profile_of,
    share_pd,
};

pub use memreg_config as config;
pub use memreg_core as core;
pub use memreg_selector as selector;
pub use memreg_strategies as strategies;

pub use memreg_config::{ConfigErrors, Loaded, Loader, Settings};
pub use memreg_core::device::sim::{Fabric, Profile, SimDevice, profile};
pub use memreg_core::device::{AnyDevice, Caps, Device, Endpoint};
pub use memreg_core::drive::{Driven, connect_pair, settle};
pub use memreg_core::transport::{
    Buffers, Exposed, ExposureState, Ledger, LocalDone, LocalOp, NoReply, OpenOptions, Poisoned,
    Progress, Received, Reply, ReplyToken, SharedPd, State, Stats, error,
};
pub use memreg_core::{Disposition, DmaBuf, Grant, MemReg, Segment, Tick};
pub use memreg_selector::{Candidate, choose};
pub use memreg_strategies::{Registry, Strategy};

/// A connection with whatever device and strategy were chosen at run time.
pub type Transport = memreg_core::Transport<AnyDevice, Strategy>;
