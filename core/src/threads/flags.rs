//! A handle that is dropped while its slot is freed and used again.

use super::explore::every;
use super::thread;
use crate::engine::exposure::{Exposed, ExposureId, Slots};
use crate::sync::Arc;
use crate::types::{Grant, TransportId};

fn expose(slots: &mut Slots) -> (ExposureId, Exposed) {
    let body = slots.new_exposure(Grant::PeerReads);
    let (id, flag) = slots.insert(body);
    assert_eq!(Arc::strong_count(&flag), 2, "an old handle still holds the flag of a new one");
    (id, Exposed { transport: TransportId(1), id, flag: Some(flag) })
}

fn is_abandoned(slots: &Slots, id: ExposureId) -> bool {
    slots.exposures[id].flag.is_abandoned()
}

#[test]
fn no_flag_has_two_masters() {
    every("a slot is used again while its last handle is being dropped", || {
        let mut slots = Slots::new();
        let (first, handle) = expose(&mut slots);
        let other = thread::spawn(move || drop(handle));
        // As the fence of an exposure does: whoever sees the mark may free the slot.
        let freed = is_abandoned(&slots, first);
        if freed {
            slots.free_exposure(first);
        }
        let (second, handle) = expose(&mut slots);
        other.join().unwrap();
        assert!(slots.bell_rang(), "the drop was not heard");
        assert!(!is_abandoned(&slots, second), "its handle lives");
        assert!(freed || is_abandoned(&slots, first), "the drop is lost");
        assert!(!slots.bell_rang());
        drop(handle);
        assert!(slots.bell_rang() && is_abandoned(&slots, second));
    });
}

#[test]
fn every_drop_rings_the_bell_for_somebody() {
    every("two handles are dropped while the owner listens", || {
        let mut slots = Slots::new();
        let (one, first) = expose(&mut slots);
        let (two, second) = expose(&mut slots);
        let other = thread::spawn(move || drop(first));
        let third = thread::spawn(move || drop(second));
        let mut seen = [false; 2];
        let mut listen = |slots: &Slots| {
            if slots.bell_rang() {
                seen[0] |= is_abandoned(slots, one);
                seen[1] |= is_abandoned(slots, two);
            }
        };
        listen(&slots);
        other.join().unwrap();
        third.join().unwrap();
        listen(&slots);
        assert_eq!(seen, [true; 2]);
    });
}
