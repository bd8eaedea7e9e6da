//! Who owns the bytes: [`DmaBuf`] is the one CPU view, [`ExposedBytes`] is what devices are lent.
//!
//! ```text
//! DmaBuf ──expose──► ExposedBytes (+ a clone in the device's mapping) ──Fenced, unmapped──► DmaBuf
//! ```
//! A `&[u8]` of the bytes exists only through a [`DmaBuf`], and a `DmaBuf` exists only while
//! nothing else can reach them: exposing consumes it, and getting it back needs the proof
//! [`Unmapped`], which only the engine can make. This is one of the two modules with `unsafe` code.
#![allow(unsafe_code)] // the only owner of raw bytes

use crate::mutants::mutant;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};
use crate::types::{DeviceId, DmaAddr, Lkey, MrId};
use memmap2::{Mmap, MmapOptions, MmapRaw};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU64;

/// The bytes' lifetime. Whoever holds this keeps the memory mapped but has no way to look at it.
#[derive(Debug)]
pub(crate) struct Allocation {
    map: Map,
    /// Bytes that the owner asked for; the mapping is whole pages, so whole words.
    len: usize,
    /// Mapped without the right to write: nothing writes there, or the process ends.
    read_only: bool,
    /// The id of the device that the bytes are lent to, or 0. For devices that address memory like
    /// the CPU; others hold a clone of the `ExposedBytes`. While it is not 0 no `DmaBuf` is made of
    /// them and the memory stays.
    lent: AtomicUsize,
}

/// A mapping of whole words.
#[derive(Debug)]
enum Map {
    Raw(MmapRaw),
    /// Never written again by anybody, so that a look at it harms nothing.
    Constant(Mmap),
}

impl Map {
    /// The first byte. Only of memory that is not read-only may it be written through.
    fn ptr(&self) -> *mut u8 {
        match self {
            Map::Raw(map) => map.as_mut_ptr(),
            Map::Constant(map) => map.as_ptr().cast_mut(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Map::Raw(map) => map.len(),
            Map::Constant(map) => map.len(),
        }
    }
}

impl Allocation {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it is mapped without the right to write.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "asked before a real reg_mr"))]
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// First byte as this process sees it.
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    pub(crate) fn addr(&self) -> u64 {
        self.map.ptr() as u64
    }

    /// Whether it is lent to this device.
    #[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
    pub(crate) fn is_lent_to(&self, device: DeviceId) -> bool {
        self.lent.load(Ordering::Acquire) == mark(device)
    }
}

/// The right to reach the bytes. Unique exactly when one [`DmaBuf`] or one [`ExposedBytes`] holds
/// it.
struct View {
    alloc: Arc<Allocation>,
}

impl Drop for View {
    /// Bytes that a device is lent are not freed, whoever lost them: it may still reach them.
    fn drop(&mut self) {
        if self.alloc.lent.load(Ordering::Acquire) != NOBODY {
            std::mem::forget(Arc::clone(&self.alloc));
        }
    }
}

/// No device: their ids begin at 1.
const NOBODY: usize = 0;

