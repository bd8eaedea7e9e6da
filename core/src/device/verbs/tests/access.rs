//! Ordinary MRs: bytes, rights, keys, and what is refused before the device sees it.

use super::rig::{BOTH, LOCAL, Memory, Rig, content, device};
use crate::device::{
    Device, DeviceErrorKind, Payload, QpState, RecvWr, Sge, WcStatus, WrChain, WrOp, errno,
};
use crate::mem::{DmaBuf, Fenced};
use crate::types::{Access, DmaAddr, Rkey, WrId};

#[test]
fn bytes_go_both_ways_under_an_ordinary_mr() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let target = rig.memory(8192, LOCAL | BOTH);
    let source = rig.memory(8192, LOCAL);
    let sink = rig.memory(8192, LOCAL);
    let data: Vec<u8> = (0..8192).map(|i| (i * 7 % 251) as u8).collect();
    assert!(source.bytes.copy_in(0, &data));
    assert_eq!(rig.write(&source, target.addr.0, target.keys.rkey), WcStatus::Success);
    assert_eq!(content(&target), data);
    assert_eq!(rig.read(&sink, target.addr.0, target.keys.rkey), WcStatus::Success);
    assert_eq!(content(&sink), data);
    for m in [target, source, sink] {
        rig.release(m);
    }
    rig.close();
}

#[test]
fn b57_a_registration_with_local_rights_lets_no_peer_in() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (target, source) = (rig.memory(4096, LOCAL), rig.memory(64, LOCAL));
    assert!(source.bytes.copy_in(0, &[9; 64]));
    let numeric = Rkey::from_bits(target.keys.lkey.to_bits());
    assert_eq!(rig.write(&source, target.addr.0, numeric), WcStatus::RemAccessErr);
    assert_eq!(content(&target)[..64], [0; 64]);
    assert_eq!(rig.dev.qp_state(rig.owner).unwrap(), QpState::Err);
    rig.reconnect();
    rig.release(target);
    rig.release(source);
    rig.close();
}

#[test]
fn a_key_is_refused_once_its_mr_is_gone() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (target, source) = (rig.memory(4096, LOCAL | BOTH), rig.memory(64, LOCAL));
    let (at, rkey) = (target.addr.0, target.keys.rkey);
    assert_eq!(rig.write(&source, at, rkey), WcStatus::Success);
    rig.release(target);
    assert_eq!(rig.write(&source, at, rkey), WcStatus::RemAccessErr);
    rig.reconnect();
    rig.release(source);
    rig.close();
}

#[test]
fn memory_that_is_not_lent_is_not_registered() {
    let Some(dev) = device() else { return };
    let rig = Rig::new(dev);
    let m = rig.memory(4096, LOCAL);
    let past = rig.dev.reg_mr(rig.pd, m.addr, 4097, LOCAL).unwrap_err();
    assert_eq!(past.kind(), DeviceErrorKind::Fault);
    let nowhere = rig.dev.reg_mr(rig.pd, DmaAddr(4096), 1, LOCAL).unwrap_err();
    assert_eq!(nowhere.kind(), DeviceErrorKind::Fault);
    let empty = rig.dev.reg_mr(rig.pd, m.addr, 0, LOCAL).unwrap_err();
    assert_eq!(empty.kind(), DeviceErrorKind::Invalid);
    let twice = rig.dev.dma_map(&m.bytes, None).unwrap_err();
    assert_eq!(twice.kind(), DeviceErrorKind::Busy);
    rig.release(m);
    rig.close();
}

#[test]
fn parents_in_use_are_busy() {
    let Some(dev) = device() else { return };
    let rig = Rig::new(dev);
    let m = rig.memory(4096, LOCAL);
    assert_eq!(rig.dev.dealloc_pd(rig.pd).unwrap_err().kind(), DeviceErrorKind::Busy);
    assert_eq!(rig.dev.destroy_cq(rig.cq).unwrap_err().kind(), DeviceErrorKind::Busy);
    rig.release(m);
    rig.close();
}

