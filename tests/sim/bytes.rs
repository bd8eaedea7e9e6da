//! What the bytes must be: shadows of buffers, and the writes that may have changed them.

use memreg_core::DmaBuf;
use memreg_core::transport::Buffers;
use std::ops::Range;

/// A buffer in the program's hands, and what must be in it.
pub struct Spare {
    pub buf: DmaBuf,
    pub shadow: Vec<u8>,
}

/// A buffer that the transport has: what was in it, and the part that counts.
pub struct Part {
    pub shadow: Vec<u8>,
    pub range: Range<usize>,
}

/// A write by the peer into a run of bytes.
#[derive(Clone, Debug)]
pub struct Write {
    pub id: u64,
    pub payload: Range<usize>,
    pub fill: u8,
    /// Its completion said success.
    pub succeeded: bool,
    /// Set when the bytes came back before the completion did: whether they had arrived by then.
    pub arrived: Option<bool>,
}

/// The byte that a write of `fill` puts at a position of the payload: position counts, so that a
/// byte in the wrong place is seen.
pub fn pattern(fill: u8, position: usize) -> u8 {
    fill.wrapping_add((position as u8).wrapping_mul(7)).wrapping_add((position >> 8) as u8)
}

impl Spare {
    pub fn new(len: usize, fill: u8) -> Spare {
        let mut buf = DmaBuf::new(len).unwrap();
        let shadow: Vec<u8> = (0..len).map(|i| pattern(fill, i)).collect();
        buf.copy_from_slice(&shadow);
        Spare { buf, shadow }
    }
}

pub fn payload_len(parts: &[Part]) -> usize {
    parts.iter().map(|p| p.range.len()).sum()
}

/// The bytes that count, one after the other.
pub fn payload(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|p| &p.shadow[p.range.clone()]).copied().collect()
}

/// What came back of what was given.
pub struct Returned {
    pub spares: Vec<Spare>,
    /// Bytes of buffers that did not come back.
    pub missing: u64,
}

/// Checks buffers that came back: those given, in order, unchanged but for what `allowed` says of
/// each byte of the payload (its position, what was there, and what is there now).
pub fn check_back(
    parts: Vec<Part>,
    back: Buffers,
    allowed: impl Fn(usize, u8, u8) -> bool,
) -> Returned {
    let given: usize = parts.iter().map(|p| p.shadow.len()).sum();
    let back: Vec<(DmaBuf, Range<usize>)> = back.into_iter().collect();
    let came: usize = back.iter().map(|(b, _)| b.len()).sum();
    assert!(came <= given && back.len() <= parts.len(), "more came back than was given");
    let missing = (given - came) as u64;
    let whole = back.len() == parts.len();
    let mut spares = vec![];
    let mut position = 0;
    for (i, (buf, range)) in back.into_iter().enumerate() {
        // Which ones are missing cannot be told, so only complete lists are compared.
        if whole {
            let part = &parts[i];
            assert_eq!((buf.len(), &range), (part.shadow.len(), &part.range), "another buffer");
            let (start, end) = (range.start, range.end);
            assert!(buf[..start] == part.shadow[..start], "bytes before the range changed");
            assert!(buf[end..] == part.shadow[end..], "bytes after the range changed");
            for at in range.clone() {
                let (was, is) = (part.shadow[at], buf[at]);
                let p = position + at - start;
                assert!(allowed(p, was, is), "byte {p} of the payload was {was}, is {is}");
            }
            position += range.len();
        }
        let shadow = buf.to_vec();
        spares.push(Spare { buf, shadow });
    }
    Returned { spares, missing }
}

/// Whether a byte can be what it is after these writes, in order; one whose completion did not say
/// success may have happened or not.
pub fn explained(writes: &[Write], position: usize, was: u8, is: u8) -> bool {
    let mut possible = vec![was];
    for w in writes.iter().filter(|w| w.payload.contains(&position)) {
        if w.succeeded {
            possible.clear();
        }
        possible.push(pattern(w.fill, position));
    }
    possible.contains(&is)
}
