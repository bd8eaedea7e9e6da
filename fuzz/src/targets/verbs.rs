//! What only devices of libibverbs decode.

use memreg::core::device::verbs::cm::Hello;
use memreg::core::device::verbs::decode_wc;
use memreg::core::device::{Wc, WcStatus};

/// A work completion as a provider may have written it, in the layout of ibv_poll_cq(3).
///
/// It is an error exactly if its status says so; an error carries nothing that only a success has,
/// and a key counts as invalidated only if a receive says so.
pub fn wc(data: &[u8]) {
    let Some((raw, _)) = data.split_first_chunk::<48>() else { return };
    let word = |at: usize| u32::from_ne_bytes(raw[at..at + 4].try_into().unwrap());
    let (status, opcode, flags) = (word(8), word(12), word(36));
    for kernel_flags in [false, true] {
        let wc = decode_wc(raw, kernel_flags);
        assert_eq!(wc.wr_id().0, u64::from_ne_bytes(raw[..8].try_into().unwrap()));
        assert_eq!(wc.is_success(), status == 0);
        match wc {
            Wc::Error(e) => {
                assert_eq!((e.status.to_raw(), e.vendor_err), (status, word(16)));
                assert_ne!(e.status, WcStatus::Success);
            }
            Wc::Success(s) => {
                assert_eq!(s.byte_len, word(20));
                let may = opcode & 128 != 0 && flags & (8 | 4) != 0;
                assert!(s.invalidated.is_none_or(|key| may && key.to_bits() == word(24)));
            }
        }
    }
}

/// Private data of the connection manager, as a hostile peer may send it.
pub fn hello(data: &[u8]) {
    match Hello::from_wire(data) {
        Err(e) => assert!(!e.to_string().is_empty()),
        Ok(hello) => {
            assert!(hello.max_message_bytes > 0);
            let wire = hello.to_wire();
            assert!(data.starts_with(&wire), "it says something else than what was read");
        }
    }
}
