//! One input into another that is nearly as good.

use fastrand::Rng;

/// Some file of the corpus, changed in one to four places.
pub fn mutate(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.choice(corpus).cloned().unwrap_or_default();
    for _ in 0..rng.usize(1..=4) {
        once(&mut input, corpus, rng);
    }
    input.truncate(LONGEST);
    input
}

fn once(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(0..=input.len());
    let part = at..rng.usize(at..=input.len().min(at + 64));
    match rng.u8(0..8) {
        0 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
        1 if at < input.len() => input[at] = *rng.choice(EDGES).unwrap_or(&0),
        2 => input.insert(at, rng.u8(..)),
        3 => drop(input.drain(part)),
        4 => {
            let again = input[part].to_vec();
            input.splice(at..at, again);
        }
        5 => input.truncate(at),
        6 => number(input, at, rng),
        _ => {
            let other = rng.choice(corpus).map_or(&[][..], Vec::as_slice);
            let from = rng.usize(0..=other.len());
            input.splice(part, other[from..].iter().take(64).copied());
        }
    }
}

/// Replaces the first number from `at` on by one that is more trouble.
fn number(input: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let digit = u8::is_ascii_digit;
    let Some(start) = input[at..].iter().position(digit).map(|i| at + i) else { return };
    let end = input[start..].iter().position(|b| !digit(b)).map_or(input.len(), |i| start + i);
    let trouble = rng.choice(NUMBERS).copied().unwrap_or_default();
    input.splice(start..end, trouble.bytes());
}

const EDGES: &[u8] = &[0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b'=', b'[', b'.', b' '];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e9",
    "0x10",
    "1_0",
];

/// Bytes.
const LONGEST: usize = 8192;
