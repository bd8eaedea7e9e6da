//! The last holder of some bytes, and buffers that are dropped while their queue is drained.

use super::explore::every;
use crate::mem::{Allocation, DeregQueue, DmaBuf, Fenced, Unmapped};
use crate::sync::Arc;
use crate::types::MrId;
use shuttle::thread;

fn unmapped() -> Unmapped {
    Unmapped::after(Fenced::mint())
}

#[test]
fn bytes_come_back_to_their_last_holder_alone() {
    every("bytes are taken back while a device writes them", || {
        let (mut bytes, _) = DmaBuf::new(8).unwrap().into_exposed();
        let lent = bytes.clone();
        let device = thread::spawn(move || {
            assert!(lent.copy_in(0, &[1]));
            thread::yield_now();
            assert!(lent.copy_in(0, &[2]));
        });
        let mut device = Some(device);
        let buf = loop {
            match bytes.into_buf(unmapped(), None) {
                Ok(buf) => break buf,
                Err((kept, _)) => bytes = kept,
            }
            device.take().expect("nobody else holds them").join().unwrap();
        };
        let seen = buf[0];
        thread::yield_now();
        assert_eq!((seen, buf[0]), (2, 2), "bytes of a `DmaBuf` changed by another holder");
    });
}

#[test]
fn memory_is_unmapped_by_whoever_lets_go_last() {
    every("two holders of some bytes let go at once", || {
        let (bytes, _) = DmaBuf::new(8).unwrap().into_exposed();
        let (lent, memory) = (bytes.clone(), bytes.lifetime());
        let other = thread::spawn(move || drop(lent));
        let taken = bytes.into_buf(unmapped(), None);
        other.join().unwrap();
        // Whether it came back or was refused, exactly one holder is left, and then none.
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(taken);
        assert_eq!(Arc::strong_count(&memory), 1);
    });
}

#[test]
fn no_mr_is_forgotten_while_its_queue_closes() {
    every("buffers are dropped while the owner of their MRs closes", || {
        let queue = Arc::new(DeregQueue::default());
        let memory = || DmaBuf::new(8).unwrap().into_exposed().0.lifetime();
        let (stuck, fine) = ((MrId(1), memory()), (MrId(2), memory()));
        let push = |(mr, memory): &(MrId, Arc<Allocation>)| (*mr, Arc::clone(memory));
        let (theirs, dropped) = (Arc::clone(&queue), [push(&fine), push(&stuck)]);
        let other = thread::spawn(move || {
            for (mr, memory) in dropped {
                theirs.push(mr, memory);
            }
        });
        let popped = queue.pop();
        let mut kept = vec![];
        if let Some((mr, memory)) = popped {
            // The device would not end it: as `drain_local_queue` does.
            if mr == MrId(1) { queue.push(mr, memory) } else { kept.push(memory) }
        }
        let leaked = queue.close([MrId(1)].into());
        other.join().unwrap();
        assert!(leaked == 0 || leaked == 8);
        assert!(queue.pop().is_none(), "nobody would ever take it");
        drop(kept);
        let held = [&stuck.1, &fine.1].map(Arc::strong_count);
        assert_eq!(held, [2, 1], "memory of the MR that is stuck is kept, the other's is free");
    });
}
