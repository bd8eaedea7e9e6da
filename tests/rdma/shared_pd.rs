//! Connections in one protection domain, where the device binds a window's key to its QP.

use crate::pair::{ASK, Pair, device, skip};
use memreg_core::device::Device;
use memreg_core::device::verbs::VerbsObjects;
use memreg_core::transport::SharedPd;
use memreg_core::{DmaBuf, Grant, Segment};
use memreg_selector::prove_qp_bound_keys;
use memreg_strategies::Registry;

#[test]
fn connections_share_a_pd_and_no_peer_gets_through_to_another() {
    let Some(dev) = device() else { return };
    let proof = match prove_qp_bound_keys(&dev, &Registry::new().unwrap(), &ASK) {
        Ok(proof) => proof,
        Err(e) => return skip(&e.to_string()),
    };
    let pd = SharedPd::new(dev.clone(), proof).unwrap();
    let mut pairs: Vec<Pair> = (0..4).map(|_| Pair::open_in(&pd)).collect();
    let mut buf = DmaBuf::new(8192).unwrap();
    for (i, pair) in pairs.iter_mut().enumerate() {
        let (e, segments) = pair.expose_told(buf, Grant::PeerWrites);
        let bytes = DmaBuf::from_bytes(&[i as u8 + 1; 8192]).unwrap();
        pair.access(&segments[0], 0, bytes).unwrap();
        buf = pair.fence(e).into_first().unwrap();
        assert_eq!(buf[..], [i as u8 + 1; 8192]);
        let stats = pair.owner.stats();
        assert_eq!(stats.local_registrations, u64::from(i == 0), "registered by the first");
    }
    let (e, segments) = pairs[0].expose_told(buf, Grant::PeerWrites);
    let stranger = Segment { epoch: pairs[1].owner.epoch(), ..segments[0] };
    pairs[1].must_refuse(&stranger);
    let bytes = DmaBuf::from_bytes(&[9; 8192]).unwrap();
    pairs[0].access(&segments[0], 0, bytes).unwrap();
    let buf = pairs[0].fence(e).into_first().unwrap();
    assert_eq!(buf[..], [9; 8192]);
    drop((pairs, pd, buf));
    assert_eq!(dev.objects(), VerbsObjects::default(), "left on {}", dev.name());
}
