//! Connections by RDMA CM, both ends on one device.

use crate::pair::{ASK, Side, device, is_down, pattern, strategies};
use memreg_core::device::Device;
use memreg_core::device::verbs::cm::{
    CmError, Connected, Connecting, Data, Hello, HelloError, Listener, PRIVATE_MOST, Request,
};
use memreg_core::device::verbs::{VerbsDevice, VerbsObjects};
use memreg_core::drive::Driven;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::{DownCause, Refusal};
use memreg_core::transport::{ExposureState, NoReply, OpenOptions, Reply, State};
use memreg_core::{Disposition, DmaBuf, Grant, Segment, Tick, Transport};
use memreg_strategies::{Fmr, Frwr, Strategy};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const LIMIT_NS: u64 = 5_000_000_000;
const PATIENCE: Duration = Duration::from_secs(40);

/// A listener, and a clock for all that waits.
struct Net {
    dev: VerbsDevice,
    listener: Listener,
    start: Instant,
}

impl Net {
    fn new() -> Option<Net> {
        let dev = device()?;
        let listener = Listener::bind(&dev, address(&dev, 0), 8).unwrap_or_else(|e| panic!("{e}"));
        assert_ne!(listener.local_addr().port(), 0);
        Some(Net { dev, listener, start: Instant::now() })
    }

    fn open(&self, strategy: impl Into<Strategy>) -> Side {
        let options = OpenOptions { ask: ASK, ..OpenOptions::default() };
        Transport::open(self.dev.clone(), strategy.into(), &options).unwrap()
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    fn dial(&self, t: &Side, data: Data<'_>) -> Connecting {
        Connecting::start(t, self.listener.local_addr(), data, LIMIT_NS).unwrap()
    }

    /// Goes on with a connection until its end; nobody may have to be accepted on the way.
    fn finish(&self, c: &mut Connecting, t: &mut Side) -> Result<Connected, CmError> {
        let start = Instant::now();
        loop {
            if let Some(done) = c.poll(t, self.now())? {
                return Ok(done);
            }
            c.wait(Duration::from_millis(20)).unwrap();
            assert!(start.elapsed() < PATIENCE, "no end: {c:?}");
        }
    }

    /// The next request, while the other side goes on with its connection.
    fn request(&mut self, c: &mut Connecting, t: &mut Side) -> Request {
        let start = Instant::now();
        loop {
            assert_eq!(c.poll(t, self.now()).unwrap_or_else(|e| panic!("{e}")), None);
            if let Some(request) = self.listener.request().unwrap() {
                return request;
            }
            self.listener.wait(Duration::from_millis(1)).unwrap();
            assert!(start.elapsed() < PATIENCE, "no request: {c:?}");
        }
    }

    /// Connects both with greetings; returns what each heard.
    fn connect(&mut self, a: &mut Side, b: &mut Side) -> (Connected, Connected) {
        let mut c = self.dial(a, Data::Hello(b"from a"));
        let request = self.request(&mut c, a);
        let at_b = request.accept(b, Data::Hello(b"from b")).unwrap_or_else(|e| panic!("{e}"));
        let at_a = self.finish(&mut c, a).unwrap_or_else(|e| panic!("{e}"));
        (at_a, at_b)
    }

    fn until(
        &self,
        what: &str,
        sides: &mut [&mut Side],
        mut done: impl FnMut(&mut [&mut Side]) -> bool,
    ) {
        let start = Instant::now();
        while !done(sides) {
            for side in sides.iter_mut() {
                side.drive(self.now()).unwrap();
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {sides:?}");
        }
    }

    fn close(self) {
        assert_eq!(self.dev.objects(), VerbsObjects::default(), "left on {}", self.dev.name());
    }
}

/// The device's own address, which its GID says.
fn address(dev: &VerbsDevice, port: u16) -> SocketAddr {
    let side: Side =
        Transport::open(dev.clone(), Fmr::new().into(), &OpenOptions::default()).unwrap();
    let gid = side.endpoint().unwrap().port.gid;
    assert_eq!(gid[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff], "no IPv4 address");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15])), port)
}

