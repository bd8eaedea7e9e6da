//! The plan: what would be opened, with which sizes, and why not another.

use crate::{Candidate, SelectError, Tried, Wanted, rechoose};
use memreg_core::device::Caps;
use memreg_core::sizing::{Ask, Clamp, Limits, Reach, SendParts, page_list_reach};
use memreg_strategies::{BuildOptions, Registry};

/// What would be opened on a device, without a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The strategy that would be used; `None` with the reason in `refusal`.
    pub chosen: Option<&'static str>,
    /// Every known strategy: those of `strategy.order` first, then the others by name.
    pub candidates: Vec<Candidate>,
    /// The sizes of the chosen one.
    pub sizing: Option<Sizing>,
    /// Why nothing would be opened.
    pub refusal: Option<SelectError>,
}

/// The sizes of one strategy, with their parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizing {
    /// What a region is made of.
    pub mechanism: &'static str,
    /// Page-list entries of one region; 0 where a region is a contiguous range.
    pub page_list_depth: u32,
    /// Regions of one operation.
    pub regions_per_request: u32,
    /// Send-queue slots of one operation.
    pub wr_per_request: u32,
    /// Operations in flight.
    pub credits: u32,
    /// Send-queue slots.
    pub max_send_wr: u32,
    /// Receive-queue slots.
    pub max_recv_wr: u32,
    /// CQ entries.
    pub cq_entries: u32,
    /// Segments of one operation.
    pub max_segments: u32,
    /// Bytes of the largest operation.
    pub max_payload_bytes: u64,
    /// What the slots of the send queue are for.
    pub parts: SendParts,
    /// The longest contiguous payload of one key, for page lists.
    pub one_key: Option<Reach>,
    /// Everything that a limit lowered.
    pub clamped: Vec<Clamp>,
}

impl Plan {
    /// Plans for a device of these attributes; `tried` are strategies that it has turned out not
    /// to support.
    #[must_use]
    pub fn new(
        registry: &Registry,
        caps: &Caps,
        ask: &Ask,
        wanted: &Wanted,
        options: &BuildOptions,
        tried: &[Tried],
    ) -> Plan {
        match rechoose(registry, caps, ask, wanted, options, tried) {
            Ok(choice) => Plan {
                chosen: choice.candidates.iter().find(|c| c.chosen).map(|c| c.name),
                sizing: Some(Sizing::new(&choice.limits, caps)),
                candidates: choice.candidates,
                refusal: None,
            },
            Err(e) => Plan {
                chosen: None,
                candidates: e.candidates().to_vec(),
                sizing: None,
                refusal: Some(e),
            },
        }
    }
}

impl Sizing {
    /// The sizes of an opened strategy on a device of these attributes.
    #[must_use]
    pub fn new(limits: &Limits, caps: &Caps) -> Sizing {
        let page_lists = limits.page_list_depth > 0;
        Sizing {
            mechanism: limits.mechanism,
            page_list_depth: limits.page_list_depth,
            regions_per_request: limits.regions_per_request,
            wr_per_request: limits.wr_per_request,
            credits: limits.credits,
            max_send_wr: limits.max_send_wr,
            max_recv_wr: limits.max_recv_wr,
            cq_entries: limits.cq_entries,
            max_segments: limits.max_segments,
            max_payload_bytes: limits.max_payload_bytes,
            parts: limits.parts(),
            one_key: page_lists.then(|| page_list_reach(caps, 1)).flatten(),
            clamped: limits.clamped.clone(),
        }
    }
}

impl Candidate {
    /// The name, and where it leaves that open, the mechanism: `frwr (windows)`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.limits.as_ref().map(|l| l.mechanism) {
            Some("window") => format!("{} (windows)", self.name),
            _ => self.name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(caps: &Caps, name: &str, ask: &Ask) -> Plan {
        let order = Wanted::default().order;
        let wanted = Wanted::new(name, order);
        Plan::new(&Registry::builtin(), caps, ask, &wanted, &BuildOptions::default(), &[])
    }

    fn windows() -> Caps {
        Caps {
            max_fast_reg_page_list_len: 0,
            mem_window_type_2b: true,
            max_mw: 1 << 16,
            ..Caps::default()
        }
    }

    #[test]
    fn a_plan_has_the_choice_the_reasons_and_the_sizes() {
        let p = plan(&Caps::default(), "auto", &Ask::default());
        assert_eq!((p.chosen, p.refusal), (Some("frwr"), None));
        assert_eq!(p.candidates.len(), 3);
        assert!(p.candidates.iter().all(|c| !c.reason.is_empty()));
        let s = p.sizing.unwrap();
        assert_eq!((s.mechanism, s.page_list_depth, s.regions_per_request), ("page list", 257, 3));
        assert_eq!((s.credits, s.max_send_wr, s.cq_entries), (128, 897, 897 + 128));
        assert_eq!(s.parts.total(), 897);
    }

    #[test]
    fn b14_the_plan_tells_how_far_one_key_reaches() {
        let caps = Caps { max_fast_reg_page_list_len: 256, ..Caps::default() };
        let s = plan(&caps, "auto", &Ask::default()).sizing.unwrap();
        let reach = Reach { any_offset: 1_044_481, aligned: 1_048_576 };
        assert_eq!(s.one_key, Some(reach));
        assert_eq!(plan(&windows(), "auto", &Ask::default()).sizing.unwrap().one_key, None);
        assert_eq!(plan(&caps, "fmr", &Ask::default()).sizing.unwrap().one_key, None);
    }

    #[test]
    fn b16_windows_are_shown_as_the_mechanism() {
        let p = plan(&windows(), "auto", &Ask::default());
        assert_eq!(p.chosen, Some("frwr"));
        let labels: Vec<_> = p.candidates.iter().map(Candidate::label).collect();
        assert_eq!(labels, ["frwr (windows)", "fmr", "physical"]);
    }

    #[test]
    fn b37_what_was_lowered_is_in_the_plan() {
        let ask = Ask { credits: 32, ..Ask::default() };
        let s = plan(&Caps { max_qp_wr: 100, ..Caps::default() }, "frwr", &ask).sizing.unwrap();
        assert_eq!(
            (s.credits, s.parts.register, s.parts.invalidate, s.parts.send),
            (14, 42, 42, 14)
        );
        assert_eq!(s.clamped[0].got, 14);
        let p = plan(&Caps { max_qp_wr: 6, ..Caps::default() }, "frwr", &ask);
        assert_eq!((p.chosen, &p.sizing), (None, &None));
        let why = p.refusal.unwrap().to_string();
        assert!(why.contains("7 WRs") && why.contains("max_qp_wr is 6"), "{why}");
    }
}
