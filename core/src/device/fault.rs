//! Faults as a wrapper around any device.
