//! A user's profile of the software device: a TOML file of its own.

use std::path::Path;

use crate::check::{self, Rules};
use crate::load::{Draft, defaults};
use crate::problem::Problem;
use crate::raw;
use crate::schema::PROFILE;
use crate::settings::ProfileFile;
use crate::shown::Merged;

/// Reads the profile that the configuration names, if it is a file and the software device will use
/// it.
///
/// What is wrong with it joins the problems of the configuration.
pub(crate) fn load(merged: &Merged, draft: &mut Draft<'_>) -> Option<Box<ProfileFile>> {
    let uncertain = ["device.kind", "device.profile"].iter().any(|k| draft.rejected.contains(*k));
    let path = merged.text("device.profile").filter(|profile| check::is_path(profile))?;
    if uncertain || merged.text("device.kind") != Some("sim") {
        return None;
    }
    match read(Path::new(path)) {
        Ok(profile) => Some(Box::new(profile)),
        Err(problems) => {
            draft.problems.extend(problems);
            None
        }
    }
}

fn read(path: &Path) -> Result<ProfileFile, Vec<Problem>> {
    let mut draft = Draft::new(Rules { schema: &PROFILE, dir: None, plugins: None });
    draft.add(defaults(&PROFILE), None);
    draft.add_file(path);
    let fault = |key: &str, message: String, allowed: &str| Problem {
        source: crate::file::label(path),
        key: key.to_owned(),
        value: String::new(),
        message,
        allowed: allowed.to_owned(),
        hint: None,
    };
    let internal = |e: config::ConfigError| {
        vec![fault("", format!("internal invariant broken: {e}; please report this"), "")]
    };
    let config = draft.merge().map_err(internal)?;
    if !draft.incomplete
        && !draft.rejected.contains("name")
        && Merged::of(&config).text("name").is_none()
    {
        draft.problems.push(fault("name", "is missing".to_owned(), "one line of text"));
    }
    if !draft.problems.is_empty() {
        return Err(draft.problems);
    }
    let raw: raw::Profile = config.try_deserialize().map_err(internal)?;
    Ok(ProfileFile {
        path: path.to_owned(),
        name: raw.name,
        about: raw.about,
        base: raw.base,
        caps: raw.caps,
    })
}
