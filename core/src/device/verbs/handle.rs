//! The handle of one opened device: what the engine holds.

use super::context::{Context, Extended, RawEvent};
use super::direct::{not_posted, post_windows};
use super::objects::{Cq, Mr, Mw, Pd, Qp};
use super::open::{Port, open};
use super::post::{changes_a_window, completion, poll};
use super::tables::{Ids, Tables};
use super::wait::readable;
use super::windows::NOWHERE;
use crate::device::host::{Choice, Host, OpenError, Quirk, VerbsOptions, rxe_quirks};
use crate::device::{
    AsyncEvent, Caps, Device, DeviceError, Endpoint, FastMrKind, LimitInfo, MemoryUse, MrKeys,
    MwKeys, PostError, QpCaps, QpState, RecvWr, RtsAttrs, TransportKind, Verb, Wc, WcStatus,
    WrChain, errno, sealed,
};
use crate::mem::{ExposedBytes, Fenced, Unmapped};
use crate::types::{Access, CqId, DeviceId, DmaAddr, Epoch, MrId, MwId, PdId, QpId};
use ibverbs_sys as ffi;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device of libibverbs. A handle: clones are one device.
///
/// # Shape
/// Made by [`VerbsDevice::open`]. Objects that are not ended when the last handle goes are ended
/// then, windows first.
/// # Cost
/// Posts with a bind or an invalidation in them hold one lock for the device, other posts one for
/// the queue. Those and polls find their queue under the former, and polls hold none.
#[derive(Clone)]
pub struct VerbsDevice {
    inner: Arc<Inner>,
}

struct Inner {
    tables: Mutex<Tables>,
    /// Looking for events is a system call: done when there is reason to, and now and then.
    suspect: AtomicBool,
    looked: AtomicU32,
    /// An event of a QP was found, or a QP is connected by RDMA CM: before that, no QP has anything
    /// to tell.
    told: AtomicBool,
    /// DEVICE_FATAL was heard.
    gone: AtomicBool,
    registration_calls: AtomicU64,
    id: DeviceId,
    name: String,
    choice: Choice,
    node: u64,
    port: Port,
    caps: Caps,
    kernel_flags: bool,
    is_software: bool,
    context: Arc<Context>,
}

/// Objects that exist on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerbsObjects {
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Memory regions.
    pub mrs: usize,
    /// Bytes that they cover.
    pub mr_bytes: u64,
    /// Windows.
    pub windows: usize,
    /// Buffers that the device is lent.
    pub lent: usize,
}

impl VerbsDevice {
    /// Opens a device and chooses a port and a GID.
    ///
    /// # Errors
    /// [`OpenError`] with the cause: no kernel support, no provider, no node, no permission, no
    /// active port, no such GID.
    pub fn open(options: &VerbsOptions) -> Result<VerbsDevice, OpenError> {
        let opened = open(options)?;
        let attr = &opened.attr;
        let is_software = [RXE_VENDOR, SIW_VENDOR].contains(&attr.vendor_id);
        let mut caps = caps(attr, opened.context.ops().windows.is_some(), opened.transport);
        // A software device writes with the CPU: there is no bus whose order could be relaxed.
        caps.relaxed_ordering =
            !is_software && Pd::alloc(&opened.context).is_ok_and(|pd| Mr::can_relax(&Arc::new(pd)));
        let inner = Inner {
            gone: AtomicBool::new(false),
            id: DeviceId::fresh(),
            node: u64::from_be(attr.node_guid),
            caps,
            kernel_flags: attr.vendor_id == RXE_VENDOR,
            is_software,
            name: opened.choice.name.clone(),
            choice: opened.choice,
            port: opened.port,
            context: opened.context,
            tables: Mutex::default(),
            suspect: AtomicBool::new(false),
            looked: AtomicU32::new(0),
            told: AtomicBool::new(false),
            registration_calls: AtomicU64::new(0),
        };
        tracing::info!(
            device = inner.name,
            port = inner.port.num,
            gid_index = inner.port.gid_index,
            why = inner.choice.why,
            "device opened"
        );
        Ok(VerbsDevice { inner: Arc::new(inner) })
    }

