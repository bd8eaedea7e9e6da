//! Type-2 windows: grant, revoke, rebind, and the guards around what a provider does not survive.

use super::rig::{BOTH, LOCAL, PARENT, Rig, content, device, success};
use crate::device::{Device, DeviceErrorKind, WcStatus, WrOp};
use crate::types::{Access, Rkey};

#[test]
fn map_11_a_bound_window_lets_the_peer_in_and_an_invalidated_one_does_not() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, source, sink) =
        (rig.memory(8192, PARENT), rig.memory(512, LOCAL), rig.memory(512, LOCAL));
    assert!(source.bytes.copy_in(0, &[0xa5; 512]));
    let mw = rig.window();
    let key = mw.rkey.next_tag();
    let at = parent.addr.0 + 100;
    let bind = rig.bind(mw, key, &parent, (100, 1000), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    assert_eq!(rig.write(&source, at, key), WcStatus::Success);
    assert_eq!(content(&parent)[100..612], [0xa5; 512]);
    assert_eq!(rig.read(&sink, at, key), WcStatus::Success);
    assert_eq!(content(&sink), [0xa5; 512]);
    assert_eq!(rig.run(rig.owner, &[WrOp::LocalInv(key)]), WcStatus::Success);
    assert_eq!(rig.write(&source, at, key), WcStatus::RemAccessErr, "the key is stale");
    rig.dev.dealloc_mw(mw.mw).unwrap();
    rig.reconnect();
    for m in [parent, source, sink] {
        rig.release(m);
    }
    rig.close();
}

#[test]
fn map_16_a_window_gives_the_direction_asked_for_only() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, other) = (rig.memory(4096, PARENT), rig.memory(64, LOCAL));
    for (access, reads) in [(Access::REMOTE_READ, true), (Access::REMOTE_WRITE, false)] {
        let mw = rig.window();
        let key = mw.rkey.next_tag();
        let bind = rig.bind(mw, key, &parent, (0, 4096), access);
        assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
        let at = parent.addr.0;
        let (may, may_not) = if reads {
            (rig.read(&other, at, key), rig.write(&other, at, key))
        } else {
            (rig.write(&other, at, key), rig.read(&other, at, key))
        };
        assert_eq!((may, may_not), (WcStatus::Success, WcStatus::RemAccessErr));
        rig.dev.dealloc_mw(mw.mw).unwrap();
        rig.reconnect();
    }
    rig.release(parent);
    rig.release(other);
    rig.close();
}

#[test]
fn wc_05_a_peer_invalidates_with_its_message_and_the_window_can_be_bound_again() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, inbox) = (rig.memory(4096, PARENT), rig.memory(64, LOCAL));
    let mw = rig.window();
    let first = mw.rkey.next_tag();
    let bind = rig.bind(mw, first, &parent, (0, 64), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    let (sent, received) = rig.send_with_inv(&inbox, first);
    assert_eq!(sent, WcStatus::Success);
    let got = success(&received);
    assert_eq!((got.invalidated, got.byte_len), (Some(first), 4));
    assert_eq!(&content(&inbox)[..4], b"done");
    // It is free now: invalidating it again is what must never reach the kernel.
    let e = rig.post(rig.owner, &[WrOp::LocalInv(first)]).unwrap_err();
    assert_eq!((e.posted, e.cause.kind()), (0, DeviceErrorKind::Invalid));
    let second = first.next_tag();
    let bind = rig.bind(mw, second, &parent, (0, 64), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    assert_eq!(rig.write(&inbox, parent.addr.0, second), WcStatus::Success);
    rig.dev.dealloc_mw(mw.mw).unwrap();
    rig.release(parent);
    rig.release(inbox);
    rig.close();
}

#[test]
fn map_13_three_hundred_rebinds_of_one_window_go_through_the_wrap_of_its_tag() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, source) = (rig.memory(4096, PARENT), rig.memory(64, LOCAL));
    let mw = rig.window();
    let mut key = mw.rkey;
    for turn in 0..300u32 {
        key = key.next_tag();
        assert!(source.bytes.copy_in(0, &turn.to_le_bytes()));
        let bind = rig.bind(mw, key, &parent, (0, 64), Access::REMOTE_WRITE);
        assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success, "turn {turn}");
        assert_eq!(rig.write(&source, parent.addr.0, key), WcStatus::Success, "turn {turn}");
        assert_eq!(rig.run(rig.owner, &[WrOp::LocalInv(key)]), WcStatus::Success);
        assert_eq!(content(&parent)[..4], turn.to_le_bytes());
    }
    assert_eq!(key.index(), mw.rkey.index());
    rig.dev.dealloc_mw(mw.mw).unwrap();
    rig.release(parent);
    rig.release(source);
    rig.close();
}

