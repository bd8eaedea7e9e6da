//! An operation with a peer in another process.

use super::pair::Pair;
use crate::cli::clock;
use crate::cli::serve::wire::{Outcome, Reply, Request, Wish, sum};
use anyhow::anyhow;
use memreg_core::transport::Buffers;
use memreg_core::types::Grant;
use std::time::Duration;

impl Pair {
    /// With a peer in another process: it reads and looks whether it has what the owner has, or
    /// writes what it read last. Its time for filling and checking buffers does not count.
    pub(super) fn pass_there(
        &mut self,
        ours: Buffers,
        grant: Grant,
        expected: &[u8],
    ) -> anyhow::Result<(Buffers, Duration)> {
        let wish = match grant {
            Grant::PeerReads => Wish::Read,
            Grant::PeerWrites => Wish::Write,
        };
        let wanted = sum(expected);
        let invalidate = self.owner.limits().remote_invalidation;
        let head = Request::head(wish, invalidate, wanted);
        let start = clock::now();
        let exposed = self.announce(ours, grant, &head)?;
        let ours = self.take_back(exposed)?;
        let time = start.elapsed();
        let reply = Reply::from_wire(&self.message).map_err(|e| anyhow!("the peer: {e}"))?;
        match reply.outcome {
            Outcome::Done if reply.sum == wanted => Ok((ours, time.saturating_sub(reply.checking))),
            Outcome::Done | Outcome::WrongSum => Err(anyhow!(
                "peer reads: the sum of its {} bytes is {:#x}, expected {wanted:#x}",
                expected.len(),
                reply.sum
            )),
            Outcome::Refused(why) => Err(anyhow!("the peer: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transport;
    use crate::cli::compare::pair::Layout;
    use crate::cli::serve::session::{Ended, Session};
    use memreg_core::device::sim::Fabric;
    use memreg_core::device::{AnyDevice, Caps};
    use memreg_core::drive::{Driven, connect_pair};
    use memreg_core::sizing::Ask;
    use memreg_core::transport::{OpenOptions, Reply as Answers};
    use memreg_core::types::Tick;
    use memreg_core::{DmaBuf, Grant};
    use memreg_strategies::{Fmr, Frwr, Physical, Strategy};
    use std::thread::JoinHandle;

    /// Ends with the session, which it returns.
    type Server = JoinHandle<(Session, Ended)>;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// An owner here, a session of `serve` on another thread.
    fn across(strategy: Strategy, caps: Caps, patience: Duration) -> (Pair, Server) {
        let ask = Ask { danger_trust_peer: true, ..Ask::default() };
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let fabric = Fabric::new(1);
        let open = |name, caps, strategy| {
            let device: AnyDevice = fabric.add_node(name, caps).into();
            Transport::open(device, strategy, &options).unwrap()
        };
        let mut owner = open("owner", caps, strategy);
        let mut peer = open("peer", Caps::default(), Fmr::new().into());
        connect_pair(&mut owner, &mut peer).unwrap();
        let mut session = Session::new(peer, 1 << 20, patience);
        let server = std::thread::spawn(move || {
            loop {
                match session.drive() {
                    Ok(_) => std::thread::yield_now(),
                    Err(ended) => return (session, ended),
                }
            }
        });
        (Pair::across(owner), server)
    }

    /// The client leaves; what the session says of it.
    fn left(pair: Pair, server: Server) -> (Session, Ended) {
        drop(pair);
        server.join().unwrap()
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 / 3) as u8).collect()
    }

    #[test]
    fn every_strategy_carries_every_byte_to_another_thread_and_back() {
        let shallow = Caps { max_fast_reg_page_list_len: 1, ..Caps::default() };
        for (strategy, caps, parts) in [
            (Frwr::new().into(), Caps::default(), 1),
            (Frwr::new().into(), shallow, 200_000u64.div_ceil(14 * 4096)),
            (Fmr::new().into(), Caps::default(), 1),
            (Physical::new(true).into(), Caps::default(), 1),
        ] {
            let (mut pair, server) = across(strategy, caps, PATIENCE);
            for len in [1, 4096, 4097] {
                pair.resize(len, Layout::Gaps).unwrap();
                assert_eq!(pair.operation(&bytes(len)).unwrap().exposures, 2);
            }
            pair.resize(200_000, Layout::Whole).unwrap();
            assert_eq!(pair.operation(&bytes(200_000)).unwrap().exposures, 2 * parts);
            assert_eq!(pair.owner.stats().exposures_now, 0);
            let (session, ended) = left(pair, server);
            assert_eq!(ended, Ended::Left);
            assert_eq!(session.tally.transfers, 6 + 2 * parts);
            assert_eq!(session.tally.bytes, 2 * (1 + 4096 + 4097 + 200_000));
            assert_eq!((session.complaint, session.tally.wrong), (None, 0));
        }
    }

    #[test]
    fn a_wrong_byte_is_found_at_both_sides() {
        let (mut pair, server) = across(Frwr::new().into(), Caps::default(), PATIENCE);
        pair.resize(8192, Layout::Whole).unwrap();
        let (data, mut expected) = (vec![5; 8192], vec![5; 8192]);
        expected[8191] = 6;
        let fault = pair.pass(Grant::PeerReads, &data, &expected).unwrap_err().to_string();
        assert!(fault.starts_with("peer reads: the sum of its 8192 bytes is"), "{fault}");
        // What was wrong is not written back.
        pair.resize(8192, Layout::Whole).unwrap();
        let fault = pair.pass(Grant::PeerWrites, &data, &expected).unwrap_err().to_string();
        assert!(fault.contains("were not read before"), "{fault}");
        let (session, _) = left(pair, server);
        assert_eq!((session.tally.wrong, session.tally.refused), (1, 1));
        assert_eq!(session.complaint.unwrap(), "8192 bytes were read, and not all as they were");
    }

    #[test]
    fn requests_that_make_no_sense_are_refused_and_the_next_is_served() {
        let (mut pair, server) = across(Fmr::new().into(), Caps::default(), PATIENCE);
        let read = Request::head(Wish::Read, false, 0);
        let mut unknown = read.clone();
        unknown[0] = 9;
        let no_segment = [&read[..], &[0xee; 28]].concat();
        for garbage in [&b"garbage"[..], &[0xff; 4000], &[], &read, &unknown, &no_segment] {
            pair.owner.send(garbage, Answers::InvalidatesNothing).unwrap();
            let reply = Reply::from_wire(&heard(&mut pair)).unwrap();
            let Outcome::Refused(why) = reply.outcome else { panic!("{reply:?}") };
            assert!(why.starts_with("the request cannot be carried out: "), "{why}");
        }
        let exposed = pair.owner.expose(DmaBuf::new(1 << 20).unwrap(), Grant::PeerReads).unwrap();
        let wire = pair.owner.segments(&exposed).unwrap()[0].to_wire();
        let twice = [&read[..], &wire, &wire].concat();
        pair.owner.send(&twice, Answers::InvalidatesNothing).unwrap();
        let reply = Reply::from_wire(&heard(&mut pair)).unwrap();
        let Outcome::Refused(why) = reply.outcome else { panic!("{reply:?}") };
        assert!(why.contains("2097152 bytes") && why.contains("takes 1048576: raise"), "{why}");
        pair.resize(4096, Layout::Whole).unwrap();
        pair.operation(&bytes(4096)).unwrap();
        let (session, ended) = left(pair, server);
        assert_eq!((ended, session.tally.refused), (Ended::Left, 7));
        assert!(session.complaint.unwrap().contains("it does not start as one"));
    }

    fn heard(pair: &mut Pair) -> Vec<u8> {
        let mut out = vec![];
        let start = clock::now();
        while pair.owner.recv(&mut out).is_none() {
            pair.owner.drive(Tick(0)).unwrap();
            assert!(start.elapsed() < PATIENCE, "no answer: {:?}", pair.owner);
        }
        out
    }

    #[test]
    fn a_client_that_withdraws_its_memory_ends_its_own_session() {
        let (mut pair, server) = across(Fmr::new().into(), Caps::default(), PATIENCE);
        let exposed = pair.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
        let mut forged = pair.owner.segments(&exposed).unwrap()[0];
        forged.addr += 4096;
        let message = [&Request::head(Wish::Read, false, 0)[..], &forged.to_wire()].concat();
        pair.owner.send(&message, Answers::InvalidatesNothing).unwrap();
        while !server.is_finished() {
            pair.owner.drive(Tick(0)).unwrap();
        }
        let (_, ended) = left(pair, server);
        let Ended::Fault(why) = ended else { panic!("{ended:?}") };
        // Which of the two it hears first is chance.
        let refused = why.starts_with("its operation failed: ") && why.contains("access error");
        assert!(refused || why == "left in the middle of an operation", "{why}");
    }

    #[test]
    fn a_silent_client_is_given_up() {
        let (pair, server) = across(Fmr::new().into(), Caps::default(), Duration::ZERO);
        let (_, ended) = server.join().unwrap();
        let Ended::Fault(why) = ended else { panic!("{ended:?}") };
        assert!(why.contains("silent") && why.contains("--patience"), "{why}");
        drop(pair);
    }

    #[test]
    fn a_server_that_dies_ends_the_operation() {
        let (mut pair, server) = across(Fmr::new().into(), Caps::default(), Duration::ZERO);
        drop(server.join().unwrap());
        pair.resize(4096, Layout::Whole).unwrap();
        let fault = pair.operation(&bytes(4096)).unwrap_err().to_string();
        assert!(fault.contains("the peer is gone"), "{fault}");
    }
}