#[test]
fn d_01_a_chain_longer_than_the_queue_is_taken_in_part_and_counted_exactly() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let (target, source) = (rig.memory(4096, LOCAL | BOTH), rig.memory(8, LOCAL));
    let mut chain = WrChain::new();
    let sges = chain.add_sges([super::rig::sge(&source)]);
    let at = target.addr.0;
    let write = |rkey| WrOp::RdmaWrite { payload: Payload::Sges(sges), remote_addr: at, rkey };
    let ops = vec![write(target.keys.rkey); 5000];
    let e = rig.post_chain(rig.owner, &mut chain, &ops).unwrap_err();
    assert_eq!(e.cause.kind(), DeviceErrorKind::QueueFull);
    assert!(e.posted >= 256 && e.posted < 5000, "{e}");
    rig.dev.qp_to_err(rig.owner).unwrap();
    rig.reconnect();
    rig.release(target);
    rig.release(source);
    rig.close();
}

#[test]
fn b30_a_full_receive_queue_is_retryable() {
    let Some(dev) = device() else { return };
    let rig = Rig::new(dev);
    let m = rig.memory(4096, LOCAL);
    let sge = Sge { addr: m.addr, len: 64, lkey: m.keys.lkey };
    let all: Vec<RecvWr> = (0..5000).map(|i| RecvWr { wr_id: WrId(i), sge }).collect();
    let e = rig.dev.post_recv(rig.owner, &all).unwrap_err();
    assert_eq!(e.cause.kind(), DeviceErrorKind::QueueFull);
    assert!(e.posted >= 16, "{e}");
    let mut rig = rig;
    rig.reconnect();
    rig.release(m);
    rig.close();
}

#[test]
fn what_the_kernel_keeps_to_itself_is_refused_by_name() {
    let Some(dev) = device() else { return };
    let rig = Rig::new(dev);
    let kind = crate::device::FastMrKind::Pages;
    let e = rig.dev.alloc_fast_mr(rig.pd, 4, kind).unwrap_err();
    assert_eq!(e.errno, errno::EOPNOTSUPP);
    rig.close();
}

#[test]
fn b55_b56_read_only_memory_is_read_by_a_peer_and_a_source_and_never_written() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let constant = |rights| {
        let (bytes, _) = DmaBuf::read_only(&[7; 4096]).unwrap().into_exposed();
        let addr = rig.dev.dma_map(&bytes, None).unwrap();
        let keys = rig.dev.reg_mr(rig.pd, addr, 4096, rights);
        (bytes, addr, keys)
    };
    let (bytes, addr, keys) = constant(Access::REMOTE_READ);
    let readable = Memory { bytes, addr, keys: keys.unwrap() };
    let (bytes, addr, keys) = constant(Access::empty());
    let source = Memory { bytes, addr, keys: keys.unwrap() };
    let (bytes, addr, keys) = constant(LOCAL | Access::REMOTE_READ);
    let e = keys.unwrap_err();
    assert_eq!(e.kind(), DeviceErrorKind::ReadOnly);
    assert!(e.to_string().contains("memory is read-only"), "{e}");
    let _ = rig.dev.dma_unmap(&bytes, addr, Fenced::mint()).unwrap();
    drop(bytes);
    let (target, sink) = (rig.memory(4096, LOCAL | BOTH), rig.memory(4096, LOCAL));
    assert_eq!(rig.read(&sink, readable.addr.0, readable.keys.rkey), WcStatus::Success);
    assert_eq!(content(&sink), [7; 4096]);
    assert_eq!(rig.write(&source, target.addr.0, target.keys.rkey), WcStatus::Success);
    assert_eq!(content(&target), [7; 4096]);
    assert_eq!(rig.write(&sink, readable.addr.0, readable.keys.rkey), WcStatus::RemAccessErr);
    rig.reconnect();
    for m in [readable, source, target, sink] {
        rig.release(m);
    }
    rig.close();
}
