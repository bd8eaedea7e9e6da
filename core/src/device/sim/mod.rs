//! The software device.
use super::*;
/// Handle of one node on a fabric.
#[derive(Clone)]
pub struct SimDevice;
impl sealed::Sealed for SimDevice {}
#[allow(unused_variables, clippy::unimplemented)]
impl Device for SimDevice {
    fn id(&self) -> DeviceId {
        unimplemented!()
    }
    fn caps(&self) -> Caps {
        unimplemented!()
    }
    fn name(&self) -> String {
        unimplemented!()
    }
    fn alloc_pd(&self) -> Result<PdId, DeviceError> {
        unimplemented!()
    }
    fn dealloc_pd(&self, pd: PdId) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn create_cq(&self, entries: u32) -> Result<(CqId, u32), DeviceError> {
        unimplemented!()
    }
    fn destroy_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn create_qp(&self, pd: PdId, cq: CqId, ask: QpCaps) -> Result<(QpId, QpCaps), DeviceError> {
        unimplemented!()
    }
    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError> {
        unimplemented!()
    }
    fn qp_to_rts(&self, qp: QpId, peer: Endpoint) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn qp_to_err(&self, qp: QpId) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError> {
        unimplemented!()
    }
    fn destroy_qp(&self, qp: QpId) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError> {
        unimplemented!()
    }
    fn dma_unmap(&self, addr: DmaAddr, proof: Fenced) -> Result<Unmapped, (DeviceError, Fenced)> {
        unimplemented!()
    }
    fn reg_mr(
        &self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        unimplemented!()
    }
    fn alloc_fast_mr(&self, pd: PdId, depth: u32, kind: FastMrKind) -> Result<MrKeys, DeviceError> {
        unimplemented!()
    }
    fn dereg_mr(&self, mr: MrId) -> Result<(), DeviceError> {
        unimplemented!()
    }
    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError> {
        unimplemented!()
    }
    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        unimplemented!()
    }
    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError> {
        unimplemented!()
    }
    fn next_event(&self, qp: QpId) -> Option<AsyncEvent> {
        unimplemented!()
    }
    fn step(&self) -> bool {
        unimplemented!()
    }
}
