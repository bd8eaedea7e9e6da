//! What a seed decides before anything runs.

use super::liar::{Honesty, Liar};
use fastrand::Rng;
use memreg_core::MemReg;
use memreg_core::device::Caps;
use memreg_core::device::sim::profile;
use memreg_core::sizing::Ask;
use memreg_core::transport::OpenOptions;
use memreg_strategies::guarded::Guarded;
use memreg_strategies::{Fmr, Frwr, Physical, Strategy};

/// A whole run.
#[derive(Debug)]
pub struct Plan {
    /// No fault, no hostile peer, no race: the connections must then never go down.
    pub calm: bool,
    /// Both sides' nodes are shared by all connections.
    pub shared_nodes: bool,
    pub steps: u32,
    /// One entry a connection, one a side.
    pub sides: Vec<[SidePlan; 2]>,
    /// Weight of each operation; 0 for those that this seed leaves out.
    pub ops: Vec<(Op, u32)>,
    pub faults: Vec<Fault>,
    /// Faults in 1000 steps.
    pub fault_rate: u32,
    /// Longest buffer in bytes.
    pub buffer_len: usize,
}

/// One transport.
#[derive(Clone, Debug)]
pub struct SidePlan {
    pub kind: Kind,
    pub caps: Caps,
    pub options: OpenOptions,
    /// Its keys are brought close to where their tags wrap.
    pub aged: bool,
    /// What a liar draws its lies from.
    pub lies: u64,
}

/// The strategies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Frwr,
    Fmr,
    Physical,
    /// `frwr`, but for its lies.
    Liar,
}

/// What one step can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Expose,
    /// With a lease.
    ExposeUntil,
    Renew,
    Send,
    SendMarked,
    Flush,
    Access,
    /// Of an exposure that the peer has not been told of, or whose revocation has begun.
    RacingAccess,
    Reply,
    BadInvalidation,
    Recv,
    Revoke,
    /// Several with one post.
    RevokeAll,
    Cancel,
    DropHandle,
    ForgetHandle,
    Reclaim,
    Take,
    DropAccess,
    StaleAccess,
    ForeignAccess,
    Poll,
    Step,
    Tick,
    Disconnect,
    Reconnect,
    Recover,
    Kill,
    Unplug,
    /// A buffer that one transport has used goes to another.
    PassBuffer,
}

/// What can go wrong by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    RefusePost,
    CutPost,
    RefuseRecv,
    PausePolls,
    HoldQp,
    DuplicateWc,
    SwallowWc,
    SwallowLateSends,
    StaleWc,
    QpToErr,
    OutOfMemory,
    DeregBusy,
    MapFails,
    UnmapFails,
    DestroyQpFails,
    ModifyQpFails,
    PollFails,
    Event,
    CqOverrun,
    MergedDma,
    /// A completion says that the peer has invalidated a key with another tag than the live one.
    WrongInvalidation,
}

const FAULTS: [Fault; 21] = [
    Fault::RefusePost,
    Fault::CutPost,
    Fault::RefuseRecv,
    Fault::PausePolls,
    Fault::HoldQp,
    Fault::DuplicateWc,
    Fault::SwallowWc,
    Fault::SwallowLateSends,
    Fault::StaleWc,
    Fault::QpToErr,
    Fault::OutOfMemory,
    Fault::DeregBusy,
    Fault::MapFails,
    Fault::UnmapFails,
    Fault::DestroyQpFails,
    Fault::ModifyQpFails,
    Fault::PollFails,
    Fault::Event,
    Fault::CqOverrun,
    Fault::MergedDma,
    Fault::WrongInvalidation,
];

/// Operations that every seed has, with the range of their weights.
const USUAL: [(Op, u32, u32); 12] = [
    (Op::Expose, 8, 30),
    (Op::Send, 4, 16),
    (Op::Flush, 1, 6),
    (Op::Access, 6, 30),
    (Op::Recv, 4, 12),
    (Op::Revoke, 3, 12),
    (Op::Reclaim, 3, 12),
    (Op::Take, 3, 12),
    (Op::Poll, 6, 30),
    (Op::Step, 8, 30),
    (Op::Tick, 1, 6),
    (Op::Reconnect, 2, 10),
];

/// Operations of which each seed has a subset; `true` for those that a calm seed may have.
const SOMETIMES: [(Op, u32, bool); 18] = [
    (Op::ExposeUntil, 6, false),
    (Op::Renew, 3, true),
    (Op::SendMarked, 8, true),
    (Op::Reply, 8, true),
    (Op::DropHandle, 3, false),
    (Op::DropAccess, 3, false),
    (Op::RacingAccess, 4, false),
    (Op::BadInvalidation, 2, false),
    (Op::Cancel, 4, false),
    (Op::ForgetHandle, 1, false),
    (Op::StaleAccess, 2, false),
    (Op::ForeignAccess, 2, false),
    (Op::Disconnect, 2, false),
    (Op::Recover, 4, true),
    (Op::Kill, 1, false),
    (Op::Unplug, 1, false),
    (Op::PassBuffer, 4, true),
    (Op::RevokeAll, 6, true),
];

