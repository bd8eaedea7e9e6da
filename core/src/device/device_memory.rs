//! Memory of a device, such as a GPU, that reaches this process as a dmabuf: what was said of it
//! against what it is.

use super::{DeviceError, Verb};

/// Whose memory it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// A device's.
    Device,
}

/// Device memory was not registered; nothing is left of what was on the way.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMemoryError {
    /// The segment is not of the kind that it was declared to be.
    #[error("segment {index}: declared {declared} memory, backend sees {seen} memory ({what})")]
    Mismatch {
        /// Which segment.
        index: usize,
        /// As declared.
        declared: MemoryKind,
        /// As found.
        seen: MemoryKind,
        /// What the descriptor is.
        what: String,
    },
    /// Host memory that is no dmabuf: expose it as an ordinary buffer.
    #[error("segment {index}: {what} is no dmabuf; host memory is exposed as a DmaBuf")]
    NoDmabuf {
        /// Which segment.
        index: usize,
        /// What the descriptor is.
        what: String,
    },
    /// Neither the device nor its driver takes dmabufs.
    #[error("segment {index}: this device, its driver or its library cannot register dmabufs")]
    Unsupported {
        /// Which segment.
        index: usize,
        /// Its answer.
        source: DeviceError,
    },
    /// The device refused.
    #[error("segment {index}: {source}")]
    Device {
        /// Which segment.
        index: usize,
        /// Its answer.
        source: DeviceError,
    },
}

/// What a descriptor is, by the target of its link in `/proc/self/fd` and its `fdinfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    is_dmabuf: bool,
    exporter: Option<String>,
    link: String,
}

impl Descriptor {
    /// Reads both texts.
    #[must_use]
    pub fn new(link: &str, fdinfo: &str) -> Descriptor {
        let exporter = fdinfo.lines().find_map(|l| l.strip_prefix("exp_name:"));
        Descriptor {
            is_dmabuf: link.starts_with("/dmabuf:") || link.starts_with("anon_inode:dmabuf"),
            exporter: exporter.map(|name| name.trim().to_owned()),
            link: link.to_owned(),
        }
    }

    /// Whose memory it is. Some exporters hand out the host's own.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        let of_host = |name: &String| HOST_EXPORTERS.contains(&name.as_str());
        match self.is_dmabuf && !self.exporter.as_ref().is_some_and(of_host) {
            true => MemoryKind::Device,
            false => MemoryKind::Host,
        }
    }

    /// Holds what was declared against what it is.
    ///
    /// # Errors
    /// [`DeviceMemoryError::Mismatch`]; [`DeviceMemoryError::NoDmabuf`].
    pub fn check(&self, index: usize, declared: MemoryKind) -> Result<(), DeviceMemoryError> {
        let seen = self.kind();
        let what = || match &self.exporter {
            Some(exporter) => format!("{}, exported by {exporter}", self.link),
            None => self.link.clone(),
        };
        if declared != seen {
            return Err(DeviceMemoryError::Mismatch { index, declared, seen, what: what() });
        }
        if !self.is_dmabuf {
            return Err(DeviceMemoryError::NoDmabuf { index, what: what() });
        }
        Ok(())
    }
}

/// Checks every segment before the first is registered, then registers them in order; on an error
/// those that were made are dropped, which ends them.
///
/// # Errors
/// The first one, by segment.
pub fn register_each<T>(
    segments: impl Iterator<Item = (Descriptor, MemoryKind)>,
    mut register: impl FnMut(usize) -> Result<T, DeviceError>,
) -> Result<Vec<T>, DeviceMemoryError> {
    let mut count = 0;
    for (index, (descriptor, declared)) in segments.enumerate() {
        descriptor.check(index, declared)?;
        count = index + 1;
    }
    let one = |index| {
        register(index).map_err(|source| match source.errno {
            super::errno::EOPNOTSUPP => DeviceMemoryError::Unsupported { index, source },
            _ => DeviceMemoryError::Device { index, source },
        })
    };
    (0..count).map(one).collect()
}

/// The refusal of a library or driver without the call.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "a call of real devices"))]
pub(super) const UNSUPPORTED: DeviceError =
    DeviceError::new(Verb::RegDmabufMr, super::errno::EOPNOTSUPP);

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryKind::Host => "host",
            MemoryKind::Device => "device",
        })
    }
}

/// Exporters of dmabufs over the host's memory: the kernel's udmabuf and its heaps.
const HOST_EXPORTERS: [&str; 4] = ["udmabuf", "system", "system_heap", "cma"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::errno;
    use std::cell::Cell;

    fn gpu() -> Descriptor {
        Descriptor::new("/dmabuf:", "pos:\t0\nflags:\t02000002\nexp_name:\tamdgpu\n")
    }

    #[test]
    fn b101_declared_device_memory_that_is_host_memory_is_an_error_before_anything_is_made() {
        let made = Cell::new(0);
        let register = |_| {
            made.set(made.get() + 1);
            Ok(())
        };
        let heap = Descriptor::new("/dmabuf:", "exp_name:\tudmabuf\n");
        let file = Descriptor::new("/memfd:pages (deleted)", "pos:\t0\n");
        for (host, what) in
            [(heap, "/dmabuf:, exported by udmabuf"), (file, "/memfd:pages (deleted)")]
        {
            let list = [(gpu(), MemoryKind::Device), (host, MemoryKind::Device)];
            let e = register_each(list.into_iter(), register).unwrap_err();
            assert_eq!(
                e.to_string(),
                format!("segment 1: declared device memory, backend sees host memory ({what})")
            );
        }
        let e = register_each([(gpu(), MemoryKind::Host)].into_iter(), register).unwrap_err();
        assert!(matches!(e, DeviceMemoryError::Mismatch { seen: MemoryKind::Device, .. }));
        let file = Descriptor::new("/tmp/x", "");
        let e = register_each([(file, MemoryKind::Host)].into_iter(), register).unwrap_err();
        assert!(e.to_string().contains("/tmp/x is no dmabuf"), "{e}");
        assert_eq!(made.get(), 0);
    }

    #[test]
    fn b101_a_refusal_on_the_way_undoes_what_was_made() {
        struct Made<'a>(&'a Cell<i32>);
        impl Drop for Made<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        let live = Cell::new(0);
        let three = || [gpu(), gpu(), gpu()].into_iter().map(|d| (d, MemoryKind::Device));
        let until = |last: usize, errno| {
            let live = &live;
            register_each(three(), move |index| {
                if index == last {
                    return Err(DeviceError::new(Verb::RegDmabufMr, errno));
                }
                live.set(live.get() + 1);
                Ok(Made(live))
            })
        };
        let e = until(2, errno::ENOMEM).err().unwrap();
        assert!(e.to_string().starts_with("segment 2: reg_dmabuf_mr: ENOMEM (12)"), "{e}");
        assert_eq!(live.get(), 0);
        let e = until(0, errno::EOPNOTSUPP).err().unwrap();
        assert!(e.to_string().contains("cannot register dmabufs"), "{e}");
        let made = until(9, 0).unwrap();
        assert_eq!((made.len(), live.get()), (3, 3));
        drop(made);
        assert_eq!(live.get(), 0);
    }
}
