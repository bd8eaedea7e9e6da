//! Buffers that are dropped while the queue of their MRs is drained and closed.
//!
//! Not under loom, which takes memory that is kept on purpose for a leak.

use super::explore::every;
use super::thread;
use crate::mem::{Allocation, DeregQueue, DmaBuf};
use crate::sync::Arc;
use crate::types::MrId;

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