    /// What exists on it now.
    #[must_use]
    pub fn objects(&self) -> VerbsObjects {
        let t = self.inner.tables();
        VerbsObjects {
            pds: t.pds.count(),
            cqs: t.cqs.count(),
            qps: t.qps.len(),
            mrs: t.mrs.count(),
            mr_bytes: t.mrs.iter().map(|(_, mr)| mr.len).sum(),
            windows: t.windows.count(),
            lent: t.memories.lent_to(self.inner.id),
        }
    }

    /// MRs made and ended so far: a system call each.
    #[must_use]
    pub fn registration_calls(&self) -> u64 {
        self.inner.registration_calls.load(Ordering::Relaxed)
    }

    /// Whether the kernel does the work of the adapter (rdma_rxe, siw): its times say nothing of
    /// hardware.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.inner.is_software
    }

    /// The port in use, and the index of its GID.
    #[must_use]
    pub fn port(&self) -> (u8, u8) {
        (self.inner.port.num, self.inner.port.gid_index)
    }

    #[cfg(test)]
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Why this device, port and GID, and the GIDs there are.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.inner.choice
    }

    /// The port and what it is used with.
    pub(super) fn port_in_use(&self) -> &Port {
        &self.inner.port
    }

    /// Leaves it to the device to refuse an MR that a window is bound onto. Kernels say EINVAL, for
    /// an MR that is there and was valid all along: it is busy.
    pub(super) fn dereg_unguarded(&self, mr: MrId) -> Result<(), DeviceError> {
        self.inner.registration_calls.fetch_add(1, Ordering::Relaxed);
        let ended = self.inner.end(Verb::DeregMr, mr.0, |t| &mut t.mrs, Mr::end);
        ended.map_err(|e| match e.errno {
            errno::EINVAL if self.inner.tables().mrs.get(mr.0).is_some() => {
                DeviceError::new(Verb::DeregMr, errno::EBUSY)
            }
            _ => e,
        })
    }

    pub(super) fn qp(&self, verb: Verb, qp: QpId) -> Result<Arc<Qp>, DeviceError> {
        let mut t = self.inner.tables();
        t.qps.get(qp.0).cloned().ok_or(DeviceError::new(verb, errno::EINVAL))
    }

    #[inline]
    fn cq(&self, verb: Verb, cq: CqId) -> Result<Arc<Cq>, DeviceError> {
        let t = self.inner.tables();
        t.cqs.get(cq.0).cloned().ok_or(DeviceError::new(verb, errno::EINVAL))
    }

    /// Gives a new MR its id.
    pub(super) fn keep(&self, verb: Verb, made: Result<Mr, i32>) -> Result<MrKeys, DeviceError> {
        let mr = self.inner.made(verb, made)?;
        let (lkey, rkey) = (mr.lkey, mr.rkey);
        let id = stored(verb, self.inner.tables().mrs.insert(mr))?;
        Ok(MrKeys { mr: MrId(id), lkey, rkey })
    }

    /// Where this device is known to differ from hardware, and what is done about it. Of hardware
    /// nothing is known.
    #[must_use]
    pub fn quirks(&self) -> Vec<Quirk> {
        // Only rdma_rxe has its completion flags.
        if self.inner.kernel_flags { rxe_quirks(&Host::this().kernel()) } else { vec![] }
    }

    /// What libibverbs tells of newer attributes; `None` from a library or driver without them.
    #[must_use]
    pub fn extended(&self) -> Option<Extended> {
        self.inner.context.extended()
    }

    pub(super) fn pd(&self, verb: Verb, pd: PdId) -> Result<Arc<Pd>, DeviceError> {
        let t = self.inner.tables();
        t.pds.get(pd.0).cloned().ok_or(DeviceError::new(verb, errno::EINVAL))
    }
}

