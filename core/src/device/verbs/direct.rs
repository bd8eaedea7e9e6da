//! Binds and invalidations straight into the send queue: the calls of ibv_wr_post(3), for providers
//! that have them. They save the list of WRs, and the provider's reading of it.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::context::{Context, Object};
use super::post::refusal;
use super::windows::{Binding, Windows};
use crate::device::{DeviceError, PostError, Verb, Wr, WrChain, errno};
use crate::types::{MrId, QpId, Rkey, Segment, WrId};
use ibverbs_sys as ffi;
use std::mem::offset_of;
use std::ptr;

type Create =
    unsafe extern "C" fn(*mut ffi::ibv_context, *mut ffi::ibv_qp_init_attr_ex) -> *mut ffi::ibv_qp;
type Plain = unsafe extern "C" fn(*mut ffi::ibv_qp_ex);
type End = unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> i32;
type BindCall =
    unsafe extern "C" fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_mw, u32, *const ffi::ibv_mw_bind_info);
type Invalidate = unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32);

/// The calls of one QP.
pub(super) struct Direct {
    qp: Object<ffi::ibv_qp_ex>,
    start: Plain,
    bind: BindCall,
    invalidate: Invalidate,
    complete: End,
    abort: Plain,
}

impl Direct {
    /// Makes a QP with these calls; null if the provider has none, or made no QP.
    pub(super) fn create_qp(
        context: &Context,
        pd: *mut ffi::ibv_pd,
        init: &mut ffi::ibv_qp_init_attr,
    ) -> *mut ffi::ibv_qp {
        let Some(create) = create_call(context) else { return ptr::null_mut() };
        let mut attr = ffi::ibv_qp_init_attr_ex {
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            cap: init.cap,
            comp_mask: ffi::IBV_QP_INIT_ATTR_PD | ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd,
            send_ops_flags: u64::from(ffi::IBV_QP_EX_WITH_BIND_MW | ffi::IBV_QP_EX_WITH_LOCAL_INV),
            ..Default::default()
        };
        // SAFETY: O1, O2, O4.
        let qp = unsafe { create(context.ptr(), &mut attr) };
        if !qp.is_null() {
            init.cap = attr.cap;
        }
        qp
    }

    /// The calls of a QP that [`Direct::create_qp`] has made.
    pub(super) fn of(qp: *mut ffi::ibv_qp) -> Option<Direct> {
        // SAFETY: O1.
        let ex = unsafe { ffi::ibv_qp_to_qp_ex(qp) };
        let object = Object::made(ex).ok()?;
        // SAFETY: O1: the library keeps it with the QP.
        let of = unsafe { &*ex };
        let (start, bind, invalidate) = (of.wr_start?, of.wr_bind_mw?, of.wr_local_inv?);
        let (complete, abort) = (of.wr_complete?, of.wr_abort?);
        Some(Direct { qp: object, start, bind, invalidate, complete, abort })
    }

    /// Begins a section.
    #[inline]
    fn start<'a>(&'a self, windows: &'a mut Windows) -> Section<'a> {
        let qp = self.qp.ptr();
        // SAFETY: O1, O8.
        unsafe { (self.start)(qp) };
        Section { of: self, windows, qp, open: true }
    }
}

/// Puts a chain of runs into the queue, without a list of WRs between; the windows it names change
/// in `windows`. `parent` knows the MRs. `None`, and nothing was posted or changed: there is
/// something else in it.
///
/// # Errors
/// A WR that must not be posted: nothing was. Whatever else the provider refuses counts as posted
/// whole, for it does not tell a full queue from a doorbell that it could not ring.
#[inline(always)] // Called once.
pub(super) fn post_windows(
    direct: &Direct,
    qp: QpId,
    chain: &WrChain,
    windows: &mut Windows,
    parent: impl Fn(MrId) -> Option<*mut ffi::ibv_mr>,
) -> Option<Result<(), PostError>> {
    let runs = chain.only_runs()?;
    windows.begin_direct(chain.len());
    let mut section = direct.start(windows);
    let mut posted = 0;
    for run in runs {
        section.name(run.first);
        let put = match run.bind {
            Some(bind) => parent(bind.mr).map_or(0, |mr| {
                let mw_access_flags = bind.access.bits();
                let info = ffi::ibv_mw_bind_info { mr, mw_access_flags, addr: 0, length: 0 };
                let bound = Binding::bound(Rkey::from_bits(0), bind.mr, qp);
                section.put_binds(posted, run.segments, run.signaled, &mut Binds { info, bound })
            }),
            None => section.put_invalidations(run.segments, run.signaled, qp),
        };
        posted += put;
        if put < run.segments.len() {
            return Some(Err(undo(chain, posted, section.windows)));
        }
    }
    Some(refusal(Verb::PostSend, section.complete(), None, posted))
}

