//! The selector.