impl Inner {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        locked(&self.tables)
    }

    /// A verb failed: there may be an event that says why.
    fn failed(&self, verb: Verb, errno: i32) -> DeviceError {
        self.suspect.store(true, Ordering::Relaxed);
        DeviceError::new(verb, errno)
    }

    fn made<T>(&self, verb: Verb, made: Result<T, i32>) -> Result<T, DeviceError> {
        made.map_err(|e| self.failed(verb, e))
    }

    /// Ends an object of a table, and keeps it if the device does not end it.
    fn end<T>(
        &self,
        verb: Verb,
        id: u32,
        of: fn(&mut Tables) -> &mut Ids<T>,
        end: fn(&mut T) -> Result<(), i32>,
    ) -> Result<(), DeviceError> {
        let taken = of(&mut self.tables()).take(id);
        let mut object = taken.map_err(|e| DeviceError::new(verb, e))?;
        let ended = end(&mut object);
        let mut t = self.tables();
        match ended {
            Ok(()) => {
                of(&mut t).release(id);
                Ok(())
            }
            Err(e) => {
                of(&mut t).put_back(id, Arc::new(object));
                Err(self.failed(verb, e))
            }
        }
    }

    /// Adds the numbers to a registration that found no memory.
    fn no_memory(&self, e: DeviceError, need: u64) -> DeviceError {
        if e.errno != errno::ENOMEM {
            return e;
        }
        let t = self.tables();
        let (mrs, bytes) = (t.mrs.count() as u64, t.mrs.iter().map(|(_, m)| m.len).sum());
        let live = MemoryUse { mrs, bytes, asked: need };
        let limit = live.limit_met(&self.caps, Host::this().pinning().most());
        DeviceError { limit, memory: Some(live), ..e }
    }

    fn is_time_to_look(&self) -> bool {
        let count = self.looked.fetch_add(1, Ordering::Relaxed);
        let suspect = self.suspect.load(Ordering::Relaxed);
        (suspect && self.suspect.swap(false, Ordering::Relaxed)) || count.is_multiple_of(LOOK_EVERY)
    }

    /// Takes all events of the device and hands each to those it concerns.
    fn collect_events(&self) {
        while let Some(event) = self.context.next_event() {
            if matches!(event, RawEvent::Fatal) {
                self.gone.store(true, Ordering::Release);
            }
            let t = self.tables();
            for qp in t.qps.values() {
                let heard = match event {
                    RawEvent::Qp(num) if num == qp.num => AsyncEvent::QpFatal(QpId(num)),
                    RawEvent::Cq(cq) if cq == qp.cq.ptr() => match cq_id(&t, &qp.cq) {
                        Some(id) => AsyncEvent::CqOverrun(id),
                        None => continue,
                    },
                    RawEvent::PortDown(port) if port == self.port.num => AsyncEvent::PortDown(port),
                    RawEvent::PortUp(port) if port == self.port.num => AsyncEvent::PortUp(port),
                    RawEvent::Fatal => AsyncEvent::DeviceFatal,
                    _ => continue,
                };
                locked(&qp.events).push_back(heard);
                self.told.store(true, Ordering::Release);
            }
            tracing::debug!(device = self.name, ?event, "device event");
        }
    }
}

impl sealed::Sealed for VerbsDevice {}

impl Device for VerbsDevice {
    fn id(&self) -> DeviceId {
        self.inner.id
    }

    fn caps(&self) -> Caps {
        self.inner.caps.clone()
    }

    fn name(&self) -> String {
        self.inner.name.clone()
    }

    fn alloc_pd(&self) -> Result<PdId, DeviceError> {
        let pd = self.inner.made(Verb::AllocPd, Pd::alloc(&self.inner.context))?;
        stored(Verb::AllocPd, self.inner.tables().pds.insert(pd)).map(PdId)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), DeviceError> {
        self.inner.end(Verb::DeallocPd, pd.0, |t| &mut t.pds, Pd::end)
    }

