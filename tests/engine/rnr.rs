//! How often a message is tried again that finds no receive at the peer.

use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::{Caps, Device, WcStatus};
use memreg_core::drive::connect_pair;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{OpenOptions, Reply, State, Transport};
use memreg_core::types::Tick;
use memreg_strategies::Fmr;

/// The state of a sender whose peer is connected, and then never polls.
fn sender_to_a_sleeper(rnr_retry: u8) -> State {
    let fabric = Fabric::new(1);
    let open = |name, credits| -> Transport<SimDevice, Fmr> {
        let ask = Ask { credits, ..Ask::default() };
        let options = OpenOptions { ask, rnr_retry, ..OpenOptions::default() };
        Transport::open(fabric.add_node(name, Caps::default()), Fmr::default(), &options).unwrap()
    };
    let (mut sender, mut sleeper) = (open("sender", 64), open("sleeper", 2));
    connect_pair(&mut sender, &mut sleeper).unwrap();
    for i in 0..40 {
        // Refused once the queue is full or the connection is down.
        let _ = sender.send(b"anybody?", Reply::InvalidatesNothing);
        sender.device().step();
        sender.poll(Tick(i)).unwrap();
    }
    sender.state().clone()
}

#[test]
fn rnr_retry_of_the_options_reaches_the_queue_pair() {
    assert_eq!(sender_to_a_sleeper(OpenOptions::default().rnr_retry), State::Up);
    assert_eq!(sender_to_a_sleeper(7), State::Up, "without end");
    for retries in [0, 6] {
        match sender_to_a_sleeper(retries) {
            State::Down(DownCause::Wc(e)) => assert_eq!(e.status, WcStatus::RnrRetryExcErr),
            other => panic!("{other:?}"),
        }
    }
}