/// What a device that the bytes are lent to leaves on them.
#[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
#[inline]
fn mark(device: DeviceId) -> usize {
    // No program opens so many devices that two have one mark.
    device.0 as usize
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// A buffer has at least one byte.
    #[error("length is zero")]
    ZeroLength,
    /// The system refused the mapping.
    #[error(
        "cannot map {len} bytes of anonymous memory; ask for less or raise the address-space limit"
    )]
    Map {
        /// Bytes asked.
        len: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system refused to map the file.
    #[error("cannot map {len} bytes of the file for reading")]
    MapFile {
        /// Bytes asked.
        len: usize,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// A buffer that can be exposed to a peer. Anonymous mapped memory, page-aligned, zero until
/// written.
///
/// # Shape
/// Owned by the program while it can see a `DmaBuf`; `expose`, `read` and `write` move it into the
/// transport.
/// # Cost
/// Pages cost nothing until touched: 8 GiB of untouched buffer is an address range.
pub struct DmaBuf {
    view: Arc<View>,
    pub(crate) place: Option<Box<Placement>>,
}

impl DmaBuf {
    /// Maps `len` zeroed bytes.
    ///
    /// # Errors
    /// [`AllocError::ZeroLength`] for 0; [`AllocError::Map`] with the system's reason otherwise.
    pub fn new(len: usize) -> Result<DmaBuf, AllocError> {
        if len == 0 {
            return Err(AllocError::ZeroLength);
        }
        let absurd = || AllocError::Map { len, source: std::io::ErrorKind::OutOfMemory.into() };
        let whole = len.checked_next_multiple_of(WORD).ok_or_else(absurd)?;
        let map = MmapOptions::new()
            .len(whole)
            .no_reserve_swap()
            .map_anon()
            .map_err(|source| AllocError::Map { len, source })?;
        Ok(DmaBuf::over(Map::Raw(MmapRaw::from(map)), len, false))
    }

    /// Maps a buffer with these bytes that nothing can change any more, for what many peers may
    /// read. See [`map_file_read_only`](DmaBuf::map_file_read_only) for what it can be used for.
    ///
    /// # Errors
    /// As [`DmaBuf::new`].
    pub fn read_only(bytes: &[u8]) -> Result<DmaBuf, AllocError> {
        let len = bytes.len();
        if len == 0 {
            return Err(AllocError::ZeroLength);
        }
        let failed = |source| AllocError::Map { len, source };
        let absurd = || failed(std::io::ErrorKind::OutOfMemory.into());
        let whole = len.checked_next_multiple_of(WORD).ok_or_else(absurd)?;
        let mut map = MmapOptions::new().len(whole).map_anon().map_err(failed)?;
        map[..len].copy_from_slice(bytes);
        let map = map.make_read_only().map_err(failed)?;
        Ok(DmaBuf::over(Map::Constant(map), len, true))
    }

    fn over(map: Map, len: usize, read_only: bool) -> DmaBuf {
        let lent = AtomicUsize::new(NOBODY);
        let alloc = Arc::new(Allocation { map, len, read_only, lent });
        DmaBuf { view: Arc::new(View { alloc }), place: None }
    }

    /// Maps a whole file for reading only. The device is never given the right to write there.
    ///
    /// # Shape
    /// A peer can be let read it, and it can be the source of a write or message. Whatever would
    /// need the right to write is refused: a grant of [`PeerWrites`], a read into it, a window.
    /// It has no mutable bytes: as `&mut [u8]` it is empty.
    ///
    /// [`PeerWrites`]: crate::Grant::PeerWrites
    /// # Errors
    /// [`AllocError::ZeroLength`] for an empty file; [`AllocError::MapFile`] with the system's
    /// reason.
    /// # Safety
    /// For as long as the buffer lives, wherever it is:
    /// 1. nobody, in this process or another, changes the content of the file;
    /// 2. nobody makes the file shorter.
    pub unsafe fn map_file_read_only(file: &File) -> Result<DmaBuf, AllocError> {
        let failed = |len| move |source| AllocError::MapFile { len, source };
        let bytes = file.metadata().map_err(failed(0))?.len();
        let absurd = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let len = usize::try_from(bytes).map_err(|_| failed(usize::MAX)(absurd()))?;
        if len == 0 {
            return Err(AllocError::ZeroLength);
        }
        // Up to the end of its last page a mapping has zeros behind the file's end.
        let whole = len.checked_next_multiple_of(WORD).ok_or_else(|| failed(len)(absurd()))?;
        let map = MmapOptions::new().len(whole).map_raw_read_only(file).map_err(failed(len))?;
        Ok(DmaBuf::over(Map::Raw(map), len, true))
    }

    /// Whether it was mapped for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.view.alloc.read_only
    }

    /// Maps a buffer and copies `bytes` into it.
    ///
    /// # Errors
    /// As [`DmaBuf::new`].
    pub fn from_bytes(bytes: &[u8]) -> Result<DmaBuf, AllocError> {
        let mut buf = DmaBuf::new(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    /// Gives up the CPU's view.
    #[inline]
    pub(crate) fn into_exposed(self) -> (ExposedBytes, Option<Box<Placement>>) {
        (ExposedBytes { view: self.view }, self.place)
    }
}

impl Deref for DmaBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let alloc = &self.view.alloc;
        let ptr = alloc.map.ptr();
        // SAFETY: the mapping is live (we hold the allocation), readable, `len` bytes long, and
        // initialised (zero pages, or a file that does not change: obligations 1 and 2). Nobody
        // writes through another path: this `DmaBuf` holds the only `View`, as `new` made it and as
        // `ExposedBytes::into_buf` checked, so no `ExposedBytes` exists; and what a device was lent
        // of it has been proven unmapped by `Unmapped`, and no device's mark is on it.
        unsafe { std::slice::from_raw_parts(ptr, alloc.len) }
    }
}

impl DerefMut for DmaBuf {
    /// The bytes; none of memory that is mapped for reading only.
    fn deref_mut(&mut self) -> &mut [u8] {
        let alloc = &self.view.alloc;
        if alloc.read_only {
            return &mut [];
        }
        let ptr = alloc.map.ptr();
        // SAFETY: as in `deref`, and writable; `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(ptr, alloc.len) }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({} bytes)", self.view.alloc.len)
    }
}

/// Bytes that something other than this program's code may change at any moment. Copies in and out,
/// never a slice.
///
/// # Ordering
/// Each copy is a sequence of relaxed atomic word accesses: concurrent copies tear, and nothing
/// worse.
#[derive(Clone)]
pub struct ExposedBytes {
    view: Arc<View>,
}

const WORD: usize = size_of::<AtomicU64>();

impl ExposedBytes {
    /// Bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.view.alloc.len
    }

    /// Never true; present because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte's address as this process sees it. For a device that addresses memory like
    /// the CPU.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.view.alloc.map.ptr() as u64
    }

    /// Whether it was mapped for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.view.alloc.read_only
    }

    /// Keeps the memory mapped without a way to reach it.
    pub(crate) fn lifetime(&self) -> Arc<Allocation> {
        Arc::clone(&self.view.alloc)
    }

    /// Marks the bytes as lent to a device. False, and no change, if they are lent already.
    #[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
    #[inline]
    pub(crate) fn lend_to(&self, device: DeviceId) -> bool {
        let lent = &self.view.alloc.lent;
        lent.compare_exchange(NOBODY, mark(device), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the loan to a device.
    ///
    /// # Errors
    /// The proof, and no change, if they are not lent to it.
    #[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
    #[inline]
    pub(crate) fn end_loan(&self, device: DeviceId, proof: Fenced) -> Result<Unmapped, Fenced> {
        let lent = &self.view.alloc.lent;
        match lent.compare_exchange(mark(device), NOBODY, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Unmapped::after(proof)),
            Err(_) => Err(proof),
        }
    }

    /// Copies `out.len()` bytes from `at`. False, and nothing copied, if the range is not inside.
    #[must_use]
    pub fn copy_out(&self, at: usize, out: &mut [u8]) -> bool {
        let Some(range) = self.checked(at, out.len()) else { return false };
        let words = self.words(&range);
        let (head, rest) = out.split_at_mut(head_len(&range));
        let (body, tail) = rest.split_at_mut(rest.len() - rest.len() % WORD);
        let mut words = words.iter();
        if !head.is_empty()
            && let Some(w) = words.next()
        {
            let skip = range.start % WORD;
            head.copy_from_slice(&bytes_of(w)[skip..skip + head.len()]);
        }
        for (chunk, w) in body.chunks_exact_mut(WORD).zip(words.by_ref()) {
            chunk.copy_from_slice(&bytes_of(w));
        }
        if !tail.is_empty()
            && let Some(w) = words.next()
        {
            tail.copy_from_slice(&bytes_of(w)[..tail.len()]);
        }
        true
    }

    /// Copies `bytes` to `at`. False, and nothing copied, if the range is not inside or the memory
    /// is mapped for reading only.
    #[must_use]
    pub fn copy_in(&self, at: usize, bytes: &[u8]) -> bool {
        if self.is_read_only() {
            return false;
        }
        let Some(range) = self.checked(at, bytes.len()) else { return false };
        let words = self.words(&range);
        let (head, rest) = bytes.split_at(head_len(&range));
        let (body, tail) = rest.split_at(rest.len() - rest.len() % WORD);
        let mut words = words.iter();
        if !head.is_empty()
            && let Some(w) = words.next()
        {
            merge(w, range.start % WORD, head);
        }
        for (chunk, w) in body.chunks_exact(WORD).zip(words.by_ref()) {
            let mut whole = [0; WORD];
            whole.copy_from_slice(chunk);
            w.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
        if !tail.is_empty()
            && let Some(w) = words.next()
        {
            merge(w, 0, tail);
        }
        true
    }

    /// Returns the CPU's view, if this is the last holder of the bytes.
    ///
    /// # Errors
    /// Hands itself back while a device's mapping still holds a clone, or its mark is on the bytes:
    /// a device that claims to have unmapped and did not, which the caller must keep and count.
    #[inline]
    pub(crate) fn into_buf(
        mut self,
        _proof: Unmapped,
        place: Option<Box<Placement>>,
    ) -> Result<DmaBuf, (ExposedBytes, Option<Box<Placement>>)> {
        let lent = self.view.alloc.lent.load(Ordering::Acquire) != NOBODY;
        match Arc::get_mut(&mut self.view) {
            Some(_) if !lent => Ok(DmaBuf { view: self.view, place }),
            None if mutant!("view-shared") => Ok(DmaBuf { view: self.view, place }),
            _ => Err((self, place)),
        }
    }

    fn checked(&self, at: usize, len: usize) -> Option<Range<usize>> {
        let end = at.checked_add(len)?;
        (end <= self.len()).then_some(at..end)
    }

    /// The words that the bytes lie in; every access to exposed bytes is of this one size, so none
    /// are mixed.
    fn words(&self, range: &Range<usize>) -> &[AtomicU64] {
        let map = &self.view.alloc.map;
        let (first, end) = (range.start / WORD, range.end.div_ceil(WORD));
        debug_assert!(end * WORD <= map.len());
        // SAFETY: `checked` has shown that the range is inside the length, whose round-up to whole
        // words is mapped, so the offset stays inside the mapping.
        let ptr = unsafe { map.ptr().cast::<AtomicU64>().add(first) };
        // SAFETY: in bounds (above), aligned (mappings are page-aligned), live for `&self` (we hold
        // the allocation), initialised, and only ever accessed as whole atomic words while a `View`
        // is shared: a plain slice needs the unique `DmaBuf`, which cannot exist beside `self`.
        unsafe { std::slice::from_raw_parts(ptr, end - first) }
    }
}

/// Bytes before the first word boundary.
fn head_len(range: &Range<usize>) -> usize {
    match range.start % WORD {
        0 => 0,
        skip => (WORD - skip).min(range.len()),
    }
}

fn bytes_of(word: &AtomicU64) -> [u8; WORD] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

/// Changes some bytes of a word and none of the others.
fn merge(word: &AtomicU64, skip: usize, bytes: &[u8]) {
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
        let mut merged = old.to_ne_bytes();
        merged[skip..skip + bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(merged))
    });
}