impl Plan {
    pub fn draw(rng: &mut Rng) -> Plan {
        let calm = rng.u32(..8) == 0;
        let connections = rng.usize(1..=3);
        let shared_nodes = rng.bool();
        let shared = [draw_caps(rng), draw_caps(rng)];
        let sides = (0..connections)
            .map(|_| {
                let mut pair = [0, 1].map(|s: usize| {
                    let caps = if shared_nodes { shared[s].clone() } else { draw_caps(rng) };
                    SidePlan::draw(rng, caps, calm)
                });
                // Both ends agree on how long a message may be.
                let agreed = pair[0].options.ask.max_message_bytes;
                pair[1].options.ask.max_message_bytes = agreed;
                pair
            })
            .collect();
        let mut ops: Vec<_> = USUAL.iter().map(|&(op, lo, hi)| (op, rng.u32(lo..=hi))).collect();
        for (op, most, in_calm) in SOMETIMES {
            if (in_calm || !calm) && rng.bool() {
                ops.push((op, rng.u32(1..=most)));
            }
        }
        let share = rng.u32(1..=10);
        let faults = FAULTS.iter().copied().filter(|_| !calm && rng.u32(..10) < share).collect();
        Plan {
            calm,
            shared_nodes,
            steps: rng.u32(100..1500),
            sides,
            ops,
            faults,
            fault_rate: [5, 15, 40, 100][rng.usize(..4)],
            buffer_len: [600, 3000, 20_000][rng.usize(..3)],
        }
    }
}

impl SidePlan {
    fn draw(rng: &mut Rng, caps: Caps, calm: bool) -> SidePlan {
        // The sizing may refuse a combination; then other sizes are drawn.
        loop {
            let ask = Ask {
                max_payload_bytes: [2048, 16_384, 65_536][rng.usize(..3)],
                credits: rng.u32(1..=6),
                backchannel: rng.u32(0..=2),
                max_message_bytes: [128, 256, 600][rng.usize(..3)],
                danger_trust_peer: true,
                ..Ask::default()
            };
            let kind = [Kind::Frwr, Kind::Frwr, Kind::Frwr, Kind::Fmr, Kind::Physical];
            let mut kind = kind[rng.usize(..kind.len())];
            if kind == Kind::Frwr && !calm && rng.u32(..5) == 0 {
                kind = Kind::Liar;
            }
            let lies = rng.u64(..);
            let mut strategy = kind.build(lies, Honesty::default());
            if strategy.check(&caps).is_ok() && strategy.open(&caps, &ask).is_ok() {
                let options =
                    OpenOptions { ask, drain_limit_ns: DRAIN_LIMIT_NS, ..OpenOptions::default() };
                let aged = kind != Kind::Liar && rng.u32(..24) == 0;
                return SidePlan { kind, caps, options, aged, lies };
            }
        }
    }
}

/// How long a drain may wait, in the simulation's time.
pub const DRAIN_LIMIT_NS: u64 = 1000;

impl Kind {
    pub fn build(self, lies: u64, honesty: Honesty) -> Strategy {
        match self {
            Kind::Frwr => Frwr::new().into(),
            Kind::Fmr => Fmr::new().into(),
            Kind::Physical => Physical::new(true).into(),
            Kind::Liar => Guarded::new("liar", Box::new(Liar::new(lies, honesty))).into(),
        }
    }
}

fn draw_caps(rng: &mut Rng) -> Caps {
    let names = profile::names();
    let base = profile::builtin(names[rng.usize(..names.len())]);
    let mut caps = base.map(|p| p.caps).unwrap_or_default();
    if rng.bool() {
        caps.page_size = [512, 4096][rng.usize(..2)];
        caps.max_inline_data = [0, 64, 256][rng.usize(..3)];
        caps.max_sge = rng.u32(1..=8);
        caps.max_sge_rd = rng.u32(1..=4);
    }
    if rng.bool() && caps.max_fast_reg_page_list_len > 0 {
        caps.max_fast_reg_page_list_len = [1, 2, 3, 8, 64][rng.usize(..5)];
        caps.sg_gaps = rng.bool();
    }
    if rng.u32(..5) == 0 {
        // No page lists, but windows.
        caps.max_fast_reg_page_list_len = 0;
        (caps.mem_mgt_extensions, caps.mem_window_type_2b) = (true, true);
        caps.max_mw = [200, 1000][rng.usize(..2)];
    }
    if rng.bool() {
        caps.max_qp_wr = [40, 70, 128, 1024][rng.usize(..4)];
    }
    caps
}
