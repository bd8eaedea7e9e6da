//! The bytes that are transferred: those of a file, or made from the seed.

use crate::cli::bytes::fill;
use crate::cli::failure::Failure;
use anyhow::{Context, anyhow};
use memreg_config::{DeviceSettings, Settings};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Where the bytes come from.
#[derive(Debug)]
pub(super) enum Data {
    /// A file, read in chunks as they are needed.
    File { file: File, path: PathBuf, len: u64 },
    /// Pseudo-random bytes.
    Seeded { seed: u64 },
}

impl Data {
    /// Opens the file, or falls back on the seed.
    pub fn open(path: Option<&Path>, settings: &Settings) -> Result<Data, Failure> {
        let Some(path) = path else {
            let seed = match &settings.device {
                DeviceSettings::Sim(sim) => sim.seed,
                DeviceSettings::Verbs(_) => 0,
            };
            return Ok(Data::Seeded { seed });
        };
        open_file(path)
            .with_context(|| format!("--file {}", path.display()))
            .map_err(Failure::usage)
    }

    /// Operations of `size` bytes that cover a file; `None` where there is no end.
    pub fn chunks(&self, size: usize) -> Option<u64> {
        match self {
            Data::File { len, .. } => Some(len.div_ceil(size as u64)),
            Data::Seeded { .. } => None,
        }
    }

    /// Replaces `out` with the bytes of an operation. Past its last chunk a file starts again; that
    /// chunk is as short as it is.
    pub fn chunk(&mut self, op: u32, size: usize, out: &mut Vec<u8>) -> Result<(), Failure> {
        match self {
            Data::Seeded { seed } => {
                out.resize(size, 0);
                fill(*seed ^ (u64::from(op) << 40) ^ size as u64, out);
                Ok(())
            }
            Data::File { file, path, len } => {
                let chunks = len.div_ceil(size as u64).max(1);
                let at = (u64::from(op) % chunks) * size as u64;
                let n = (*len - at).min(size as u64) as usize;
                out.resize(n, 0);
                let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(out));
                read.with_context(|| format!("--file {}: reading at byte {at}", path.display()))
                    .map_err(Failure::usage)
            }
        }
    }
}

fn open_file(path: &Path) -> anyhow::Result<Data> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() {
        return Err(anyhow!("is not a regular file; give one, or leave --file out"));
    }
    if meta.len() == 0 {
        return Err(anyhow!("is empty: there is nothing to transfer"));
    }
    Ok(Data::File { file: File::open(path)?, path: path.to_owned(), len: meta.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_covered_whole_and_then_again() {
        let path = std::env::temp_dir().join(format!("memreg-data-{}", std::process::id()));
        std::fs::write(&path, b"abcdefghij").unwrap();
        let mut data = Data::open(Some(&path), &Settings::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(data.chunks(4), Some(3));
        let mut out = vec![];
        let mut got = vec![];
        for op in 0..4 {
            data.chunk(op, 4, &mut out).unwrap();
            got.push(String::from_utf8(out.clone()).unwrap());
        }
        assert_eq!(got, ["abcd", "efgh", "ij", "abcd"]);
    }

    #[test]
    fn seeded_bytes_differ_by_operation_and_not_by_run() {
        let mut data = Data::Seeded { seed: 1 };
        let (mut a, mut b) = (vec![], vec![]);
        data.chunk(0, 13, &mut a).unwrap();
        data.chunk(1, 13, &mut b).unwrap();
        assert_ne!(a, b);
        data.chunk(0, 13, &mut b).unwrap();
        assert_eq!(a, b);
    }
}