    fn create_cq(&self, entries: u32) -> Result<(CqId, u32), DeviceError> {
        let cq = Cq::create(&self.inner.context, entries);
        let cq = cq.map_err(|e| {
            let limit = u64::from(self.inner.caps.max_cqe);
            over(self.inner.failed(Verb::CreateCq, e), "max_cqe", entries.into(), limit)
        })?;
        let got = cq.entries;
        let id = stored(Verb::CreateCq, self.inner.tables().cqs.insert(cq))?;
        Ok((CqId(id), got))
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.inner.end(Verb::DestroyCq, cq.0, |t| &mut t.cqs, Cq::end)
    }

    fn create_qp(
        &self,
        pd: PdId,
        cq: CqId,
        mut ask: QpCaps,
    ) -> Result<(QpId, QpCaps), DeviceError> {
        let pd = self.pd(Verb::CreateQp, pd)?;
        let cq = self.inner.tables().cqs.get(cq.0).cloned();
        let cq = cq.ok_or(DeviceError::new(Verb::CreateQp, errno::EINVAL))?;
        let (qp, got) = loop {
            match Qp::create(&pd, &cq, ask) {
                Ok(made) => break made,
                // No attribute tells how many inline bytes there are: found by asking (B35).
                Err(errno::EINVAL | errno::ENOMEM) if ask.max_inline_data > 0 => {
                    ask.max_inline_data =
                        if ask.max_inline_data > 32 { ask.max_inline_data / 2 } else { 0 };
                }
                Err(e) => {
                    let e = self.inner.failed(Verb::CreateQp, e);
                    let need = u64::from(ask.max_send_wr.max(ask.max_recv_wr));
                    return Err(over(e, "max_qp_wr", need, self.inner.caps.max_qp_wr.into()));
                }
            }
        };
        let num = qp.num;
        if num == NOWHERE.0 {
            return Err(DeviceError::new(Verb::CreateQp, errno::EIO));
        }
        self.inner.tables().qps.insert(num, Arc::new(qp));
        Ok((QpId(num), got))
    }

    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError> {
        let q = self.qp(Verb::ModifyQp, qp)?;
        self.inner.made(Verb::ModifyQp, q.to_init(&self.inner.port))
    }

    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError> {
        self.qp(Verb::QueryQp, qp)?;
        let (node, port) = (self.inner.node, self.inner.port.addr);
        Ok(Endpoint { node, port, qp, epoch: Epoch(0) })
    }

    fn qp_to_rts(&self, qp: QpId, peer: Endpoint, attrs: RtsAttrs) -> Result<(), DeviceError> {
        let q = self.qp(Verb::ModifyQp, qp)?;
        let rtr = q.to_rtr(&self.inner.port, peer.qp.0, peer.port);
        self.inner.made(Verb::ModifyQp, rtr)?;
        self.inner.made(Verb::ModifyQp, q.to_rts(&self.inner.port, attrs.rnr_retry))
    }

