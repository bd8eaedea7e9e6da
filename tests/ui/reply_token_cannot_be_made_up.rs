//! The proof that a reply has arrived comes from `recv` alone.

use memreg_core::transport::ReplyToken;
use memreg_core::types::{Epoch, TransportId};

fn promise() -> ReplyToken {
    ReplyToken { transport: TransportId(1), epoch: Epoch(1), nth: 7 }
}

fn main() {}
