//! The last holder of some bytes.

use super::explore::every;
use super::thread;
use crate::mem::{DmaBuf, Fenced, Unmapped};
use crate::sync::Arc;
use crate::types::DeviceId;

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
fn bytes_are_lent_to_one_device_at_a_time() {
    every("two devices are lent the same bytes at once", || {
        let (bytes, _) = DmaBuf::new(8).unwrap().into_exposed();
        let (one, two, same) = (DeviceId(1), DeviceId(2), bytes.clone());
        let other = thread::spawn(move || same.lend_to(one));
        let mine = bytes.lend_to(two);
        let others = other.join().unwrap();
        assert_ne!(mine, others, "one of them, and only one");
        let (bytes, _) = bytes.into_buf(unmapped(), None).unwrap_err();
        let ended = bytes.end_loan(if mine { two } else { one }, Fenced::mint()).unwrap();
        assert!(bytes.into_buf(ended, None).is_ok());
    });
}