impl fmt::Debug for ExposedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExposedBytes({} bytes)", self.len())
    }
}

/// Proof that no key, WR or window reaches some bytes any more. Only the engine makes it.
#[derive(Debug)]
pub struct Fenced(());

impl Fenced {
    /// Called where the live set of an exposure or of a local operation empties, and nowhere else.
    #[inline]
    pub(crate) fn mint() -> Fenced {
        Fenced(())
    }
}

/// Proof that a device has given its mapping of some bytes back. Consumes a [`Fenced`].
#[derive(Debug)]
pub struct Unmapped(());

impl Unmapped {
    /// For the device that has ended the mapping, or for bytes that no device ever mapped.
    #[inline]
    pub(crate) fn after(_proof: Fenced) -> Unmapped {
        Unmapped(())
    }
}

/// Where a buffer lives on the device that used it last, and its registration there. Travels with
/// the buffer.
///
/// The MR carries local rights only, so keeping it registered exposes nothing. A placement of
/// another device, PD or generation is never used: it is dropped, and its MR goes to that device's
/// queue.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) device: DeviceId,
    pub(crate) addr: DmaAddr,
    pub(crate) local: Option<LocalMr>,
}

/// A long-lived MR with local rights over one whole buffer.
#[derive(Debug)]
pub(crate) struct LocalMr {
    pub(crate) mr: MrId,
    pub(crate) lkey: Lkey,
    pub(crate) owner: Arc<DeregQueue>,
    pub(crate) memory: Arc<Allocation>,
}