    fn qp_to_err(&self, qp: QpId) -> Result<(), DeviceError> {
        let q = self.qp(Verb::ModifyQp, qp)?;
        let moved = self.inner.made(Verb::ModifyQp, q.to_err());
        if let Some(link) = locked(&q.link).as_mut() {
            link.hang_up();
        }
        moved
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError> {
        let q = self.qp(Verb::QueryQp, qp)?;
        self.inner.made(Verb::QueryQp, q.state())
    }

    /// # Errors
    /// EBUSY also while a window exists that was bound on it last: destroying the QP could wait for
    /// the window for most of a minute.
    fn destroy_qp(&self, qp: QpId) -> Result<(), DeviceError> {
        let refused = |errno| DeviceError::new(Verb::DestroyQp, errno);
        let mut t = self.inner.tables();
        if t.windows.any_on(qp) {
            return Err(refused(errno::EBUSY));
        }
        let shared = t.qps.remove(qp.0).ok_or(refused(errno::EINVAL))?;
        let mut q = match Arc::try_unwrap(shared) {
            Ok(q) => q,
            Err(shared) => {
                t.qps.insert(qp.0, shared);
                return Err(refused(errno::EBUSY));
            }
        };
        drop(t);
        // The library waits in `end` until every event that was taken is acknowledged; ours are.
        q.end().map_err(|e| {
            let e = self.inner.failed(Verb::DestroyQp, e);
            self.inner.tables().qps.insert(qp.0, Arc::new(q));
            e
        })
    }

    /// # Cost
    /// No lock and no search for bytes that were lent to this device before.
    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError> {
        let addr = DmaAddr(bytes.addr());
        if !bytes.lend_to(self.inner.id) {
            return Err(DeviceError::new(Verb::DmaMap, errno::EBUSY));
        }
        if home != Some(addr) {
            self.inner.tables().memories.add(&bytes.lifetime());
        }
        Ok(addr)
    }

    fn dma_unmap(
        &self,
        bytes: &ExposedBytes,
        addr: DmaAddr,
        proof: Fenced,
    ) -> Result<Unmapped, (DeviceError, Fenced)> {
        let refused = DeviceError::new(Verb::DmaUnmap, errno::EINVAL);
        if addr.0 != bytes.addr() {
            return Err((refused, proof));
        }
        bytes.end_loan(self.inner.id, proof).map_err(|proof| (refused, proof))
    }

    fn reg_mr(
        &self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        if len == 0 {
            return Err(DeviceError::new(Verb::RegMr, errno::EINVAL));
        }
        let pd = self.pd(Verb::RegMr, pd)?;
        let memory = self.inner.tables().memories.holding(addr.0, len, self.inner.id);
        let memory = memory.ok_or(DeviceError::new(Verb::RegMr, errno::EFAULT))?;
        if memory.is_read_only() && access.intersects(Access::WRITING) {
            // The kernel's own answer would be EFAULT, or ENOMEM, for memory that is there.
            return Err(DeviceError::new(Verb::RegMr, errno::EACCES));
        }
        self.inner.registration_calls.fetch_add(1, Ordering::Relaxed);
        let mr = self.inner.made(Verb::RegMr, Mr::register(&pd, addr.0, len, access, memory));
        let mr = mr.map_err(|e| self.inner.no_memory(e, len))?;
        self.keep(Verb::RegMr, Ok(mr))
    }

    fn alloc_fast_mr(&self, _: PdId, _: u32, _: FastMrKind) -> Result<MrKeys, DeviceError> {
        // The kernel keeps page lists to itself.
        Err(DeviceError::new(Verb::AllocMr, errno::EOPNOTSUPP))
    }

    fn dereg_mr(&self, mr: MrId) -> Result<(), DeviceError> {
        if self.inner.tables().windows.any_onto(mr) {
            return Err(DeviceError::new(Verb::DeregMr, errno::EBUSY));
        }
        self.dereg_unguarded(mr)
    }

    fn alloc_mw(&self, pd: PdId) -> Result<MwKeys, DeviceError> {
        let pd = self.pd(Verb::AllocMw, pd)?;
        let mw = Mw::alloc(&pd).map_err(|e| {
            let e = self.inner.failed(Verb::AllocMw, e);
            let in_use = self.inner.tables().windows.count() as u64;
            let limit = u64::from(self.inner.caps.max_mw);
            let met = LimitInfo { what: "max_mw", need: 1, limit, in_use };
            DeviceError { limit: (in_use >= limit).then_some(met), ..e }
        })?;
        let stored = self.inner.tables().windows.insert(mw);
        // A device that hands out one key twice is broken.
        let (mw, rkey) = stored.map_err(|_| DeviceError::new(Verb::AllocMw, errno::EIO))?;
        Ok(MwKeys { mw, rkey })
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<(), DeviceError> {
        let removed = self.inner.tables().windows.remove(mw);
        let mut removed = removed.ok_or(DeviceError::new(Verb::DeallocMw, errno::EINVAL))?;
        match removed.end() {
            Ok(()) => Ok(()),
            Err(e) => {
                let e = self.inner.failed(Verb::DeallocMw, e);
                self.inner.tables().windows.restore(removed);
                Err(e)
            }
        }
    }

    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError> {
        let mut tables = self.inner.tables();
        let t = &mut *tables;
        let Some(q) = t.qps.get(qp.0) else { return Err(not_posted(errno::EINVAL)) };
        if let Some(direct) = &q.direct {
            let parent = |mr: MrId| Some(t.mrs.get(mr.0)?.ptr());
            match post_windows(direct, qp, chain, &mut t.windows, parent) {
                Some(Ok(())) => return Ok(()),
                Some(Err(e)) => {
                    self.inner.suspect();
                    return Err(e);
                }
                None => {}
            }
        }
        let q = Arc::clone(q);
        self.inner.post_list(tables, &q, qp, chain)
    }

    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        let q = self.qp(Verb::PostRecv, qp).map_err(|cause| PostError { posted: 0, cause })?;
        let mut scratch = locked(&q.scratch);
        scratch.post_recv(&q, wrs).inspect_err(|_| self.inner.suspect())
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError> {
        let cq = self.cq(Verb::PollCq, cq)?;
        let got = poll(&cq, max, |raw| {
            let wc = completion(raw, self.inner.kernel_flags);
            match &wc {
                Wc::Success(s) => {
                    if let Some(key) = s.invalidated {
                        self.inner.tables().windows.invalidated(key);
                    }
                }
                Wc::Error(_) => self.inner.suspect(),
            }
            out.push(wc);
        });
        got.map_err(|e| self.inner.failed(Verb::PollCq, e))
    }

    fn arm_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        let cq = self.cq(Verb::ArmCq, cq)?;
        self.inner.made(Verb::ArmCq, self.inner.context.arm(cq.ptr()))
    }

    fn wait_cq(&self, cq: CqId, limit_ns: u64) -> Result<bool, DeviceError> {
        let cq = self.cq(Verb::WaitCq, cq)?;
        let on_it = |q: &&Arc<Qp>| Arc::ptr_eq(&q.cq, &cq);
        let qps: Vec<Arc<Qp>> = self.inner.tables().qps.values().filter(on_it).cloned().collect();
        let links: Vec<_> =
            qps.iter().filter_map(|q| Some((q, locked(&q.link).as_ref()?.channel()))).collect();
        let mut fds = vec![cq.channel.as_fd(), self.inner.context.as_fd()];
        fds.extend(links.iter().map(|(_, channel)| channel.as_fd()));
        let ready = self.inner.made(Verb::WaitCq, readable(&fds, limit_ns))?;
        if ready.get(1) == Some(&true) {
            self.inner.suspect();
        }
        for ((q, _), _) in links.iter().zip(ready.iter().skip(2)).filter(|(_, ready)| **ready) {
            if let Some(link) = locked(&q.link).as_mut() {
                link.look_soon();
            }
        }
        cq.channel.take();
        Ok(ready.contains(&true))
    }

    fn advice(&self, status: WcStatus) -> Option<&'static str> {
        let unanswered = status == WcStatus::RetryExcErr;
        (unanswered && self.inner.choice.link_local).then_some(
            "the GID in use is link-local, and a peer beyond the link hears nothing: see \
             device.gid_index",
        )
    }

