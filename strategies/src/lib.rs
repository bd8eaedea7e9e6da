//! The strategies.