impl Drop for LocalMr {
    /// Leaves the MR, and the memory under it, to the owner: dereg first, free second.
    fn drop(&mut self) {
        self.owner.push(self.mr, Arc::clone(&self.memory));
    }
}

/// MRs whose buffers were dropped or moved on; the owner of the PD deregisters them when it is next
/// driven.
#[derive(Debug, Default)]
pub(crate) struct DeregQueue {
    /// Length of `waiting`, so that whoever looks in vain takes no lock: in a shared PD all its
    /// transports look at every poll.
    count: AtomicUsize,
    inner: Mutex<DeregInner>,
}

#[derive(Debug, Default)]
struct DeregInner {
    waiting: VecDeque<(MrId, Arc<Allocation>)>,
    /// Once closed: the MRs that the device would not end.
    stuck: Option<BTreeSet<MrId>>,
}

impl DeregQueue {
    pub(crate) fn push(&self, mr: MrId, memory: Arc<Allocation>) {
        let mut inner = self.lock();
        match &inner.stuck {
            None => {
                inner.waiting.push_back((mr, memory));
                self.count.store(inner.waiting.len(), Ordering::Release);
            }
            Some(stuck) if stuck.contains(&mr) => {
                let bytes = leak(memory);
                tracing::error!(mr = mr.0, bytes, "memory stays mapped: so does its local MR");
            }
            Some(_) => {}
        }
    }

