//! The functions and structs of librdmacm, loaded when first needed.
#![allow(unsafe_code)] // see the obligations in the module above this folder

use super::address::RawAddr;
use super::error::CmError;
use ibverbs_sys as ffi;
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// `struct rdma_event_channel`.
#[repr(C)]
pub(super) struct RawChannel {
    pub(super) fd: c_int,
}

/// `struct rdma_cm_id`; what is not read here is only as long as it must be.
#[repr(C)]
pub(super) struct RawId {
    /// Null until a device is found.
    pub(super) verbs: *mut ffi::ibv_context,
    channel: *mut RawChannel,
    context: *mut c_void,
    qp: *mut ffi::ibv_qp,
    src: RawAddr,
    src_rest: [u8; 100],
    pub(super) dst: RawAddr,
    dst_rest: [u8; 100],
    ib_addr: [u64; 5],
    paths: *mut c_void,
    path_count: [c_int; 2],
    port_space: c_int,
    /// 0 until a device is found.
    pub(super) port_num: u8,
    rest: [*mut c_void; 7],
    qp_type: c_int,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawParam {
    pub(super) private_data: *const u8,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

/// `struct rdma_cm_event`, of connections.
#[repr(C)]
pub(super) struct RawEvent {
    pub(super) id: *mut RawId,
    pub(super) listen_id: *mut RawId,
    pub(super) event: u32,
    pub(super) status: c_int,
    pub(super) conn: RawParam,
    /// The member of unconnected services is longer.
    rest: [u64; 4],
}

// What the header of every release since the first says on a 64-bit host.
const _: () = assert!(size_of::<RawParam>() == 24 && size_of::<RawEvent>() == 80);
const _: () = assert!(size_of::<RawId>() == 416);
const _: () = assert!(std::mem::offset_of!(RawId, dst) == 160);
const _: () = assert!(std::mem::offset_of!(RawId, port_num) == 348);

/// The functions as fields, each found by its own name.
macro_rules! functions {
    ($($name:ident($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// What is used of the library.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Functions {
            fn of(library: Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: O7: the signature is that of the library's header.
                        let symbol = unsafe { library.get(name) }?;
                        *symbol
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    rdma_create_event_channel() -> *mut RawChannel;
    rdma_destroy_event_channel(*mut RawChannel);
    rdma_get_cm_event(*mut RawChannel, *mut *mut RawEvent) -> c_int;
    rdma_ack_cm_event(*mut RawEvent) -> c_int;
    rdma_create_id(*mut RawChannel, *mut *mut RawId, *mut c_void, c_int) -> c_int;
    rdma_destroy_id(*mut RawId) -> c_int;
    rdma_migrate_id(*mut RawId, *mut RawChannel) -> c_int;
    rdma_bind_addr(*mut RawId, *mut RawAddr) -> c_int;
    rdma_listen(*mut RawId, c_int) -> c_int;
    rdma_get_src_port(*mut RawId) -> u16;
    rdma_resolve_addr(*mut RawId, *mut RawAddr, *mut RawAddr, c_int) -> c_int;
    rdma_resolve_route(*mut RawId, c_int) -> c_int;
    rdma_init_qp_attr(*mut RawId, *mut ffi::ibv_qp_attr, *mut c_int) -> c_int;
    rdma_connect(*mut RawId, *mut RawParam) -> c_int;
    rdma_accept(*mut RawId, *mut RawParam) -> c_int;
    rdma_establish(*mut RawId) -> c_int;
    rdma_reject(*mut RawId, *const c_void, u8) -> c_int;
    rdma_disconnect(*mut RawId) -> c_int;
}

/// The library's name, to the loader and to people.
pub(super) const LIBRARY: &str = "librdmacm.so.1";

/// The library of this process; loaded once, and for good.
pub(super) fn cm() -> Result<&'static Functions, CmError> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| load(LIBRARY));
    loaded.as_ref().map_err(|why| CmError::NoLibrary { why: why.clone() })
}

fn load(name: &str) -> Result<Functions, String> {
    // SAFETY: O7: a system library, whose initialisers any program may run.
    let library = unsafe { Library::new(name) }.map_err(|e| e.to_string())?;
    Functions::of(library).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let why = load("libnone-of-that-name.so.9").err().unwrap();
        let text = CmError::NoLibrary { why }.to_string();
        assert!(text.contains("librdmacm.so.1") && text.contains("package librdmacm1"), "{text}");
        assert!(text.contains("libnone-of-that-name.so.9"), "{text}");
    }

    #[test]
    fn a_library_that_lacks_a_function_is_not_used() {
        let why = load("libibverbs.so.1").err().unwrap();
        assert!(why.contains("rdma_create_event_channel"), "{why}");
    }
}
