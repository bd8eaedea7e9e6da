//! What the two sides put into the CM's private data.

use crate::types::Epoch;

/// Bytes of private data in a request.
pub const PRIVATE_MOST: usize = 56;
/// Bytes of private data in the answer that accepts.
pub const REPLY_MOST: usize = 196;
/// Bytes of private data in a rejection.
pub const REFUSAL_MOST: usize = 148;

/// What goes into the private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// A greeting of this library with some bytes of the program, at most [`Hello::ROOM`]. The peer
    /// must send one too: without its epoch no segment of it could be told from a stale one.
    Hello(&'a [u8]),
    /// These bytes as they are, for a peer that is not this library. Its epoch counts as 0, and
    /// nothing of what it says is looked at.
    Raw(&'a [u8]),
}

/// The greeting of this library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The sender's connection epoch, which its segments carry.
    pub epoch: Epoch,
    /// Bytes of the largest message that the sender's receives have room for.
    pub max_message_bytes: u32,
    /// Bytes of the program.
    pub data: Vec<u8>,
}

/// Private data that is no greeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// It does not start as one.
    #[error("is not one of memreg: is another program there?")]
    NotOurs,
    /// It is of another version of the format.
    #[error("has version {got} and this side speaks {}: update the older side", Hello::VERSION)]
    Version {
        /// The version byte.
        got: u8,
    },
    /// A field has a value that cannot be.
    #[error("is damaged: {0}")]
    Damaged(&'static str),
}

impl Hello {
    /// Version of the format.
    pub const VERSION: u8 = 1;
    /// Bytes of the program that fit into a request.
    pub const ROOM: usize = PRIVATE_MOST - HEADER;

    /// Encodes: "mreg", version, kind 1, the length of the program's bytes, a zero; epoch and
    /// message size, 32 bits each, big-endian; the program's bytes.
    #[must_use]
    pub fn to_wire(&self) -> Vec<u8> {
        let len = u8::try_from(self.data.len().min(u8::MAX.into())).unwrap_or(u8::MAX);
        let mut out = Vec::with_capacity(HEADER + self.data.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[Hello::VERSION, KIND_HELLO, len, 0]);
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
        out.extend_from_slice(&self.max_message_bytes.to_be_bytes());
        out.extend(self.data.iter().take(len.into()));
        out
    }

    /// Decodes what the CM handed over, which is padded with zeros.
    ///
    /// # Errors
    /// [`HelloError`] for anything else.
    pub fn from_wire(bytes: &[u8]) -> Result<Hello, HelloError> {
        let (kind, len, rest) = envelope(bytes)?;
        if kind != KIND_HELLO {
            return Err(HelloError::Damaged("it is not the greeting's kind"));
        }
        let Some((numbers, rest)) = rest.split_at_checked(HEADER - ENVELOPE) else {
            return Err(HelloError::Damaged("it is too short"));
        };
        let data = rest.get(..len).ok_or(HelloError::Damaged("its length is past its end"))?;
        let word = |i: usize| {
            let w = numbers.get(i..i + 4).unwrap_or_default();
            w.iter().fold(0u32, |n, &b| n << 8 | u32::from(b))
        };
        if word(4) == 0 {
            return Err(HelloError::Damaged("its messages have no bytes"));
        }
        let (epoch, max_message_bytes) = (Epoch(word(0)), word(4));
        Ok(Hello { epoch, max_message_bytes, data: data.to_vec() })
    }
}

/// A rejection in words, cut where it does not fit.
pub(super) fn refusal(text: &str) -> Vec<u8> {
    let mut end = text.len().min(REFUSAL_MOST - ENVELOPE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let len = u8::try_from(end).unwrap_or(0);
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[Hello::VERSION, KIND_REFUSAL, len, 0]);
    out.extend(text.bytes().take(len.into()));
    out
}

/// The words of a rejection, if it has some. Other versions' too: an old reader is to hear why.
pub(super) fn refusal_text(bytes: &[u8]) -> Option<String> {
    let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
    let [_, kind, len, _, text @ ..] = rest else { return None };
    if magic != MAGIC || *kind != KIND_REFUSAL {
        return None;
    }
    let text = String::from_utf8_lossy(text.get(..usize::from(*len))?);
    Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

fn envelope(bytes: &[u8]) -> Result<(u8, usize, &[u8]), HelloError> {
    let (magic, rest) = bytes.split_at_checked(MAGIC.len()).ok_or(HelloError::NotOurs)?;
    let [version, kind, len, zero, rest @ ..] = rest else { return Err(HelloError::NotOurs) };
    if magic != MAGIC {
        return Err(HelloError::NotOurs);
    }
    if *version != Hello::VERSION {
        return Err(HelloError::Version { got: *version });
    }
    if *zero != 0 {
        return Err(HelloError::Damaged("a byte that must be zero is not"));
    }
    Ok((*kind, usize::from(*len), rest))
}

const MAGIC: &[u8; 4] = b"mreg";
const KIND_HELLO: u8 = 1;
const KIND_REFUSAL: u8 = 2;
/// Bytes in front of both kinds.
const ENVELOPE: usize = 8;
/// Bytes in front of the program's.
const HEADER: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { epoch: Epoch(0x0102_0304), max_message_bytes: 4096, data: vec![9; Hello::ROOM] }
    }

    #[test]
    fn the_wire_form_is_fixed_and_survives_padding() {
        let wire = hello().to_wire();
        assert_eq!(wire.len(), PRIVATE_MOST);
        assert_eq!(&wire[..17], b"mreg\x01\x01\x28\x00\x01\x02\x03\x04\x00\x00\x10\x00\x09");
        let mut padded = wire;
        padded.resize(REPLY_MOST, 0);
        assert_eq!(Hello::from_wire(&padded), Ok(hello()));
    }

    #[test]
    fn every_damage_is_refused() {
        let good = hello().to_wire();
        for len in 0..good.len() {
            assert!(Hello::from_wire(&good[..len]).is_err(), "{len}");
        }
        let damage = |i: usize, v: u8| {
            let mut wire = good.clone();
            wire[i] = v;
            Hello::from_wire(&wire)
        };
        assert_eq!(damage(0, b'M'), Err(HelloError::NotOurs));
        assert_eq!(damage(4, 2), Err(HelloError::Version { got: 2 }));
        assert!(damage(5, 2).is_err() && damage(6, 41).is_err() && damage(7, 1).is_err());
        let mut silent = good.clone();
        silent[12..16].fill(0);
        assert!(matches!(Hello::from_wire(&silent), Err(HelloError::Damaged(_))));
        assert_eq!(Hello::from_wire(&[0; 56]), Err(HelloError::NotOurs));
    }

    #[test]
    fn a_refusal_is_cut_between_characters_and_shows_no_control_characters() {
        let long = "é".repeat(100);
        let mut wire = refusal(&long);
        assert_eq!(wire.len(), REFUSAL_MOST);
        assert_eq!(refusal_text(&wire), Some("é".repeat(70)));
        wire[8] = 7;
        assert!(refusal_text(&wire).unwrap().starts_with(' '));
        wire[6] = 255;
        assert_eq!(refusal_text(&wire), None);
        assert_eq!(refusal_text(&hello().to_wire()), None);
    }
}
