//! What the host's kernel and library make of newer facilities.

#![allow(unsafe_code)] // see the obligations in the parent module

use super::rig::{LOCAL, Rig, device, skip};
use crate::device::device_memory::{DeviceMemoryError, MemoryKind};
use crate::device::verbs::DmabufSegment;
use crate::device::verbs::objects::{Mr, Pd};
use crate::device::{Caps, Device, DeviceErrorKind, RelaxedOrdering, Verb, errno};
use crate::types::Access;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

#[test]
fn the_extended_query_agrees_with_the_older_one() {
    let Some(dev) = device() else { return };
    let Some(extended) = dev.extended() else { return skip("no extended query") };
    let Caps { max_mr_size, max_qp_wr, mem_mgt_extensions, .. } = dev.caps();
    assert_eq!((extended.max_mr_size, extended.max_qp_wr), (max_mr_size, max_qp_wr));
    assert_eq!(extended.cap_flags & (1 << 21) != 0, mem_mgt_extensions);
}

#[test]
fn b58_the_kernel_is_asked_and_a_software_device_has_no_order_to_relax() {
    let Some(dev) = device() else { return };
    let rig = Rig::new(dev);
    let pd = Arc::new(Pd::alloc(rig.dev.context()).unwrap());
    assert!(Mr::can_relax(&pd), "kernels since 5.7 know the flag");
    drop(pd);
    if rig.dev.is_software() {
        let caps = rig.dev.caps();
        assert!(!caps.relaxed_ordering);
        assert!(RelaxedOrdering::Try.plan(&caps).unwrap().note.is_some());
        assert!(RelaxedOrdering::Require.plan(&caps).is_err());
    }
    // Asked for all the same, it is an ordinary registration.
    let memory = rig.memory(4096, LOCAL | Access::RELAXED_ORDERING);
    rig.release(memory);
    rig.close();
}

#[test]
fn b101_a_file_is_host_memory_and_a_device_without_dmabufs_says_so() {
    let Some(dev) = device() else { return };
    let rig = Rig::new(dev);
    let file = File::open("/proc/self/exe").unwrap();
    let segment =
        |declared| DmabufSegment { fd: file.as_fd(), offset: 0, len: 4096, iova: 0, declared };
    let register = |segment| {
        // SAFETY: nothing is registered: it is no dmabuf.
        unsafe { rig.dev.register_dmabufs(rig.pd, &[segment], LOCAL) }
    };
    let e = register(segment(MemoryKind::Device)).unwrap_err();
    assert!(e.to_string().contains("declared device memory, backend sees host memory"), "{e}");
    let e = register(segment(MemoryKind::Host)).unwrap_err();
    assert!(matches!(e, DeviceMemoryError::NoDmabuf { index: 0, .. }), "{e}");
    if rig.dev.is_software() {
        // SAFETY: as above.
        let e = unsafe { rig.dev.register_dmabuf(rig.pd, &segment(MemoryKind::Host), LOCAL) };
        let e = e.unwrap_err();
        assert_eq!((e.verb, e.errno), (Verb::RegDmabufMr, errno::EOPNOTSUPP));
        assert_eq!(e.kind(), DeviceErrorKind::NotSupported);
    }
    assert_eq!(rig.dev.objects().mrs, 0);
    rig.close();
}
