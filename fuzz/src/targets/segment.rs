//! The wire form of a segment, as a hostile peer may send it.

use super::input::Input;
use super::rig::{By, Rig, buffer};
use memreg::Grant;
use memreg::core::types::{Epoch, Segment};

/// The epoch that is current, an offset, a length and a choice, then the wire form.
///
/// It is refused, or it is exactly what it encodes; and whatever it names, using it ends in an
/// error or in a success, gives the buffer back, and reaches nothing that was not exposed.
pub fn segment(data: &[u8]) {
    let mut input = Input(data);
    let (current, at, len, choice) = (Epoch(input.u32()), input.u64(), input.byte(), input.byte());
    let wire = input.0;
    let Ok(decoded) = Segment::from_wire(wire, current) else { return };
    assert_eq!(decoded.to_wire(), wire);
    assert!(decoded.len > 0 && decoded.addr.checked_add(decoded.len).is_some());
    assert_eq!(decoded.epoch, current);
    use_it(decoded, at, len, choice);
}

fn use_it(decoded: Segment, at: u64, len: u8, choice: u8) {
    let mut rig = Rig::new(By::PageLists);
    let exposed = rig.peer.expose(buffer(64, 7), Grant::PeerWrites).unwrap();
    rig.peer.flush().unwrap();
    rig.settle();
    let honest = rig.peer.segments(&exposed).unwrap()[0];
    // Half of the inputs name the real key, so that what else is wrong with them counts.
    let rkey = if choice & 1 == 0 { decoded.rkey } else { honest.rkey };
    let addr = if choice & 2 == 0 { decoded.addr } else { honest.addr };
    let hostile = Segment { rkey, addr, epoch: honest.epoch, ..decoded };
    let len = usize::from(len).max(1);
    let started = match choice >> 2 & 3 {
        0 => rig.owner.read(&hostile, at, buffer(len, 1)),
        1 => rig.owner.write(&hostile, at, buffer(len, 1)),
        _ => {
            let _ = rig.owner.send_with_inv(b"inv", &hostile);
            rig.settle();
            rig.take_down();
            return;
        }
    };
    match started {
        Err(refused) => assert_eq!(refused.buffers.count(), 1),
        Ok(op) => {
            rig.settle();
            let done = rig.owner.take(op).expect("it has ended");
            assert_eq!(done.buffers.count(), 1);
        }
    }
    rig.take_down();
    let back = rig.peer.reclaim(exposed).expect("no key is left").into_first().unwrap();
    let has_key = hostile.rkey == honest.rkey;
    assert!(has_key || back.iter().all(|b| *b == 7), "a write without the key arrived");
    assert_eq!(rig.owner.stats().bytes_leaked + rig.peer.stats().bytes_leaked, 0);
}
