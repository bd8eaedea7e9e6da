//! A connection goes down with memory exposed: the bytes come back, and a new epoch begins.

use anyhow::{Context, Result, bail, ensure};
use memreg::{
    Disposition, DmaBuf, Grant, NoReply, Reply, Settings, State, Tick, connect_pair, settle,
};

fn main() -> Result<()> {
    let settings = Settings::default();
    let mut owner = memreg::open(&settings)?.transport;
    let mut peer = memreg::open_beside(&owner, &settings)?.transport;
    connect_pair(&mut owner, &mut peer)?;
    let now = Tick(0);
    let mut message = vec![];

    // An error says what to do next, and hands back what it was given.
    let too_long = owner.expose(DmaBuf::new(2 << 20)?, Grant::PeerReads);
    match too_long {
        Ok(_) => bail!("more than max_payload was exposed"),
        Err(e) => {
            println!("{e}: {}, {} buffer back", e.disposition(), e.buffers.count());
            ensure!(e.disposition() == Disposition::Fatal && e.buffers.count() == 1);
        }
    }

    // The peer is told of a buffer, and then misbehaves: it writes to what it may only read.
    let exposed = owner.expose(DmaBuf::from_bytes(&[1; 4096])?, Grant::PeerReads)?;
    let segment = owner.segments(&exposed)?[0];
    owner.send(&segment.to_wire(), Reply::InvalidatesNothing)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    peer.recv(&mut message).context("the peer got no message")?;
    let mut forged = peer.import(&message)?;
    forged.grant = Grant::PeerWrites;
    let write = peer.write(&forged, 0, DmaBuf::from_bytes(&[2; 4096])?)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    if let Err(e) = peer.take(write)?.result {
        println!("the peer: {e}");
    }

    // Both ends go down. Every key is destroyed before any byte comes back: no revoke is needed.
    owner.disconnect();
    settle(now, &mut [&mut owner, &mut peer])?;
    match (owner.state(), peer.state()) {
        (State::Down(ours), State::Down(theirs)) => println!("owner: {ours}\npeer: {theirs}"),
        other => bail!("not down: {other:?}"),
    }
    let buf = owner.reclaim(exposed)?.into_first().context("no buffer")?;
    ensure!(buf.iter().all(|b| *b == 1), "the forged write moved no byte");

    // Reconnect: new QPs, a new epoch. What the peer remembers of the old one is refused before
    // anything is posted.
    owner.reconnect()?;
    peer.reconnect()?;
    connect_pair(&mut owner, &mut peer)?;
    match peer.read(&segment, 0, DmaBuf::new(4096)?) {
        Ok(_) => bail!("a segment of the last connection was accepted"),
        Err(e) => println!("an old segment: {}", anyhow::Error::from(e).root_cause()),
    }

    // And on it goes, with the same buffer.
    let exposed = owner.expose(buf, Grant::PeerReads)?;
    owner.send(&owner.segments(&exposed)?[0].to_wire(), Reply::InvalidatesNothing)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    peer.recv(&mut message).context("the peer got no message")?;
    let read = peer.read(&peer.import(&message)?, 0, DmaBuf::new(4096)?)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    println!("after the reconnect the peer read {} bytes", peer.take(read)?.result?);
    owner.revoke(&exposed, NoReply::Unmarked)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    owner.reclaim(exposed)?;
    Ok(())
}