    /// Whether no MR waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes the MR that has waited longest, so that one which does not end keeps no other one
    /// here; the memory must be kept until the MR is deregistered.
    pub(crate) fn pop(&self) -> Option<(MrId, Arc<Allocation>)> {
        if self.is_empty() {
            return None;
        }
        let mut inner = self.lock();
        let taken = inner.waiting.pop_front();
        self.count.store(inner.waiting.len(), Ordering::Release);
        taken
    }

    /// From now on MRs are not queued: all are deregistered, except `stuck`. Memory of one of these
    /// is kept for ever, whether its buffer was dropped already or will be. Returns the bytes of
    /// those that were.
    pub(crate) fn close(&self, stuck: BTreeSet<MrId>) -> u64 {
        let mut inner = self.lock();
        let waiting = std::mem::take(&mut inner.waiting);
        self.count.store(0, Ordering::Release);
        if mutant!("close-torn") {
            drop(inner);
            inner = self.lock();
            inner.waiting.clear();
        }
        let kept = waiting.into_iter().filter(|(mr, _)| stuck.contains(mr));
        let bytes = kept.map(|(_, memory)| leak(memory)).sum();
        inner.stuck = Some(stuck);
        bytes
    }

    fn lock(&self) -> MutexGuard<'_, DeregInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps memory mapped for the life of the process, for a device may still reach it.
fn leak(memory: Arc<Allocation>) -> u64 {
    let bytes = memory.len() as u64;
    std::mem::forget(memory);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposed(len: usize) -> ExposedBytes {
        DmaBuf::new(len).unwrap().into_exposed().0
    }

    #[test]
    fn b46_zero_length_is_refused() {
        assert!(matches!(DmaBuf::new(0), Err(AllocError::ZeroLength)));
    }

    #[test]
    fn absurd_lengths_are_refused_and_never_wrap() {
        for len in [usize::MAX, usize::MAX - 2, usize::MAX - 7, usize::MAX / 2 + 1] {
            assert!(matches!(DmaBuf::new(len), Err(AllocError::Map { .. })), "{len:#x}");
        }
    }

    #[test]
    fn copies_of_every_alignment_keep_their_neighbours() {
        for at in 0..9 {
            for len in 0..20 {
                let b = exposed(40);
                assert!(b.copy_in(0, &[0xee; 40]));
                let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
                assert!(b.copy_in(at, &data));
                let mut all = [0; 40];
                assert!(b.copy_out(0, &mut all));
                assert_eq!(&all[at..at + len], &data[..]);
                assert!(all[..at].iter().chain(&all[at + len..]).all(|&x| x == 0xee));
                let mut part = vec![0; len];
                assert!(b.copy_out(at, &mut part));
                assert_eq!(part, data);
            }
        }
    }

    #[test]
    fn copies_outside_are_refused_whole() {
        let b = exposed(13);
        assert!(!b.copy_in(13, &[1]) && !b.copy_in(usize::MAX, &[1, 2]));
        let mut out = [7; 14];
        assert!(!b.copy_out(0, &mut out));
        assert_eq!(out, [7; 14]);
    }

    #[test]
    fn b55_a_file_mapped_for_reading_has_its_bytes_and_no_mutable_ones() {
        let path = std::env::temp_dir().join(format!("memreg-mem-{}", std::process::id()));
        std::fs::write(&path, b"twelve bytes").unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: the file is this test's own, and is not touched again.
        let mut buf = unsafe { DmaBuf::map_file_read_only(&file) }.unwrap();
        assert!(buf.is_read_only() && !DmaBuf::new(1).unwrap().is_read_only());
        assert_eq!(&buf[..], b"twelve bytes");
        assert!(buf.iter_mut().next().is_none());
        let (bytes, _) = buf.into_exposed();
        assert!(!bytes.copy_in(0, b"T"), "it would end the process");
        let mut out = [0; 12];
        assert!(bytes.copy_out(0, &mut out) && !bytes.copy_out(1, &mut out));
        assert_eq!(&out, b"twelve bytes");
        std::fs::write(&path, b"").unwrap();
        // SAFETY: as above.
        let empty = unsafe { DmaBuf::map_file_read_only(&File::open(&path).unwrap()) };
        assert!(matches!(empty, Err(AllocError::ZeroLength)));
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn b55_constant_bytes_have_no_mutable_view() {
        let mut buf = DmaBuf::read_only(b"constant").unwrap();
        assert!(buf.is_read_only() && &buf[..] == b"constant" && buf.get_mut(0).is_none());
        assert!(matches!(DmaBuf::read_only(b""), Err(AllocError::ZeroLength)));
        let (bytes, place) = buf.into_exposed();
        let mut out = [0; 8];
        assert!(bytes.copy_out(0, &mut out) && !bytes.copy_in(0, &[0]));
        let buf = bytes.into_buf(Unmapped::after(Fenced::mint()), place).unwrap();
        assert_eq!(&buf[..], b"constant");
    }

    #[test]
    fn view_returns_only_to_the_last_holder() {
        let mut buf = DmaBuf::new(8).unwrap();
        buf[3] = 9;
        let (bytes, place) = buf.into_exposed();
        let lent = bytes.clone();
        let (bytes, place) = bytes.into_buf(Unmapped::after(Fenced::mint()), place).unwrap_err();
        drop(lent);
        let buf = bytes.into_buf(Unmapped::after(Fenced::mint()), place).unwrap();
        assert_eq!(buf[3], 9);
    }

    #[test]
    fn marked_bytes_are_lent_once_and_return_only_when_the_loan_has_ended() {
        let (bytes, place) = DmaBuf::new(8).unwrap().into_exposed();
        let (mine, other) = (DeviceId(1), DeviceId(2));
        assert!(bytes.lend_to(mine) && !bytes.lend_to(mine) && !bytes.lend_to(other));
        assert!(bytes.lifetime().is_lent_to(mine) && !bytes.lifetime().is_lent_to(other));
        let claimed = Unmapped::after(Fenced::mint());
        let (bytes, place) = bytes.into_buf(claimed, place).unwrap_err();
        assert!(bytes.end_loan(other, Fenced::mint()).is_err());
        let unmapped = bytes.end_loan(mine, Fenced::mint()).unwrap();
        assert!(bytes.end_loan(mine, Fenced::mint()).is_err());
        assert!(bytes.into_buf(unmapped, place).is_ok());
    }

    #[test]
    fn what_is_dropped_while_it_is_lent_leaks_on_purpose() {
        for lent in [false, true] {
            let bytes = exposed(8);
            let memory = bytes.lifetime();
            assert!(!lent || bytes.lend_to(DeviceId(1)));
            drop(bytes);
            assert_eq!(Arc::strong_count(&memory), 1 + usize::from(lent));
        }
    }

    #[test]
    fn dropping_a_registered_buffer_keeps_the_memory_for_the_dereg() {
        let owner = Arc::new(DeregQueue::default());
        let (bytes, _) = DmaBuf::new(8).unwrap().into_exposed();
        let memory = bytes.lifetime();
        let lkey = Lkey::from_bits(1);
        let local = LocalMr { mr: MrId(5), lkey, owner: Arc::clone(&owner), memory };
        let place = Placement { device: DeviceId(1), addr: DmaAddr(0), local: Some(local) };
        let proof = Unmapped::after(Fenced::mint());
        let buf = bytes.into_buf(proof, Some(Box::new(place))).unwrap();
        drop(buf);
        let (mr, memory) = owner.pop().unwrap();
        assert_eq!((mr, Arc::strong_count(&memory)), (MrId(5), 1));
    }

    #[test]
    fn an_mr_that_does_not_end_keeps_no_other_one_waiting() {
        let owner = DeregQueue::default();
        (1..=2).for_each(|mr| owner.push(MrId(mr), exposed(8).lifetime()));
        let (refused, memory) = owner.pop().unwrap();
        owner.push(refused, memory);
        let (next, _) = owner.pop().unwrap();
        assert_ne!(next, refused);
    }

    #[test]
    fn an_mr_that_would_not_end_leaks_on_purpose_whenever_its_buffer_is_dropped() {
        let owner = DeregQueue::default();
        let memory = |mr| (MrId(mr), exposed(8).lifetime());
        let [early, late] = [memory(1), memory(2)];
        let [fine, also_fine] = [memory(3), memory(4)];
        let push = |(mr, memory): &(MrId, Arc<Allocation>)| owner.push(*mr, Arc::clone(memory));
        push(&early);
        push(&fine);
        assert_eq!(owner.close([MrId(1), MrId(2)].into()), 8, "bytes that will not come back");
        push(&late);
        push(&also_fine);
        let held = [&early, &late, &fine, &also_fine].map(|(_, m)| Arc::strong_count(m));
        assert_eq!(held, [2, 2, 1, 1], "the device may reach the first two for ever");
    }
}
