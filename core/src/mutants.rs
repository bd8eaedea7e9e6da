//! Planted defects, to see that the tests would find them.
//!
//! `mutant!` is the constant `false` unless the crate is built with `--cfg mutants`. There the
//! environment variable `MEMREG_TEST_MUTANT` names the one defect that is active.

/// Whether the planted defect of this name is active; constant false in every ordinary build.
macro_rules! mutant {
    ($id:literal) => {{
        #[cfg(mutants)]
        {
            $crate::mutants::active($id)
        }
        #[cfg(not(mutants))]
        {
            false
        }
    }};
}
pub(crate) use mutant;

/// Every planted defect, with what it does. `tests/sim/mutants` looks for each of them.
///
/// Of the thirteen defects that the original had, two cannot be planted here:
///
/// - D-08 (more regions in one request than its header holds, noticed late): a [`WrBatch`] and the
///   list of cuts of `frwr` are arrays of [`MAX_REGIONS`], so there is no place for one more.
/// - D-10 (counters that several contexts increment without a lock): `Stats` belong to one
///   `Transport`, which counts through `&mut self`; two contexts at once do not compile.
///
/// And one guard of rule 2 has no reachable failure, so what is planted is another break of that
/// rule (`rule-2-passed`): a completion of an earlier registration of a region can only meet a
/// later one if the device completes a LOCAL_INV with success after the peer has invalidated the
/// same key, which no order of events brings about. The guard stays, for devices that lie.
///
/// [`WrBatch`]: crate::memreg::WrBatch
/// [`MAX_REGIONS`]: crate::memreg::MAX_REGIONS
#[cfg(mutants)]
pub const ALL: &[(&str, &str)] = &[
    ("D-01", "a post that was cut counts as whole"),
    ("D-02", "a failed dereg counts as done"),
    ("D-03", "the success of a registration ends the revoke"),
    ("D-04", "a region over two buffers is told with the length of the first"),
    ("D-05", "the drain slot is lost when credits are clamped"),
    ("D-06", "regions of a request are rounded down, without head and tail"),
    ("D-07", "one refused WR too few is taken back"),
    ("D-09", "a region's key is staged although it is not dead"),
    ("D-11", "the tags of a key come round"),
    ("D-12", "a rebuild takes no notice of its budget"),
    ("D-13", "a registration of another PD is used"),
    ("rule-1", "of a post that was cut the accepted WRs are taken back too"),
    ("rule-2-tag", "a remote invalidation counts whatever its tag"),
    ("rule-2-passed", "an invalidation counts as done if a later WR fails"),
    ("early-fence", "bytes return when the invalidation is posted"),
    ("rule-3", "a flushed invalidation counts as done"),
    ("rule-4", "keys of a connection survive its end"),
    ("rule-5", "a reply that may come is not waited for"),
    ("rule-6-unmap", "what a strategy leaves unrevoked is not noticed"),
    ("rule-6-map", "what a strategy leaves uncovered is not noticed"),
    ("rule-7", "no slot is reserved for the revoke"),
    ("rule-8", "the drain ends before its sentinel"),
    ("rule-9", "no signal is forced"),
    ("tag", "a registration keeps the tag of the last one"),
    ("rights", "both directions are granted"),
    ("abandon", "a dropped handle frees its bytes at once"),
    ("cancel", "cancel fences without ending the key"),
    ("epoch", "completions of an earlier connection count"),
    ("leak", "an abandoned exposure is forgotten"),
    ("send-slot", "a message's buffer is free before its WR is retired"),
];

/// Planted defects that only a second thread can show; the tests under `--cfg shuttle` find them.
#[cfg(mutants)]
pub const THREADS: &[(&str, &str)] = &[
    ("bell-first", "a dropped handle rings before it has left its mark"),
    ("bell-late", "poll silences the bell after it has looked, not before"),
    ("bell-relaxed", "the bell may be heard before the mark can be seen"),
    ("flag-reuse", "a slot's flag is used again while an old handle still holds it"),
    ("view-shared", "bytes come back although another holder can still write them"),
    ("end-first", "an MR leaves its PD's list only after the device has ended it"),
    ("close-torn", "MRs that are queued while the queue closes are forgotten"),
];

#[cfg(mutants)]
pub(crate) fn active(id: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let mut known = ALL.iter().chain(THREADS);
    debug_assert!(known.any(|(name, _)| *name == id), "{id} is not in the list");
    let chosen = CHOSEN.get_or_init(|| std::env::var("MEMREG_TEST_MUTANT").ok());
    chosen.as_deref() == Some(id)
}
