//! What `compare --connect` and `serve` say to each other.
//!
//! The side that connects owns the memory; `serve` reads and writes it, as told. Numbers are
//! big-endian.

use memreg_core::Transport;
use memreg_core::device::Device;
use memreg_core::memreg::MemReg;
use memreg_core::types::Segment;
use std::time::Duration;

/// Version of this protocol, in both greetings.
pub const VERSION: u8 = 1;

/// What the greetings of both sides carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Bytes of the largest operation: of the client, what it will ask; of `serve`, what it takes.
    pub op_bytes_most: u64,
}

impl Terms {
    pub fn to_wire(self) -> Vec<u8> {
        let mut out = vec![b'c', VERSION];
        out.extend_from_slice(&self.op_bytes_most.to_be_bytes());
        out
    }

    pub fn from_wire(bytes: &[u8]) -> Result<Terms, String> {
        match bytes {
            [b'c', VERSION, most @ ..] => {
                let most = most.try_into().map_err(|_| NOT_OURS.to_owned())?;
                Ok(Terms { op_bytes_most: u64::from_be_bytes(most) })
            }
            [b'c', other, ..] => Err(format!(
                "the other side speaks version {other} of memreg compare, this one {VERSION}: \
                 update the older one"
            )),
            _ => Err(NOT_OURS.to_owned()),
        }
    }
}

const NOT_OURS: &str = "the other side is not memreg compare";

/// What the owner wants done with the memory that it exposes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Read it, and look whether it has the sum.
    Read,
    /// Write what was read last, which had the sum, into it.
    Write,
}

/// A message of the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub wish: Wish,
    /// The reply invalidates the key of the first segment.
    pub invalidate: bool,
    /// Of the bytes.
    pub sum: u64,
    pub segments: Vec<Segment>,
}

impl Request {
    /// What stands in front of the segments.
    pub fn head(wish: Wish, invalidate: bool, sum: u64) -> Vec<u8> {
        let wish = match wish {
            Wish::Read => 1,
            Wish::Write => 2,
        };
        let mut out = vec![wish, u8::from(invalidate), 0, 0];
        out.extend_from_slice(&sum.to_be_bytes());
        out
    }

    /// Decodes what came to `t`.
    pub fn get<D: Device, S: MemReg>(bytes: &[u8], t: &Transport<D, S>) -> Result<Request, String> {
        let Some(([wish, invalidate, 0, 0], rest)) = bytes.split_first_chunk() else {
            return Err("it does not start as one".to_owned());
        };
        let Some((sum, rest)) = rest.split_first_chunk() else {
            return Err("it is too short".to_owned());
        };
        let wish = match wish {
            1 => Wish::Read,
            2 => Wish::Write,
            other => return Err(format!("it asks for {other}, which is nothing")),
        };
        let invalidate = match invalidate {
            0 => false,
            1 => true,
            other => return Err(format!("it has flags {other:#x}, which mean nothing")),
        };
        if rest.is_empty() {
            return Err("it names no memory".to_owned());
        }
        let segments = rest.chunks(Segment::WIRE_LEN).map(|wire| t.import(wire));
        let segments = segments.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        Ok(Request { wish, invalidate, sum: u64::from_be_bytes(*sum), segments })
    }
}

/// How `serve` ended what was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// The bytes that were read have another sum.
    WrongSum,
    /// It was not done, and why.
    Refused(String),
}

/// A message of `serve`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub outcome: Outcome,
    /// Time that went into filling and checking buffers.
    pub checking: Duration,
    /// Of the bytes that it has.
    pub sum: u64,
}

impl Reply {
    pub fn refused(why: impl Into<String>) -> Reply {
        Reply { outcome: Outcome::Refused(why.into()), checking: Duration::ZERO, sum: 0 }
    }

    pub fn to_wire(&self) -> Vec<u8> {
        let (code, text) = match &self.outcome {
            Outcome::Done => (0, ""),
            Outcome::WrongSum => (1, ""),
            Outcome::Refused(why) => (2, why.as_str()),
        };
        let mut out = vec![code, 0, 0, 0];
        let checking = u64::try_from(self.checking.as_nanos()).unwrap_or(u64::MAX);
        out.extend_from_slice(&checking.to_be_bytes());
        out.extend_from_slice(&self.sum.to_be_bytes());
        out.extend(text.bytes().take(TEXT_MOST));
        out
    }

    pub fn from_wire(bytes: &[u8]) -> Result<Reply, String> {
        let damaged = || "its answer cannot be read: is another program there?".to_owned();
        let Some(([code, 0, 0, 0], rest)) = bytes.split_first_chunk() else {
            return Err(damaged());
        };
        let (checking, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        let (sum, text) = rest.split_first_chunk().ok_or_else(damaged)?;
        let outcome = match code {
            0 => Outcome::Done,
            1 => Outcome::WrongSum,
            2 => Outcome::Refused(printable(text)),
            _ => return Err(damaged()),
        };
        let checking = Duration::from_nanos(u64::from_be_bytes(*checking));
        Ok(Reply { outcome, checking, sum: u64::from_be_bytes(*sum) })
    }
}

/// Text of the other side, which may hold anything.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text.get(..TEXT_MOST).unwrap_or(text));
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Well below what a message has room for.
const TEXT_MOST: usize = 400;

/// A sum that differs for any two runs of bytes of one length that differ in eight adjacent bytes
/// or fewer: each step is a bijection. It finds accidents, not forgeries.
pub fn sum(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64;
    for word in bytes.chunks(8) {
        let mut full = [0; 8];
        full[..word.len()].copy_from_slice(word);
        state = (state ^ u64::from_le_bytes(full)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 32;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_changes_the_sum() {
        let bytes = [0x5a; 21];
        for at in 0..21 * 8 {
            let mut other = bytes;
            other[at / 8] ^= 1 << (at % 8);
            assert_ne!(sum(&other), sum(&bytes), "{at}");
        }
        assert_ne!(sum(&[0; 8]), sum(&[0; 9]));
    }

    #[test]
    fn terms_are_told_from_anything_else() {
        let terms = Terms { op_bytes_most: 1 << 40 };
        let wire = terms.to_wire();
        assert_eq!(Terms::from_wire(&wire), Ok(terms));
        assert!(Terms::from_wire(b"c\x02xxxxxxxx").unwrap_err().contains("version 2"));
        for bad in [&wire[..9], b"", b"x"] {
            assert_eq!(Terms::from_wire(bad).unwrap_err(), NOT_OURS);
        }
    }

    #[test]
    fn replies_survive_the_wire_and_damage_does_not() {
        for outcome in [Outcome::Done, Outcome::WrongSum, Outcome::Refused("why".to_owned())] {
            let reply = Reply { outcome, checking: Duration::from_nanos(7), sum: 9 };
            assert_eq!(Reply::from_wire(&reply.to_wire()), Ok(reply));
        }
        let good = Reply::refused("").to_wire();
        for len in 0..good.len() {
            assert!(Reply::from_wire(&good[..len]).is_err(), "{len}");
        }
        assert!(Reply::from_wire(&[3; 20]).is_err());
        let rude = Reply::refused("a\x1b[2Jb".repeat(200));
        let Outcome::Refused(text) = Reply::from_wire(&rude.to_wire()).unwrap().outcome else {
            panic!("not refused");
        };
        assert!(text.len() <= TEXT_MOST && !text.contains('\x1b'));
    }
}