/// The owner exposes, the peer writes, the owner has the bytes back.
fn works(net: &Net, owner: &mut Side, peer: &mut Side, seed: u8) {
    let data = pattern(seed, 8192);
    let exposed = owner.expose(DmaBuf::new(8192).unwrap(), Grant::PeerWrites).unwrap();
    let wire: Vec<u8> =
        owner.segments(&exposed).unwrap().iter().flat_map(Segment::to_wire).collect();
    owner.send(&wire, Reply::InvalidatesNothing).unwrap();
    let mut message = vec![];
    net.until("message", &mut [owner, peer], |s| s[1].recv(&mut message).is_some());
    let segment = peer.import(&message).unwrap();
    let mut op = Some(peer.write(&segment, 0, DmaBuf::from_bytes(&data).unwrap()).unwrap());
    net.until("write", &mut [owner, peer], |s| match s[1].take(op.take().unwrap()) {
        Ok(done) => done.result.is_ok(),
        Err(e) => {
            op = Some(e.op);
            false
        }
    });
    owner.revoke(&exposed, NoReply::Unmarked).unwrap();
    net.until("fence", &mut [owner, peer], |s| {
        s[0].exposure_state(&exposed) == Ok(ExposureState::Fenced)
    });
    assert_eq!(owner.reclaim(exposed).unwrap().into_first().unwrap()[..], data[..]);
}

#[test]
fn cm_connects_every_strategy_and_again_after_its_end() {
    let Some(mut net) = Net::new() else { return };
    for strategy in strategies() {
        let (mut owner, mut peer) = (net.open(strategy), net.open(Fmr::new()));
        for round in 0..3 {
            let (at_owner, at_peer) = net.connect(&mut owner, &mut peer);
            assert_eq!((&at_owner.data[..], &at_peer.data[..]), (&b"from b"[..], &b"from a"[..]));
            assert_eq!(at_owner.peer, Some(net.listener.local_addr()));
            assert_eq!(at_peer.peer.unwrap().ip(), net.listener.local_addr().ip());
            works(&net, &mut owner, &mut peer, round);
            // Either side may end it, and the other hears of it without sending anything.
            let (ends, hears) =
                if round == 1 { (&mut peer, &mut owner) } else { (&mut owner, &mut peer) };
            ends.disconnect();
            net.until("down", &mut [ends, hears], |s| is_down(s[0]) && is_down(s[1]));
            assert_eq!(*ends.state(), State::Down(DownCause::Local));
            assert_eq!(*hears.state(), State::Down(DownCause::PeerGone));
            ends.reconnect().unwrap();
            hears.reconnect().unwrap();
        }
    }
    net.close();
}

#[test]
fn cm_a_dropped_transport_is_heard_at_the_other_side() {
    let Some(mut net) = Net::new() else { return };
    let (mut owner, mut peer) = (net.open(Frwr::new()), net.open(Fmr::new()));
    net.connect(&mut owner, &mut peer);
    let exposed = owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads).unwrap();
    owner.send(b"binds it", Reply::InvalidatesNothing).unwrap();
    drop(owner);
    drop(exposed);
    net.until("down", &mut [&mut peer], |s| is_down(s[0]));
    assert_eq!(*peer.state(), State::Down(DownCause::PeerGone));
    drop(peer);
    net.close();
}

#[test]
fn cm_private_data_ends_at_56_bytes_and_comes_padded() {
    let Some(mut net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(Fmr::new()), net.open(Fmr::new()));
    let to = net.listener.local_addr();
    let e = Connecting::start(&a, to, Data::Raw(&[7; 57]), LIMIT_NS).unwrap_err();
    assert_eq!(
        e.to_string(),
        "57 bytes of private data, a request takes 56: send them once connected"
    );
    let own = vec![7; Hello::ROOM + 1];
    let e = Connecting::start(&a, to, Data::Hello(&own), LIMIT_NS).unwrap_err();
    assert!(matches!(e, CmError::PrivateData { len: 57, most: 56, .. }), "{e}");

    let mut c = net.dial(&a, Data::Raw(&[7; PRIVATE_MOST]));
    let request = net.request(&mut c, &mut a);
    assert_eq!(request.private_data(), [7; PRIVATE_MOST]);
    assert_eq!(request.hello(), Err(HelloError::NotOurs));
    let e = request.accept(&mut b, Data::Raw(&[8; 197])).unwrap_err();
    assert!(matches!(e, CmError::PrivateData { len: 197, most: 196, .. }), "{e}");
    let e = net.finish(&mut c, &mut a).unwrap_err();
    assert!(matches!(e, CmError::Rejected { .. }), "{e}");

    let mut c = net.dial(&a, Data::Raw(b"abc"));
    let request = net.request(&mut c, &mut a);
    assert_eq!((request.private_data().len(), &request.private_data()[..4]), (56, &b"abc\0"[..]));
    let at_b = request.accept(&mut b, Data::Raw(&[8; 196])).unwrap();
    assert_eq!(at_b.data.len(), 56);
    assert_eq!(net.finish(&mut c, &mut a).unwrap().data, [8; 196]);
    drop((a, b));
    net.close();
}

