//! What is kept of a connection that went wrong: its trace, whatever comes after it.

use super::rig::Rig;
use memreg::audit::audit;
use memreg_core::DmaBuf;
use memreg_core::device::WcStatus;
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{Ledger, NoReply, Reply};
use memreg_core::types::{Grant, Segment};

#[test]
fn the_trace_of_a_poison_outlives_a_thousand_later_operations() {
    let mut rig = Rig::frwr();
    assert!(rig.owner.last_poison().is_none());
    let (e, s) = rig.exposed(64, 0, Grant::PeerReads);
    let wrong_way = Segment { grant: Grant::PeerWrites, ..s };
    assert_eq!(rig.probe(&wrong_way), WcStatus::RemAccessErr);
    let kept = rig.owner.last_poison().unwrap().ledger.to_string();
    rig.settle();
    assert!(rig.is_down());
    rig.owner.reclaim(e).unwrap();
    let whole = rig.owner.last_poison().unwrap().ledger.to_string();
    assert!(whole.lines().count() >= kept.lines().count());

    rig.reconnect();
    while rig.owner.ledger().iter().next().unwrap().seq == 0 {
        let (e, _) = rig.exposed(64, 0, Grant::PeerReads);
        rig.back(e);
    }
    rig.owner.disconnect();
    rig.settle();
    assert_eq!(rig.owner.ledger().iter().count(), Ledger::CAPACITY);
    let poison = rig.owner.last_poison().unwrap();
    assert_eq!(poison.ledger.to_string(), whole, "nothing after it is of it");
    assert!(matches!(poison.cause, DownCause::DeviceEvent | DownCause::Wc(_)), "{}", poison.cause);
    let found = audit(&whole).unwrap();
    assert!(found.complete && found.violations.is_empty(), "{found}");
    assert_eq!((found.keys.len(), found.live, found.exposures_back), (1, 0, 1), "{found}");
}

#[test]
fn an_audit_of_a_poison_names_what_is_not_proven() {
    let mut rig = Rig::frwr();
    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.settle();
    // The word that none can come was wrong.
    rig.owner.revoke(&e, NoReply::NoneCanCome).unwrap();
    rig.peer.send_with_inv(b"reply", &s).unwrap();
    rig.settle();
    assert!(rig.is_down());
    let trace = rig.owner.last_poison().unwrap().ledger.to_string();
    assert_eq!(audit(&trace).unwrap().violations, []);
    let lines: Vec<&str> = trace.lines().collect();
    let evidence = |l: &str| l.contains(" ended ") || l.contains("status=0") || l.contains("-inv ");
    let kept: Vec<&str> = lines.iter().skip(1).filter(|l| !evidence(l)).copied().collect();
    let without = format!("memreg-trace 1 lines={}\n{}\n", kept.len(), kept.join("\n"));
    let found = audit(&without).unwrap();
    let named = |v: &memreg::audit::Violation| v.what.contains("killed by");
    assert!(found.violations.iter().any(named), "{found}\n{trace}");
}