/// A WR must not be posted: what those before it, this many, have changed is as before.
#[cold]
fn undo(chain: &WrChain, done: usize, windows: &mut Windows) -> PostError {
    let changed: Vec<Wr> = chain.iter().take(done).collect();
    windows.undo_direct(&changed);
    not_posted(errno::EINVAL)
}

/// Nothing of a chain was posted.
#[cold]
pub(super) fn not_posted(errno: i32) -> PostError {
    PostError { posted: 0, cause: DeviceError::new(Verb::PostSend, errno) }
}

/// WRs that are posted together. Dropped, none of them is.
struct Section<'a> {
    of: &'a Direct,
    windows: &'a mut Windows,
    qp: *mut ffi::ibv_qp_ex,
    open: bool,
}

/// What the binds of a run have in common.
struct Binds {
    /// All but address and length.
    info: ffi::ibv_mw_bind_info,
    /// All but the key.
    bound: Binding,
}

impl Section<'_> {
    /// Puts the binds of a run in, up to one that must not be; returns how many. The first stands
    /// at place `from` of the chain.
    #[inline(never)] // Its loop needs every register.
    fn put_binds(
        &mut self,
        from: usize,
        all: &[Segment],
        signaled: bool,
        Binds { info, bound }: &mut Binds,
    ) -> usize {
        let (call, qp) = (self.of.bind, self.qp);
        let mut done = 0;
        while let Some(part) = self.part(all, signaled, done) {
            let put = |window, segment: &Segment| {
                next_id(qp);
                info.addr = segment.addr;
                info.length = segment.len;
                // SAFETY: O1, O4, O5, O8.
                unsafe { call(qp, window, segment.rkey.to_bits(), info) };
            };
            match self.windows.bind_run(from + done, part, bound, put) {
                0 => break,
                n => done += n,
            }
        }
        done
    }

    /// Puts the invalidations of a run in, up to one that must not be; returns how many.
    #[inline(always)] // Called once.
    fn put_invalidations(&mut self, all: &[Segment], signaled: bool, on: QpId) -> usize {
        let (call, qp) = (self.of.invalidate, self.qp);
        let mut done = 0;
        while let Some(part) = self.part(all, signaled, done) {
            let put = |key: Rkey| {
                next_id(qp);
                // SAFETY: O1, O8.
                unsafe { call(qp, key.to_bits()) };
            };
            match self.windows.invalidate_run(part, on, put) {
                0 => break,
                n => done += n,
            }
        }
        done
    }

    /// Sets the cookie of the WR that [`next_id`] comes before.
    #[inline]
    fn name(&self, first: WrId) {
        // SAFETY: O1, O8: the provider reads this in the calls that follow, of this section.
        unsafe { (*self.qp).wr_id = first.0.wrapping_sub(1) };
    }

    /// The WRs of a run from this place on that have the same flags, which it sets; `None` if there
    /// is none. The last one of all is `last_signaled`.
    #[inline]
    fn part<'r>(
        &self,
        all: &'r [Segment],
        last_signaled: bool,
        place: usize,
    ) -> Option<&'r [Segment]> {
        let rest = all.get(place..).filter(|rest| !rest.is_empty())?;
        let plain = rest.len() - usize::from(last_signaled);
        let signaled = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let (flags, part) =
            if plain == 0 { (signaled, rest) } else { (0, rest.get(..plain).unwrap_or(rest)) };
        // SAFETY: O1, O8: the provider reads this in the calls that follow, of this section.
        unsafe { (*self.qp).wr_flags = flags };
        Some(part)
    }

    /// Posts them with one doorbell; what the provider answers.
    #[inline]
    fn complete(mut self) -> i32 {
        self.open = false;
        // SAFETY: O1, O8.
        unsafe { (self.of.complete)(self.qp) }
    }
}

/// Before each WR of a run: its cookie is one more than that of the last.
#[inline]
fn next_id(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: O1, O8: within a section. It is the caller's to write; the provider only reads it.
    let id = unsafe { &mut (*qp).wr_id };
    *id = id.wrapping_add(1);
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        if self.open {
            // SAFETY: O1, O8.
            unsafe { (self.of.abort)(self.qp) };
        }
    }
}

