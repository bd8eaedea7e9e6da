//! The rules: when a key is dead, what may be posted, who gets bytes back.