#[test]
fn cm_a_refusal_has_its_reason_and_the_transport_can_try_again() {
    let Some(mut net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(Fmr::new()), net.open(Fmr::new()));
    let mut c = net.dial(&a, Data::Hello(b""));
    net.request(&mut c, &mut a).refuse("no more clients today").unwrap();
    let e = net.finish(&mut c, &mut a).unwrap_err();
    assert!(e.to_string().ends_with("the peer refused: no more clients today"), "{e}");
    assert!(matches!(e, CmError::Rejected { reason: 28, .. }));

    let mut c = net.dial(&a, Data::Hello(b""));
    net.request(&mut c, &mut a).reject(b"bytes of a program").unwrap();
    match net.finish(&mut c, &mut a).unwrap_err() {
        CmError::Rejected { reason: 28, text: None, data, .. } => {
            assert!(data.starts_with(b"bytes of a program\0"), "{data:?}");
        }
        e => panic!("{e}"),
    }
    let mut c = net.dial(&a, Data::Hello(b""));
    let e = net.request(&mut c, &mut a).reject(&[0; 149]).unwrap_err();
    assert!(matches!(e, CmError::PrivateData { len: 149, most: 148, .. }), "{e}");
    drop(c);

    assert_eq!(*a.state(), State::Ready);
    net.connect(&mut a, &mut b);
    works(&net, &mut a, &mut b, 5);
    drop((a, b));
    net.close();
}

#[test]
fn cm_a_greeting_that_is_none_is_refused_in_words() {
    let Some(mut net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(Fmr::new()), net.open(Fmr::new()));
    let mut newer = Hello { epoch: a.epoch(), max_message_bytes: 1, data: vec![] }.to_wire();
    newer[4] = 9;
    for (private, heard) in [
        (&[0xee; 56][..], "the greeting is not one of memreg"),
        (&[][..], "the greeting is not one of memreg"),
        (&newer[..], "the greeting has version 9 and this side speaks 1"),
    ] {
        let mut c = net.dial(&a, Data::Raw(private));
        let e = net.request(&mut c, &mut a).accept(&mut b, Data::Hello(b"")).unwrap_err();
        assert!(matches!(e, CmError::Hello(_)), "{e}");
        let e = net.finish(&mut c, &mut a).unwrap_err().to_string();
        assert!(e.contains(heard), "{e}");
    }
    // An answer that is none: the side that asked goes on to the next peer.
    let mut c = net.dial(&a, Data::Hello(b""));
    net.request(&mut c, &mut a).accept(&mut b, Data::Raw(b"hm")).unwrap();
    let e = net.finish(&mut c, &mut a).unwrap_err();
    assert!(matches!(e, CmError::Hello(HelloError::NotOurs)), "{e}");
    assert_eq!(*a.state(), State::Ready);
    drop(c);
    net.until("down", &mut [&mut b], |s| is_down(s[0]));
    b.reconnect().unwrap();
    net.connect(&mut a, &mut b);
    drop((a, b));
    net.close();
}

