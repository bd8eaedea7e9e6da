//! Leases: what was exposed longer than asked is taken back, and nobody else suffers.

use super::rig::Rig;
use memreg_core::DmaBuf;
use memreg_core::device::WcStatus;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{ExposureState, Reply};
use memreg_core::types::{Grant, Tick};

#[test]
fn lease_ends_by_revoking_and_the_handle_still_returns_the_bytes() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(4096).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerWrites, Tick(1000)).unwrap();
    let (kept, s2) = rig.exposed(4096, 0, Grant::PeerWrites);
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.now = Tick(999);
    rig.settle();
    assert_eq!(rig.probe(&s), WcStatus::Success);
    rig.now = Tick(1000);
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
    assert_eq!(rig.owner.stats().leases_expired, 1);
    assert_eq!(rig.owner.renew(&e, Some(Tick(2000))).unwrap_err(), Refusal::LeaseOver);
    let bytes = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    assert_eq!(bytes[0], 0xee);
    assert_eq!(rig.probe(&s2), WcStatus::Success, "its neighbour is not touched");
    rig.back(kept);
    assert_eq!(rig.probe(&s), WcStatus::RemAccessErr);
}

#[test]
fn renewed_lease_lasts_and_a_removed_one_never_ends() {
    let mut rig = Rig::frwr();
    let until = |rig: &mut Rig<_>, t| {
        rig.owner.expose_until(DmaBuf::new(64).unwrap(), Grant::PeerReads, Tick(t)).unwrap()
    };
    let (a, b) = (until(&mut rig, 10), until(&mut rig, 10));
    rig.owner.flush().unwrap();
    rig.owner.renew(&a, Some(Tick(50))).unwrap();
    rig.owner.renew(&b, None).unwrap();
    rig.now = Tick(49);
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&a), Ok(ExposureState::Exposed));
    rig.now = Tick(1_000_000);
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&a), Ok(ExposureState::Fenced));
    assert_eq!(rig.owner.exposure_state(&b), Ok(ExposureState::Exposed));
    rig.owner.reclaim(a).unwrap();
    rig.back(b);
    rig.assert_clean();
}

#[test]
fn lease_of_an_exposure_whose_reply_may_come_is_cancelled_not_invalidated() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(64).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerWrites, Tick(10)).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    rig.now = Tick(10);
    rig.settle();
    assert_eq!(rig.owner.stats().invalidations, 0, "rule 5");
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn staged_lease_ends_without_a_wr() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(64).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerReads, Tick(10)).unwrap();
    rig.now = Tick(11);
    rig.owner.poll(rig.now).unwrap();
    rig.owner.reclaim(e).unwrap();
    assert_eq!(rig.owner.stats().wrs, 0);
    rig.assert_clean();
}

#[test]
fn thousand_exposures_five_percent_time_out_and_no_neighbour_suffers() {
    let mut rig = Rig::frwr();
    let mut lost = 0;
    for round in 0..1000u64 {
        let late = round % 20 == 0;
        let until = Tick(if late { rig.now.0 + 1 } else { rig.now.0 + 1_000_000 });
        let buf = DmaBuf::new(4096).unwrap();
        let e = rig.owner.expose_until(buf, Grant::PeerWrites, until).unwrap();
        rig.owner.send(b"request", Reply::InvalidatesNothing).unwrap();
        rig.now = Tick(rig.now.0 + 2);
        rig.settle();
        rig.peer.recv(&mut vec![]).unwrap();
        if late {
            rig.owner.reclaim(e).unwrap();
            lost += 1;
        } else {
            rig.back(e);
        }
    }
    assert_eq!((lost, rig.owner.stats().leases_expired), (50, 50));
    assert_eq!(rig.owner.stats().poisons, 0);
    rig.assert_clean();
}