#[test]
fn a_free_or_foreign_key_is_never_invalidated() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let parent = rig.memory(4096, PARENT);
    let mw = rig.window();
    let key = mw.rkey.next_tag();
    let refused = |rig: &mut Rig, qp, key: Rkey| {
        let e = rig.post(qp, &[WrOp::LocalInv(key)]).unwrap_err();
        assert_eq!((e.posted, e.cause.kind()), (0, DeviceErrorKind::Invalid));
    };
    let owner = rig.owner;
    refused(&mut rig, owner, mw.rkey);
    refused(&mut rig, owner, key);
    refused(&mut rig, owner, parent.keys.rkey);
    let bind = rig.bind(mw, key, &parent, (0, 64), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    refused(&mut rig, owner, key.next_tag());
    let peer = rig.peer;
    refused(&mut rig, peer, key);
    assert_eq!(rig.run(rig.owner, &[WrOp::LocalInv(key)]), WcStatus::Success);
    refused(&mut rig, owner, key);
    // A chain that would do it twice is refused whole, and the window stays usable.
    let key = key.next_tag();
    let bind = rig.bind(mw, key, &parent, (0, 64), BOTH);
    let chain = [bind, WrOp::LocalInv(key), WrOp::LocalInv(key)];
    assert_eq!(rig.post(rig.owner, &chain).unwrap_err().posted, 0);
    assert_eq!(rig.run(rig.owner, &[bind, WrOp::LocalInv(key)]), WcStatus::Success);
    rig.dev.dealloc_mw(mw.mw).unwrap();
    rig.release(parent);
    rig.close();
}

#[test]
fn a_parent_with_a_bound_window_stays_and_works() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, source) = (rig.memory(4096, PARENT), rig.memory(64, LOCAL));
    let mw = rig.window();
    let key = mw.rkey.next_tag();
    let bind = rig.bind(mw, key, &parent, (0, 64), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    let e = rig.dev.dereg_mr(parent.keys.mr).unwrap_err();
    assert_eq!(e.kind(), DeviceErrorKind::Busy);
    // The device's own answer, past the guard.
    let kernel = rig.dev.dereg_unguarded(parent.keys.mr).unwrap_err();
    assert_eq!(kernel.kind(), DeviceErrorKind::Busy, "{kernel}");
    assert_eq!(rig.write(&source, parent.addr.0, key), WcStatus::Success);
    assert_eq!(rig.run(rig.owner, &[WrOp::LocalInv(key)]), WcStatus::Success);
    rig.release(parent);
    rig.dev.dealloc_mw(mw.mw).unwrap();
    rig.release(source);
    rig.close();
}

#[test]
fn a_key_works_on_the_qp_that_it_was_bound_for_only() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (parent, source) = (rig.memory(4096, PARENT), rig.memory(64, LOCAL));
    let mw = rig.window();
    let key = mw.rkey.next_tag();
    let bind = rig.bind(mw, key, &parent, (0, 64), BOTH);
    assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success);
    let (other, through) = super::rig::connect(&rig.dev, rig.pd, rig.cq);
    let first = std::mem::replace(&mut rig.peer, through);
    assert_eq!(rig.write(&source, parent.addr.0, key), WcStatus::RemAccessErr);
    let through = std::mem::replace(&mut rig.peer, first);
    assert_eq!(rig.write(&source, parent.addr.0, key), WcStatus::Success);
    rig.dev.dealloc_mw(mw.mw).unwrap();
    for qp in [other, through] {
        rig.dev.destroy_qp(qp).unwrap();
    }
    rig.release(parent);
    rig.release(source);
    rig.close();
}

/// Some kernels check a bind against the rights that the window had before.
#[test]
fn h_68_rights_of_a_window_that_is_bound_anew_are_the_new_ones() {
    let Some(dev) = device() else { return };
    for q in dev.quirks() {
        println!("quirk: {q}");
    }
    let mut rig = Rig::new(dev);
    let (parent, other) = (rig.memory(4096, PARENT), rig.memory(64, LOCAL));
    let at = parent.addr.0;
    for (before, after) in
        [(Access::REMOTE_READ, Access::REMOTE_WRITE), (Access::REMOTE_WRITE, Access::REMOTE_READ)]
    {
        let mw = rig.window();
        let mut key = mw.rkey;
        for (i, access) in [before, after, before, after].into_iter().enumerate() {
            key = key.next_tag();
            let bind = rig.bind(mw, key, &parent, (0, 4096), access);
            assert_eq!(rig.run(rig.owner, &[bind]), WcStatus::Success, "{access:?}");
            let done = match access == Access::REMOTE_READ {
                true => rig.read(&other, at, key),
                false => rig.write(&other, at, key),
            };
            assert_eq!(done, WcStatus::Success, "{access:?}");
            if i < 3 {
                assert_eq!(rig.run(rig.owner, &[WrOp::LocalInv(key)]), WcStatus::Success);
            }
        }
        let refused = match after == Access::REMOTE_READ {
            true => rig.write(&other, at, key),
            false => rig.read(&other, at, key),
        };
        assert_eq!(refused, WcStatus::RemAccessErr, "{after:?}");
        rig.dev.dealloc_mw(mw.mw).unwrap();
        rig.reconnect();
    }
    rig.release(parent);
    rig.release(other);
    rig.close();
}
