//! Transports of several threads in one protection domain.

use super::explore::many;
use super::rig::{End, NOW, quiet};
use memreg_core::DmaBuf;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::{Caps, Device};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::sizing::Ask;
use memreg_core::transport::{OpenOptions, QpBoundKeys, SharedPd, Transport};
use memreg_core::types::{Grant, Segment};
use memreg_strategies::{Fmr, Frwr};
use shuttle::thread;

const SCHEDULES: usize = 500;

/// Two owners in one PD, and what each may read from its peer.
struct Shared {
    node: SimDevice,
    pd: SharedPd<SimDevice>,
    owners: [(End<Frwr>, Segment); 2],
    peers: [End<Fmr>; 2],
}

impl Shared {
    /// Room for `buffers` registered buffers beside the message buffers.
    fn new(buffers: u32) -> Shared {
        let caps = Caps {
            max_fast_reg_page_list_len: 0,
            mem_window_type_2b: true,
            max_mw: 100,
            max_mr: 4 + buffers,
            ..Caps::default()
        };
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", caps);
        let pd = SharedPd::new(node.clone(), QpBoundKeys::seen_on(node.id())).unwrap();
        let conns = [(); 2].map(|()| {
            let ask = Ask { credits: 2, max_message_bytes: 64, ..Ask::default() };
            let options = OpenOptions { ask, ..OpenOptions::default() };
            let mut owner = Transport::open_in(&pd, Frwr::default(), &options).unwrap();
            let peer = fabric.add_node("peer", Caps::default());
            let mut peer = Transport::open(peer, Fmr::default(), &options).unwrap();
            connect_pair(&mut owner, &mut peer).unwrap();
            let buf = DmaBuf::from_bytes(&[7; 64]).unwrap();
            let e = peer.expose(buf, Grant::PeerReads).unwrap();
            let segment = peer.segments(&e).unwrap()[0];
            // It stays exposed for as long as the peer lives.
            std::mem::forget(e);
            settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
            ((owner, segment), peer)
        });
        let [(one, first), (two, second)] = conns;
        Shared { node, pd, owners: [one, two], peers: [first, second] }
    }
}

/// Reads from the peer into a new buffer, which is registered for that; `None` if the device has no
/// MR to spare.
fn read((owner, segment): &mut (End<Frwr>, Segment)) -> Option<DmaBuf> {
    let op = owner.read(segment, 0, DmaBuf::new(64).unwrap()).ok()?;
    quiet(owner);
    let buf = owner.take(op).unwrap().buffers.into_first().unwrap();
    assert_eq!(buf[..], [7; 64]);
    Some(buf)
}

#[test]
fn an_mr_that_gets_the_id_of_an_ended_one_is_not_forgotten() {
    fn scenario() {
        let Shared { node, pd, owners: [mut one, mut two], peers } = Shared::new(1);
        // The only MR to spare: it goes to the queue, and its id to the next buffer.
        drop(read(&mut one).unwrap());
        let other = thread::spawn(move || {
            let buf = read(&mut two);
            (two, buf)
        });
        quiet(&mut one.0);
        let (two, buf) = other.join().unwrap();
        // The PD ends while the buffer still has its registration.
        drop((one, two, pd));
        let c = node.counters();
        assert_eq!((c.mrs, c.pds, c.mapped_ranges), (0, 0, 0), "{buf:?}");
        drop((buf, peers));
    }
    many("an MR gets the id of one that ends", SCHEDULES, scenario);
}

#[test]
fn two_owners_of_one_pd_end_each_mr_once() {
    fn scenario() {
        let Shared { node, pd, owners: [mut one, mut two], peers } = Shared::new(4);
        let mut bufs: Vec<DmaBuf> = vec![];
        for owner in [&mut one, &mut two] {
            bufs.extend([read(owner).unwrap(), read(owner).unwrap()]);
        }
        let kept = bufs.pop();
        let dropper = thread::spawn(move || drop(bufs));
        let other = thread::spawn(move || {
            quiet(&mut two.0);
            let buf = read(&mut two);
            drop((two, buf));
        });
        quiet(&mut one.0);
        drop((one, pd));
        other.join().unwrap();
        dropper.join().unwrap();
        let c = node.counters();
        assert_eq!((c.mrs, c.pds, c.mapped_ranges), (0, 0, 0));
        assert_eq!(c.dereg_mr_calls, c.reg_mr_calls, "each MR ends once");
        drop((kept, peers));
    }
    many("two owners share a PD while buffers are dropped", SCHEDULES, scenario);
}
