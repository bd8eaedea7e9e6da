//! What the two programs say to each other.

/// A message that could be read.
pub struct Message {
    pub number: u32,
    /// Exposures that the sender tells of.
    pub serials: Vec<u64>,
    /// The exposure whose marked message this answers.
    pub answers: Option<u64>,
}

const TELLS: u8 = 1;
const MARKED: u8 = 2;
const ANSWERS: u8 = 3;
const NOISE: u8 = 4;

/// Tells of exposures; `pad` bytes follow that can be checked.
pub fn encode(number: u32, serials: &[u64], marked: bool, pad: usize) -> Vec<u8> {
    body(if marked { MARKED } else { TELLS }, number, serials, pad)
}

/// Answers a marked message.
pub fn encode_reply(number: u32, serial: u64) -> Vec<u8> {
    body(ANSWERS, number, &[serial], 0)
}

/// Says nothing.
pub fn noise(number: u32) -> Vec<u8> {
    body(NOISE, number, &[], 3)
}

/// Reads a message; `None` for one that is damaged.
pub fn decode(bytes: &[u8]) -> Option<Message> {
    let (&kind, rest) = bytes.split_first()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    let number = u32::from_be_bytes(*number);
    let (&count, mut rest) = rest.split_first()?;
    let mut serials = vec![];
    for _ in 0..count {
        let (serial, after) = rest.split_first_chunk::<8>()?;
        serials.push(u64::from_be_bytes(*serial));
        rest = after;
    }
    let whole = rest.iter().enumerate().all(|(i, &b)| b == padding(number, i));
    let answers = (kind == ANSWERS).then(|| serials.first().copied()).flatten();
    let known = (TELLS..=NOISE).contains(&kind);
    (whole && known).then_some(Message { number, serials, answers })
}

fn body(kind: u8, number: u32, serials: &[u64], pad: usize) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(number.to_be_bytes());
    out.push(serials.len() as u8);
    for s in serials {
        out.extend(s.to_be_bytes());
    }
    out.extend((0..pad).map(|i| padding(number, i)));
    out
}

fn padding(number: u32, i: usize) -> u8 {
    (number as u8).wrapping_add(i as u8)
}
