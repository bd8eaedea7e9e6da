//! The peer's reply takes the owner's key away (SEND_WITH_INV): the fence costs the owner no WR.

use anyhow::{Context, Result, ensure};
use memreg::{DmaBuf, Grant, NoReply, Reply, Settings, Tick, connect_pair, settle};

fn main() -> Result<()> {
    let settings = Settings::default();
    let mut owner = memreg::open(&settings)?.transport;
    let mut peer = memreg::open_beside(&owner, &settings)?.transport;
    connect_pair(&mut owner, &mut peer)?;
    ensure!(owner.limits().remote_invalidation, "the default device and strategy allow it");
    let now = Tick(0);
    let mut message = vec![];

    let exposed = owner.expose(DmaBuf::from_bytes(&[7; 8192])?, Grant::PeerReads)?;
    let segment = owner.segments(&exposed)?[0];
    // The reply may invalidate a key of this exposure: until it has come, the owner must not, for a
    // key that is invalidated twice costs the connection. The transport holds the owner to that.
    owner.send(&segment.to_wire(), Reply::MayInvalidate(&[&exposed]))?;
    settle(now, &mut [&mut owner, &mut peer])?;
    if let Err(e) = owner.revoke(&exposed, NoReply::Unmarked) {
        println!("before the reply: {e}");
    }

    // The peer reads, then answers and invalidates in one message.
    peer.recv(&mut message).context("the peer got no message")?;
    let segment = peer.import(&message)?;
    let read = peer.read(&segment, 0, DmaBuf::new(8192)?)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    let done = peer.take(read)?;
    println!("the peer read {} bytes", done.result?);
    let copy = done.buffers.into_first().context("no buffer")?;
    ensure!(copy.iter().all(|b| *b == 7));
    peer.send_with_inv(b"thanks", &segment)?;
    settle(now, &mut [&mut owner, &mut peer])?;

    // The reply says that a key is dead, and its token says that no such reply is outstanding.
    let reply = owner.recv(&mut message).context("the owner got no reply")?;
    println!("reply {:?}, invalidated: {}", String::from_utf8_lossy(&message), reply.invalidated);
    owner.revoke(&exposed, NoReply::Arrived(&reply.token))?;
    // Nothing to wait for: the only key was dead already.
    let buf = owner.reclaim(exposed)?.into_first().context("no buffer")?;
    ensure!(buf[..] == copy[..]);

    let stats = owner.stats();
    println!(
        "keys granted {}, invalidated by the peer {}, by the owner {}",
        stats.registrations, stats.remote_invalidations, stats.invalidations
    );
    ensure!((stats.remote_invalidations, stats.invalidations) == (1, 0));
    Ok(())
}
