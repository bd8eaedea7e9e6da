//! Errors with work outstanding, and a clean start afterwards.

use super::rig::{BOTH, LOCAL, PARENT, Rig, device, status};
use crate::device::{Device, DeviceErrorKind, Payload, QpState, WcStatus, WrChain, WrOp};
use crate::types::Rkey;

#[test]
fn st_12_a_qp_error_with_binds_and_invalidations_outstanding_leaves_nothing_behind() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, source) = (rig.memory(16 * 4096, PARENT), rig.memory(64, LOCAL));
    let windows: Vec<_> = (0..16).map(|_| rig.window()).collect();
    let mut keys: Vec<Rkey> = vec![];
    let mut ops = vec![];
    for (i, mw) in windows.iter().enumerate() {
        let key = mw.rkey.next_tag();
        ops.push(rig.bind(*mw, key, &parent, (i as u64 * 4096, 4096), BOTH));
        keys.push(key);
    }
    assert_eq!(rig.run(rig.owner, &ops), WcStatus::Success);
    // A message that nobody receives blocks the queue; binds and invalidations wait behind it.
    let mut chain = WrChain::new();
    let stuck = Payload::Inline(chain.add_inline(b"stuck"));
    let mut ops = vec![WrOp::Send(stuck)];
    ops.extend(keys[..8].iter().map(|&k| WrOp::LocalInv(k)));
    for (i, mw) in windows.iter().enumerate().take(4) {
        ops.push(rig.bind(*mw, keys[i].next_tag(), &parent, (0, 64), BOTH));
    }
    let ids = rig.post_chain(rig.owner, &mut chain, &ops).unwrap();
    rig.dev.qp_to_err(rig.owner).unwrap();
    for &id in &ids {
        let wc = rig.wait(id);
        assert_eq!(status(&wc), WcStatus::WrFlushErr, "flushed, signaled or not");
    }
    assert_eq!(rig.dev.qp_state(rig.owner).unwrap(), QpState::Err);
    // Windows first: a QP that they may be bound on is refused, and would hang.
    let e = rig.dev.destroy_qp(rig.owner).unwrap_err();
    assert_eq!(e.kind(), DeviceErrorKind::Busy);
    for mw in &windows {
        rig.dev.dealloc_mw(mw.mw).unwrap();
    }
    rig.reconnect();
    for &key in keys.iter().rev().take(2) {
        assert_eq!(rig.write(&source, parent.addr.0, key), WcStatus::RemAccessErr);
        rig.reconnect();
    }
    let mw = rig.window();
    let key = mw.rkey.next_tag();
    let bind = rig.bind(mw, key, &parent, (0, 4096), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    assert_eq!(rig.write(&source, parent.addr.0, key), WcStatus::Success);
    rig.dev.dealloc_mw(mw.mw).unwrap();
    rig.release(parent);
    rig.release(source);
    rig.close();
}

#[test]
fn a_device_that_is_dropped_with_everything_on_it_ends_it_in_order() {
    let Some(dev) = device() else { return };
    for _ in 0..3 {
        let mut rig = Rig::new(dev.clone());
        let parent = rig.memory(4096, PARENT);
        let mw = rig.window();
        let key = mw.rkey.next_tag();
        let bind = rig.bind(mw, key, &parent, (0, 64), BOTH);
        assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    }
    let left = dev.objects();
    assert_eq!((left.pds, left.qps, left.windows, left.mrs, left.lent), (3, 6, 3, 3, 3));
    drop(dev);
    // The kernel would have held the QPs back for most of a minute in the wrong order; that the
    // next device opens and works at once is checked by every other test.
}
