//! Bytes as a source of choices: once they have run out, every choice is zero.

/// What is left of an input.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    /// One of a list; `None` if it is empty.
    pub fn index(&mut self, len: usize) -> Option<usize> {
        let byte = usize::from(self.byte());
        byte.checked_rem(len)
    }
}