#[test]
fn cm_every_way_to_nobody_is_an_error_of_its_own() {
    let Some(net) = Net::new() else { return };
    let mut t = net.open(Fmr::new());
    let own = net.listener.local_addr();
    // A free port: the kernel hands out another one next time.
    let free = Listener::bind(&net.dev, address(&net.dev, 0), 1).unwrap().local_addr();
    let IpAddr::V4(ip) = own.ip() else { panic!("{own}") };
    let mut neighbour = ip.octets();
    neighbour[3] ^= 0x40;
    let neighbour = SocketAddr::from((neighbour, 1));
    for (to, words) in [
        (free, "nobody listens there"),
        (neighbour, "no answer in time while it was asked for a connection"),
        ("203.0.113.9:1".parse().unwrap(), "no route leads there"),
    ] {
        let begun = Connecting::start(&t, to, Data::Hello(b""), LIMIT_NS);
        let e = begun.and_then(|mut c| net.finish(&mut c, &mut t)).unwrap_err();
        let text = e.to_string();
        println!("{text}");
        assert!(text.starts_with(&to.to_string()) && text.contains(words), "{text}");
        assert_eq!(e.disposition(), Disposition::Retry);
        assert_eq!(*t.state(), State::Ready);
    }
    let bind = |addr| Listener::bind(&net.dev, addr, 1).unwrap_err().to_string();
    assert!(bind(own).contains("another program listens there"), "{}", bind(own));
    let foreign = bind("203.0.113.9:1".parse().unwrap());
    assert!(foreign.contains("no address of an RDMA device of this host"), "{foreign}");
    drop(t);
    net.close();
}

#[test]
fn cm_a_listener_on_every_address_is_reached_through_the_device() {
    let Some(mut net) = Net::new() else { return };
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let listener = Listener::bind(&net.dev, everywhere, 8).unwrap();
    let to = SocketAddr::new(net.listener.local_addr().ip(), listener.local_addr().port());
    net.listener = listener;
    let (mut a, mut b) = (net.open(Fmr::new()), net.open(Fmr::new()));
    let mut c = Connecting::start(&a, to, Data::Hello(b""), LIMIT_NS).unwrap();
    net.request(&mut c, &mut a).accept(&mut b, Data::Hello(b"")).unwrap();
    net.finish(&mut c, &mut a).unwrap();
    works(&net, &mut a, &mut b, 3);
    drop((a, b));
    net.close();
}