/// The end of `struct verbs_context`, which only grows in front of this, and which an extended
/// context is the last member of.
#[repr(C)]
struct Around {
    create_qp_ex: Option<Create>,
    others: [usize; 5],
    size: usize,
    context: ffi::ibv_context,
}

/// What `abi_compat` of an extended context holds: all ones.
const EXTENDED: usize = usize::MAX;

fn create_call(context: &Context) -> Option<Create> {
    // SAFETY: O1.
    let compat = unsafe { (*context.ptr()).abi_compat };
    if compat.addr() != EXTENDED {
        return None;
    }
    let around = context.ptr().wrapping_byte_sub(offset_of!(Around, context)).cast::<Around>();
    // SAFETY: an extended context has its size in front of it (verbs.h).
    let size = unsafe { (*around).size };
    if size < size_of::<Around>() {
        return None;
    }
    // SAFETY: the size says that the struct begins at this member or before it.
    unsafe { (*around).create_qp_ex }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Bind, WindowRun, WrOp};
    use crate::types::{Access, DmaAddr, Epoch, Grant, MwId};
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// What the provider was told.
    #[derive(Clone, PartialEq, Debug)]
    enum Heard {
        Start,
        Bind {
            id: u64,
            flags: u32,
            was: u32,
            key: u32,
            mr: usize,
            addr: u64,
            len: u64,
            rights: u32,
        },
        Inv {
            id: u64,
            flags: u32,
            key: u32,
        },
        Complete,
        Abort,
    }

    thread_local! {
        static HEARD: RefCell<Vec<Heard>> = const { RefCell::new(vec![]) };
    }

    fn hear(what: Heard) {
        HEARD.with_borrow_mut(|all| all.push(what));
    }

    unsafe extern "C" fn start(_: *mut ffi::ibv_qp_ex) {
        hear(Heard::Start);
    }

    unsafe extern "C" fn abort(_: *mut ffi::ibv_qp_ex) {
        hear(Heard::Abort);
    }

    unsafe extern "C" fn complete(_: *mut ffi::ibv_qp_ex) -> i32 {
        hear(Heard::Complete);
        0
    }

    unsafe extern "C" fn bind(
        qp: *mut ffi::ibv_qp_ex,
        mw: *mut ffi::ibv_mw,
        key: u32,
        info: *const ffi::ibv_mw_bind_info,
    ) {
        // SAFETY: the test's own.
        let (qp, mw) = (unsafe { &*qp }, unsafe { &*mw });
        // SAFETY: as above.
        let info = unsafe { &*info };
        let (addr, len, rights) = (info.addr, info.length, info.mw_access_flags);
        let (id, flags, was) = (qp.wr_id, qp.wr_flags, mw.rkey);
        hear(Heard::Bind { id, flags, was, key, mr: info.mr.addr(), addr, len, rights });
    }

    unsafe extern "C" fn invalidate(qp: *mut ffi::ibv_qp_ex, key: u32) {
        // SAFETY: the test's own.
        let qp = unsafe { &*qp };
        hear(Heard::Inv { id: qp.wr_id, flags: qp.wr_flags, key });
    }

    const QP: QpId = QpId(7);
    /// Two in one page, and one each at the ends of all.
    const INDEXES: [u32; 4] = [0, 300, 301, 0xff_ffff];

    struct Rig {
        qp: *mut ffi::ibv_qp_ex,
        handles: Vec<*mut ffi::ibv_mw>,
        windows: Windows,
    }

    impl Rig {
        fn new() -> Rig {
            let mut rig = Rig {
                qp: Box::into_raw(Box::default()),
                handles: vec![],
                windows: Windows::default(),
            };
            for index in INDEXES {
                let rkey = index << 8;
                let mw = Box::into_raw(Box::new(ffi::ibv_mw { rkey, ..Default::default() }));
                assert!(rig.windows.add(mw, Rkey::from_bits(rkey)));
                rig.handles.push(mw);
            }
            rig
        }

        fn keys(&self) -> Vec<u32> {
            // SAFETY: the test's own.
            self.handles.iter().map(|&mw| unsafe { (*mw).rkey }).collect()
        }

        /// Posts on a QP; the MRs 1 and 2 exist.
        fn post(&mut self, on: QpId, wrs: &[Wr]) -> (Option<Result<(), PostError>>, Vec<Heard>) {
            self.post_chain(on, &chain(wrs))
        }

        fn post_chain(
            &mut self,
            on: QpId,
            chain: &WrChain,
        ) -> (Option<Result<(), PostError>>, Vec<Heard>) {
            let qp = Object::made(self.qp).unwrap();
            let direct = Direct { qp, start, bind, invalidate, complete, abort };
            let parent = |mr: MrId| [1, 2].contains(&mr.0).then(|| mr_at(mr.0));
            let posted = post_windows(&direct, on, chain, &mut self.windows, parent);
            (posted, HEARD.take())
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            for mw in self.handles.drain(..) {
                // SAFETY: made by `Rig::new`, and not freed before.
                drop(unsafe { Box::from_raw(mw) });
            }
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(self.qp) });
        }
    }

    fn mr_at(mr: u32) -> *mut ffi::ibv_mr {
        ptr::without_provenance_mut(mr as usize * 8)
    }

    /// In runs as long as can be.
    fn chain(wrs: &[Wr]) -> WrChain {
        let mut chain = WrChain::new();
        let bind = |wr: &Wr| match wr.op {
            WrOp::BindMw { mr, access, .. } => Some(Bind { mr, access }),
            _ => None,
        };
        let (grant, epoch) = (Grant::PeerReads, Epoch(0));
        for run in wrs.chunk_by(|a, b| bind(a) == bind(b) && !a.signaled) {
            let (first, signaled) = (run[0].wr_id, run[run.len() - 1].signaled);
            let segments = run.iter().map(|wr| match wr.op {
                WrOp::BindMw { rkey, addr, len, .. } => {
                    Segment { rkey, addr: addr.0, len, grant, epoch }
                }
                WrOp::LocalInv(rkey) => Segment { rkey, addr: 0, len: 0, grant, epoch },
                _ => unreachable!("not of a window"),
            });
            let segments = &*segments.collect::<Vec<_>>();
            chain.push_run(WindowRun { first, signaled, segments, bind: bind(&run[0]) });
        }
        chain
    }

    fn wr(id: u64, op: WrOp) -> Wr {
        Wr { wr_id: WrId(id), signaled: false, op }
    }

    fn number(ops: &[WrOp]) -> Vec<Wr> {
        (0..).zip(ops).map(|(id, op)| wr(id, *op)).collect()
    }

    fn binding(index: u32, tag: u32, mr: u32) -> WrOp {
        let (rkey, mr) = (Rkey::from_bits(index << 8 | tag), MrId(mr));
        let (addr, access) = (DmaAddr(u64::from(tag) * 4096), Access::REMOTE_READ);
        WrOp::BindMw { mw: MwId(index), rkey, mr, addr, len: 4096 + u64::from(tag), access }
    }

    fn inv(index: u32, tag: u32) -> WrOp {
        WrOp::LocalInv(Rkey::from_bits(index << 8 | tag))
    }

    #[test]
    fn the_provider_is_told_each_wr_whole_and_in_order() {
        let mut rig = Rig::new();
        let ops = [
            binding(300, 1, 1),
            binding(301, 1, 1),
            binding(0, 1, 2),
            inv(301, 1),
            inv(0, 1),
            binding(301, 2, 2),
            inv(300, 1),
        ];
        let mut wrs: Vec<Wr> = (10..).zip(ops).map(|(id, op)| wr(id, op)).collect();
        (wrs[1].signaled, wrs[6].signaled) = (true, true);
        let (posted, heard) = rig.post(QP, &wrs);
        assert_eq!(posted, Some(Ok(())));
        let (signaled, rights) = (2, Access::REMOTE_READ.bits());
        let bind = |id, flags, was: u32, index: u32, tag: u32, mr: u32| {
            let (addr, len) = (u64::from(tag) * 4096, 4096 + u64::from(tag));
            let (was, key, mr) = (index << 8 | was, index << 8 | tag, mr_at(mr).addr());
            Heard::Bind { id, flags, was, key, mr, addr, len, rights }
        };
        let inv = |id, flags, key| Heard::Inv { id, flags, key };
        let expected = [
            Heard::Start,
            bind(10, 0, 0, 300, 1, 1),
            bind(11, signaled, 0, 301, 1, 1),
            bind(12, 0, 0, 0, 1, 2),
            inv(13, 0, 301 << 8 | 1),
            inv(14, 0, 1),
            bind(15, 0, 1, 301, 2, 2),
            inv(16, signaled, 300 << 8 | 1),
            Heard::Complete,
        ];
        assert_eq!(heard, expected);
        assert_eq!(rig.keys(), [1, 300 << 8 | 1, 301 << 8 | 2, 0xff_ffff << 8]);
        assert!(rig.windows.any_onto(MrId(2)) && !rig.windows.any_onto(MrId(1)));
    }

    #[test]
    fn one_wr_that_must_not_be_posted_leaves_everything_as_it_was() {
        let good = [binding(300, 1, 1), inv(300, 1), binding(300, 2, 1), binding(301, 1, 2)];
        let bad = [
            binding(302, 1, 1),
            binding(0x12_3456, 1, 1),
            binding(301, 2, 3),
            inv(0, 0),
            inv(300, 1),
            inv(302, 0),
            inv(0xff_fff0, 0),
            inv(0xff_ffff, 0xff),
        ];
        for (op, at) in bad.iter().flat_map(|op| (0..=good.len()).map(move |at| (*op, at))) {
            let mut rig = Rig::new();
            let mut ops = good.to_vec();
            ops.insert(at, op);
            if at == 1 && op == inv(300, 1) {
                continue;
            }
            let wrs = number(&ops);
            let (posted, heard) = rig.post(QP, &wrs);
            assert_eq!(posted.unwrap().unwrap_err().posted, 0, "{op:?} at {at}");
            assert_eq!(heard.last(), Some(&Heard::Abort));
            assert_eq!(rig.keys(), Rig::new().keys());
            assert!(!rig.windows.any_on(QP) && !rig.windows.any_onto(MrId(1)));
            assert_eq!(rig.post(QP, &number(&good)).0, Some(Ok(())));
        }
    }

    #[test]
    fn a_chain_with_anything_else_in_it_is_not_for_this_way() {
        let mut rig = Rig::new();
        for ops in [vec![], vec![binding(300, 1, 1)], vec![binding(300, 1, 1), inv(300, 1)]] {
            let mut mixed = chain(&number(&ops));
            mixed.push(wr(9, inv(301, 0)));
            assert_eq!(rig.post_chain(QP, &mixed), (None, vec![]));
            assert!(!rig.windows.any_on(QP));
        }
        assert_eq!(rig.post_chain(QP, &WrChain::new()), (None, vec![]));
    }

    /// What a window is, by the plainest account.
    type Plain = BTreeMap<u32, (u32, Option<QpId>, u32)>;

    /// Carries the WRs out, or none if one must not be.
    fn plainly(state: &Plain, on: QpId, ops: &[WrOp]) -> Option<Plain> {
        let mut next = state.clone();
        for op in ops {
            match *op {
                WrOp::BindMw { mw, rkey, mr, .. } => {
                    let w = next.get_mut(&mw.0).filter(|_| rkey.index() == mw.0)?;
                    *w = [1, 2].contains(&mr.0).then_some((rkey.to_bits(), Some(on), mr.0))?;
                }
                WrOp::LocalInv(key) => {
                    let w = next.get_mut(&key.index())?;
                    *w = (*w == (key.to_bits(), Some(on), w.2)).then_some((w.0, None, w.2))?;
                }
                _ => return None,
            }
        }
        Some(next)
    }

    proptest! {
        #[test]
        fn whatever_is_posted_the_account_is_that_of_one_wr_after_another(
            chains in prop::collection::vec(
                (7u32..9, prop::collection::vec((0..40u32, 0..4usize, 0..3u32), 1..8)), 1..12)
        ) {
            let mut rig = Rig::new();
            let free = |i: u32| (i, (i << 8, None, 0));
            let mut plain: Plain = INDEXES.map(free).into();
            for (on, picks) in chains {
                let mut tags: BTreeMap<u32, u32> =
                    plain.iter().map(|(i, w)| (*i, w.0 & 0xff)).collect();
                let ops: Vec<WrOp> = picks.into_iter().map(|(kind, window, tag)| {
                    let index = INDEXES[window];
                    match kind {
                        0 => binding(302, tag, 1),
                        1 => binding(index, tag, 3),
                        2 => inv(index, tag),
                        3..20 => {
                            tags.insert(index, tag);
                            binding(index, tag, 1 + kind % 2)
                        }
                        _ => inv(index, tags[&index]),
                    }
                }).collect();
                let wrs = number(&ops);
                let (posted, heard) = rig.post(QpId(on), &wrs);
                let expected = plainly(&plain, QpId(on), &ops);
                prop_assert_eq!(posted.unwrap().is_ok(), expected.is_some());
                if let Some(next) = expected {
                    prop_assert_eq!(heard.len(), ops.len() + 2);
                    plain = next;
                }
                let keys: Vec<u32> = plain.values().map(|w| w.0).collect();
                prop_assert_eq!(rig.keys(), keys);
                for mr in [1, 2] {
                    let any = plain.values().any(|w| w.1.is_some() && w.2 == mr);
                    prop_assert_eq!(rig.windows.any_onto(MrId(mr)), any);
                }
            }
        }
    }
}
