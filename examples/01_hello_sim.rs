//! Expose a buffer, let the peer write into it, take the access back, look at the bytes.
//!
//! Both ends are in this process, on a software device. Run it with
//! `cargo run --release --example 01_hello_sim`.

use anyhow::{Context, Result, ensure};
use memreg::{DmaBuf, Grant, NoReply, Reply, Settings, Tick, connect_pair, settle};

fn main() -> Result<()> {
    let settings = Settings::default();
    let mut owner = memreg::open(&settings)?.transport;
    let mut peer = memreg::open_beside(&owner, &settings)?.transport;
    connect_pair(&mut owner, &mut peer)?;
    println!("connected with strategy {}", owner.strategy_name());
    let now = Tick(0); // the software device has no clock; it runs when it is driven
    let mut message = vec![];

    // 1. Expose: the buffer moves into the transport. From here on the compiler refuses every look
    //    at its bytes, because the peer may change them at any moment.
    let buf = DmaBuf::new(4096)?;
    let exposed = owner.expose(buf, Grant::PeerWrites)?;

    // 2. Tell the peer where the bytes are. The registration goes out in front of the message, in
    //    one post, so a peer that knows the key can use it.
    let segment = owner.segments(&exposed)?[0];
    owner.send(&segment.to_wire(), Reply::InvalidatesNothing)?;
    settle(now, &mut [&mut owner, &mut peer])?;

    // 3. The peer writes, without the owner's CPU, and says that it is done.
    peer.recv(&mut message).context("the peer got no message")?;
    let segment = peer.import(&message)?;
    let write = peer.write(&segment, 0, DmaBuf::from_bytes(b"hello from the peer")?)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    peer.take(write)?.result?;
    peer.send(b"done", Reply::InvalidatesNothing)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    owner.recv(&mut message).context("the owner got no reply")?;

    // 4. Not yet: a key is live, so the bytes cannot be had.
    let exposed = match owner.reclaim(exposed) {
        Ok(_) => anyhow::bail!("bytes came back while a key was live"),
        Err(refused) => {
            println!("too early: {}", refused.why);
            refused.exposed
        }
    };

    // 5. Revoke posts the invalidation; its completion is the fence; reclaim needs the fence.
    owner.revoke(&exposed, NoReply::Unmarked)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    let buf = owner.reclaim(exposed)?.into_first().context("no buffer")?;
    println!("the owner sees: {}", String::from_utf8_lossy(&buf[..19]));
    ensure!(buf.starts_with(b"hello from the peer"));

    // 6. The key is dead: the peer's device gets an error, and not one byte.
    let late = peer.write(&segment, 0, DmaBuf::from_bytes(b"too late")?)?;
    settle(now, &mut [&mut owner, &mut peer])?;
    let refused = peer.take(late)?.result;
    ensure!(refused.is_err() && buf.starts_with(b"hello from the peer"));
    if let Err(e) = refused {
        println!("a late write: {}", e.wc.status);
    }
    Ok(())
}