#[test]
fn cm_silence_ends_at_the_limit_and_costs_nothing() {
    let Some(mut net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(Fmr::new()), net.open(Fmr::new()));
    let to = net.listener.local_addr();
    let mut c = Connecting::start(&a, to, Data::Hello(b""), 300_000_000).unwrap();
    let start = Instant::now();
    let request = net.request(&mut c, &mut a);
    let e = net.finish(&mut c, &mut a).unwrap_err();
    assert!(matches!(e, CmError::TimedOut { .. }), "{e}");
    assert!(e.to_string().contains("while it was asked for a connection"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(c);
    // The peer answers somebody who has gone.
    let _ = request.accept(&mut b, Data::Hello(b""));
    net.until("down", &mut [&mut b], |s| !matches!(s[0].state(), State::Up | State::Draining));
    if is_down(&b) {
        b.reconnect().unwrap();
    }
    net.connect(&mut a, &mut b);
    works(&net, &mut a, &mut b, 9);
    drop((a, b));
    net.close();
}

#[test]
fn cm_the_smaller_side_decides_the_length_of_messages() {
    let Some(mut net) = Net::new() else { return };
    let options =
        OpenOptions { ask: Ask { max_message_bytes: 512, ..ASK }, ..OpenOptions::default() };
    let mut small: Side = Transport::open(net.dev.clone(), Fmr::new().into(), &options).unwrap();
    let mut large = net.open(Fmr::new());
    for round in 0..2 {
        match round {
            0 => net.connect(&mut large, &mut small),
            _ => net.connect(&mut small, &mut large),
        };
        let refused = large.send(&[1; 513], Reply::InvalidatesNothing).unwrap_err();
        assert_eq!(refused, Refusal::MessageTooLong { need: 513, limit: 512 });
        large.send(&[1; 512], Reply::InvalidatesNothing).unwrap();
        let mut out = vec![];
        net.until("message", &mut [&mut large, &mut small], |s| s[1].recv(&mut out).is_some());
        large.disconnect();
        net.until("down", &mut [&mut large, &mut small], |s| is_down(s[0]) && is_down(s[1]));
        large.reconnect().unwrap();
        small.reconnect().unwrap();
    }
    drop((small, large));
    net.close();
}

#[test]
fn h_06_cm_a_hundred_connections_leave_nothing_behind() {
    let Some(mut net) = Net::new() else { return };
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    let (mut owner, mut peer) = (net.open(Frwr::new()), net.open(Fmr::new()));
    for round in 0..100u8 {
        net.connect(&mut owner, &mut peer);
        if round % 10 == 0 {
            works(&net, &mut owner, &mut peer, round);
        }
        let (ends, hears) =
            if round % 2 == 0 { (&mut peer, &mut owner) } else { (&mut owner, &mut peer) };
        ends.disconnect();
        net.until("down", &mut [ends, hears], |s| is_down(s[0]) && is_down(s[1]));
        owner.reconnect().unwrap();
        peer.reconnect().unwrap();
    }
    drop((owner, peer));
    assert_eq!(open_files(), before, "descriptors are left");
    net.close();
}

/// For the virtual machine's script: what `memreg serve` at the device's address has to stand.
#[test]
#[ignore = "needs a server of ten seconds' patience: tests/rdma/guest-suite starts both"]
fn bad_clients_of_serve() {
    let Some(dev) = device() else { return };
    let to = address(&dev, 18517);
    let start = Instant::now();
    let now = || Tick(u64::try_from(start.elapsed().as_nanos()).unwrap());
    let options = OpenOptions::default();
    let open = || -> Side { Transport::open(dev.clone(), Fmr::new().into(), &options).unwrap() };
    let dial = |t: &mut Side, data: Data<'_>| {
        let mut c = Connecting::start(t, to, data, LIMIT_NS).unwrap();
        loop {
            if let Some(done) = c.poll(t, now())? {
                return Ok::<_, CmError>(done);
            }
            c.wait(Duration::from_millis(10)).unwrap();
        }
    };
    let mut t = open();
    let version_9 = *b"mreg\x09\x01\x00\x00\x00\x00\x00\x01\x00\x00\x10\x00";
    for data in [
        Data::Raw(&[0xee; 56]),
        Data::Raw(&[]),
        Data::Raw(&version_9),
        Data::Hello(b"something else"),
        Data::Hello(b"c\x09newer   "),
        Data::Hello(b"c\x01\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let e = dial(&mut t, data).unwrap_err();
        println!("{e}");
        assert!(matches!(e, CmError::Rejected { text: Some(_), .. }), "{e}");
    }
    // A greeting that is right, and then garbage, and then silence.
    let terms = b"c\x01\x00\x00\x00\x00\x00\x00\x10\x00";
    dial(&mut t, Data::Hello(terms)).unwrap();
    for garbage in [&b"garbage"[..], &[0xff; 4000], &[]] {
        t.send(garbage, Reply::InvalidatesNothing).unwrap();
        let mut answer = vec![];
        while t.recv(&mut answer).is_none() {
            t.drive(now()).unwrap();
            assert!(start.elapsed() < PATIENCE, "{t:?}");
        }
        println!("{}", String::from_utf8_lossy(&answer[20..]));
        assert_eq!(answer[0], 2);
    }
    let silent = Instant::now();
    while !is_down(&t) {
        t.drive(now()).unwrap();
        assert!(start.elapsed() < PATIENCE, "{t:?}");
    }
    assert_eq!(*t.state(), State::Down(DownCause::PeerGone));
    println!("given up after {} s of silence", silent.elapsed().as_secs());
    drop(t);
    // Memory that is not there, and a death in the middle.
    let mut t = open();
    dial(&mut t, Data::Hello(terms)).unwrap();
    let exposed = t.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads).unwrap();
    let mut forged = t.segments(&exposed).unwrap()[0];
    forged.addr ^= 1 << 40;
    let message = [&[1u8; 1][..], &[0; 11], &forged.to_wire()].concat();
    t.send(&message, Reply::InvalidatesNothing).unwrap();
    while !is_down(&t) {
        t.drive(now()).unwrap();
        assert!(start.elapsed() < PATIENCE, "{t:?}");
    }
    drop(t);
    assert_eq!(dev.objects(), VerbsObjects::default(), "left on {}", dev.name());
}
