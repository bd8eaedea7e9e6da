//! An owner, whose device may lie, and a peer.

use memreg::core::device::fault::{FaultPlan, Faulty};
use memreg::core::sizing::Ask;
use memreg::strategies::{Fmr, Frwr, Physical};
use memreg::{
    Caps, DmaBuf, Driven, Fabric, MemReg, OpenOptions, SimDevice, State, Tick, connect_pair,
};

pub type Owner = memreg::core::Transport<Faulty<SimDevice>, Box<dyn MemReg>>;
pub type Peer = memreg::core::Transport<SimDevice, Fmr>;

pub struct Rig {
    pub owner: Owner,
    pub peer: Peer,
    pub plan: FaultPlan,
    pub node: SimDevice,
    pub now: Tick,
}

/// How the owner grants access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    PageLists,
    Windows,
    Verbs,
    BounceArena,
}

impl By {
    fn caps(self) -> Caps {
        match self {
            By::Windows => Caps {
                max_fast_reg_page_list_len: 0,
                mem_window_type_2b: true,
                max_mw: 1000,
                ..Caps::default()
            },
            _ => Caps::default(),
        }
    }

    fn strategy(self) -> Box<dyn MemReg> {
        match self {
            By::PageLists | By::Windows => Box::new(Frwr::default()),
            By::Verbs => Box::new(Fmr::default()),
            By::BounceArena => Box::new(Physical::new(true)),
        }
    }
}

impl Rig {
    /// Connected. Small queues, so that few bytes of input reach their ends.
    pub fn new(by: By) -> Rig {
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", by.caps());
        let plan = FaultPlan::new();
        let ask = Ask {
            credits: 4,
            max_payload_bytes: 4096,
            max_message_bytes: 64,
            danger_trust_peer: by == By::BounceArena,
            ..Ask::default()
        };
        let options = OpenOptions { ask, drain_limit_ns: 1000, ..OpenOptions::default() };
        let device = Faulty::new(node.clone(), plan.clone());
        let owner = Owner::open(device, by.strategy(), &options).unwrap();
        let peer = fabric.add_node("peer", Caps::default());
        let peer = Peer::open(peer, Fmr::default(), &options).unwrap();
        let mut rig = Rig { owner, peer, plan, node, now: Tick(1) };
        connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
        rig
    }

    /// Drives both ends until nothing moves, at most for some rounds: a device that lies may keep
    /// them busy.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            let moved = [self.owner.drive(self.now), self.peer.drive(self.now)];
            if moved.iter().all(|m| matches!(m, Ok(false))) {
                break;
            }
        }
    }

    /// Takes both ends down, however long that takes; within the limits of the drain it must end.
    pub fn take_down(&mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        for _ in 0..5 {
            self.settle();
            self.now = self.now.after(1000);
        }
        assert!(matches!(self.owner.state(), State::Down(_)), "{:?}", self.owner.state());
        assert!(matches!(self.peer.state(), State::Down(_)), "{:?}", self.peer.state());
    }
}

pub fn buffer(len: usize, fill: u8) -> DmaBuf {
    let mut buf = DmaBuf::new(len).unwrap();
    buf.fill(fill);
    buf
}