    fn is_gone(&self) -> bool {
        self.inner.collect_events();
        self.inner.gone.load(Ordering::Acquire)
    }

    fn next_event(&self, qp: QpId) -> Option<AsyncEvent> {
        if !self.inner.told.load(Ordering::Acquire) {
            // Without a lock.
            if !self.inner.is_time_to_look() {
                return None;
            }
            self.inner.collect_events();
        }
        self.event_of(qp)
    }

    fn step(&self) -> bool {
        false
    }
}

impl VerbsDevice {
    /// From now on QPs are asked for news.
    pub(super) fn has_news(&self) {
        self.inner.told.store(true, Ordering::Release);
    }

    #[cold]
    fn event_of(&self, qp: QpId) -> Option<AsyncEvent> {
        let q = self.qp(Verb::QueryQp, qp).ok()?;
        let waiting = locked(&q.events).pop_front();
        let waiting = waiting.or_else(|| locked(&q.link).as_mut()?.news(qp));
        if waiting.is_some() || !self.inner.is_time_to_look() {
            return waiting;
        }
        self.inner.collect_events();
        locked(&q.events).pop_front()
    }
}

impl Inner {
    /// Posts a chain as a list of WRs. Lets go of the tables if it changes no window.
    #[inline(never)]
    fn post_list(
        &self,
        mut tables: MutexGuard<'_, Tables>,
        q: &Qp,
        qp: QpId,
        chain: &WrChain,
    ) -> Result<(), PostError> {
        let t = &mut *tables;
        let mut scratch = locked(&q.scratch);
        if let Err(cause) = scratch.build(qp, chain, t) {
            t.windows.settle_prefix(0);
            return Err(PostError { posted: 0, cause });
        }
        if !chain.iter().any(|wr| changes_a_window(&wr.op)) {
            drop(tables);
            return scratch.post(q, chain).inspect_err(|_| self.suspect());
        }
        let posted = scratch.post(q, chain);
        match &posted {
            Ok(()) => t.windows.settle(),
            Err(e) => {
                t.windows.settle_prefix(e.posted);
                self.suspect();
            }
        }
        posted
    }

    fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsDevice({}, port {})", self.inner.name, self.inner.port.num)
    }
}

/// A thread that panicked with the lock held has not left a list half built: each is cleared before
/// use, and tables change in single steps.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored<T>(verb: Verb, stored: Result<u32, T>) -> Result<u32, DeviceError> {
    stored.map_err(|_| DeviceError::new(verb, errno::ENOMEM))
}

fn cq_id(t: &Tables, cq: &Arc<Cq>) -> Option<CqId> {
    t.cqs.iter().find(|(_, c)| Arc::ptr_eq(c, cq)).map(|(id, _)| CqId(id))
}

/// Adds the number that was exceeded, if it was.
fn over(e: DeviceError, what: &'static str, need: u64, limit: u64) -> DeviceError {
    let exceeded = need > limit;
    let limit = exceeded.then_some(LimitInfo { what, need, limit, in_use: 0 });
    DeviceError { limit, ..e }
}

fn caps(attr: &ffi::ibv_device_attr, windows: bool, transport: TransportKind) -> Caps {
    let flag = |bit| attr.device_cap_flags & bit != 0;
    let number = |n: i32| u32::try_from(n).unwrap_or(0);
    Caps {
        transport,
        mem_mgt_extensions: flag(ffi::IBV_DEVICE_MEM_MGT_EXTENSIONS),
        // Kernel-only facilities: a program has windows instead.
        sg_gaps: false,
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: flag(ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        max_mw: if windows { number(attr.max_mw) } else { 0 },
        max_mr: number(attr.max_mr),
        max_mr_size: attr.max_mr_size,
        iommu_mr_size: 0,
        relaxed_ordering: false,
        relaxed_ordering_always: false,
        max_qp_wr: number(attr.max_qp_wr),
        wide_sge: 0,
        max_qp_wr_wide: 0,
        max_cqe: number(attr.max_cqe),
        max_sge: number(attr.max_sge),
        max_sge_rd: number(attr.max_sge_rd),
        max_inline_data: INLINE_ASKED,
        page_size: u32::try_from(rustix::param::page_size()).unwrap_or(4096),
    }
}

/// The vendor number of rdma_rxe, whose provider hands the kernel's completion flags through.
const RXE_VENDOR: u32 = 0x00ff_ffff;
/// The vendor number of siw.
const SIW_VENDOR: u32 = 0x0062_6d74;
/// Asked for; [`Device::create_qp`] says what there is.
const INLINE_ASKED: u32 = 256;
/// Calls between two looks for events that nothing has hinted at.
const LOOK_EVERY: u32 = 64;
