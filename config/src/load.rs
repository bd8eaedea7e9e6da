//! From the sources to the settings: check each, layer them, check them against each other.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{Config, ConfigError, Map, Source, Value, ValueKind};

use crate::check::{self, Rules};
use crate::conflict;
use crate::given::Entry;
use crate::problem::{ConfigErrors, Problem, printable};
use crate::raw::Raw;
use crate::schema::{CONFIG, Schema};
use crate::settings::{self, Settings};
use crate::shown::{self, Merged, Shown};
use crate::{args, env, file, profile};

/// Collects the sources of a configuration. A later source overrides an earlier one, key by key.
///
/// Defaults < files in the order given < environment < `--set` < flags, in whatever order the
/// methods are called.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    files: Vec<Toml>,
    env: Vec<(OsString, OsString)>,
    sets: Vec<String>,
    flags: Vec<(String, String)>,
    plugins: Option<Vec<String>>,
}

/// TOML that the user named.
#[derive(Clone, Debug)]
enum Toml {
    File(PathBuf),
    Text { label: String, text: String },
}

/// A configuration without problems.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// What to do.
    pub settings: Settings,
    /// Every key with its value, where it came from and what it could be, in the order of the
    /// reference.
    pub origins: Vec<Shown>,
    /// Settings that have no effect beside others.
    pub warnings: Vec<Problem>,
}

impl Loader {
    /// No sources: the defaults.
    pub fn new() -> Loader {
        Loader::default()
    }

    /// Adds a TOML file, which must exist. No file is read that is not named here.
    ///
    /// # Units
    /// At most 1 MiB. Relative paths inside it start at its directory.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Loader {
        self.files.push(Toml::File(path.into()));
        self
    }

    /// Adds TOML text, among the files in the order given; messages call it `label`.
    ///
    /// Relative paths inside it start at the working directory.
    pub fn text(mut self, label: impl Into<String>, text: impl Into<String>) -> Loader {
        self.files.push(Toml::Text { label: label.into(), text: text.into() });
        self
    }

    /// Adds environment variables, such as `std::env::vars_os()`.
    ///
    /// Those that do not start with `MEMREG_` are ignored. `MEMREG__SECTION__KEY` sets
    /// `section.key`. `MEMREG_TEST_…` is left to tests. Any other `MEMREG_…` is an error.
    pub fn env<K, V>(mut self, vars: impl IntoIterator<Item = (K, V)>) -> Loader
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        self.env.extend(vars.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Adds a `section.key=value` of the command line. Of two for the same key the later wins.
    pub fn set(mut self, arg: impl Into<String>) -> Loader {
        self.sets.push(arg.into());
        self
    }

    /// Adds the value of a dedicated flag for the key that it stands for.
    pub fn flag(mut self, key: impl Into<String>, value: impl Into<String>) -> Loader {
        self.flags.push((key.into(), value.into()));
        self
    }

    /// States the plugins that exist, so that any other strategy name is an error here already.
    pub fn plugins<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Loader {
        self.plugins = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Reads, checks and layers the sources.
    ///
    /// # Errors
    /// Every problem of every source, also of values that a later source overrides.
    /// # Cost
    /// Reads the files named, and a profile's file if the configuration names one.
    pub fn load(&self) -> Result<Loaded, ConfigErrors> {
        let mut draft =
            Draft::new(Rules { schema: &CONFIG, dir: None, plugins: self.plugins.as_deref() });
        draft.add(defaults(&CONFIG), None);
        for toml in &self.files {
            match toml {
                Toml::File(path) => draft.add_file(path),
                Toml::Text { label, text } => draft.add_text(text, &printable(label), None),
            }
        }
        let (entries, problems) = env::parse(&self.env, &CONFIG);
        draft.problems.extend(problems);
        draft.add(entries, None);
        let (entries, problems) = args::sets(&self.sets);
        draft.problems.extend(problems);
        draft.add(entries, None);
        draft.add(args::flags(&self.flags), None);
        finish(draft)
    }
}

/// The sources checked so far.
pub(crate) struct Draft<'a> {
    rules: Rules<'a>,
    layers: Vec<Layer>,
    /// Keys of which some source gave a value that was refused: nothing more can be said of them.
    pub rejected: BTreeSet<String>,
    pub problems: Vec<Problem>,
    /// A file or a line could not be read, so keys may be missing.
    pub incomplete: bool,
}

impl<'a> Draft<'a> {
    pub fn new(rules: Rules<'a>) -> Draft<'a> {
        Draft {
            rules,
            layers: vec![],
            rejected: BTreeSet::new(),
            problems: vec![],
            incomplete: false,
        }
    }

    /// Adds a source above those before it.
    pub fn add(&mut self, entries: Vec<Entry>, dir: Option<&Path>) {
        let mut layer = Layer(Map::new());
        let most = self.problems.len() + MOST;
        for entry in entries {
            if self.problems.len() == most {
                self.incomplete = true;
                self.problems.push(and_more(entry.origin));
                break;
            }
            match check::check(&entry, Rules { dir, ..self.rules }) {
                Ok(value) => insert(&mut layer.0, &entry.path, value),
                Err(problem) => {
                    self.rejected.insert(problem.key.clone());
                    self.problems.push(*problem);
                }
            }
        }
        self.layers.push(layer);
    }

    /// Adds a file, or the reason why it cannot be read.
    pub fn add_file(&mut self, path: &Path) {
        match file::read(path) {
            Ok(text) => self.add_text(&text, &file::label(path), path.parent()),
            Err(problem) => {
                self.incomplete = true;
                self.problems.push(*problem);
            }
        }
    }

    fn add_text(&mut self, text: &str, label: &str, dir: Option<&Path>) {
        let (entries, problems) = file::parse(text, label, self.rules.schema);
        self.incomplete |= !problems.is_empty();
        self.problems.extend(problems);
        self.add(entries, dir);
    }

    /// Layers what was accepted.
    pub fn merge(&self) -> Result<Config, ConfigError> {
        let layers = self.layers.iter().cloned();
        layers.fold(Config::builder(), |builder, layer| builder.add_source(layer)).build()
    }
}

/// One source lists at most this many problems of its values: beyond, it is some other file, and
/// near misses of a hundred thousand names take their time.
pub(crate) const MOST: usize = 100;

/// Ends a list of problems that is too long.
pub(crate) fn and_more(source: String) -> Problem {
    Problem {
        source,
        key: String::new(),
        value: String::new(),
        message: format!("{MOST} problems before this one; what follows was not checked"),
        allowed: String::new(),
        hint: None,
    }
}

/// The defaults as a source.
pub(crate) fn defaults(schema: &Schema) -> Vec<Entry> {
    let given = schema.keys().filter_map(|key| Some((key.path, key.default?)));
    given.map(|(path, value)| args::entry(path, value, shown::DEFAULT)).collect()
}

fn finish(mut draft: Draft<'_>) -> Result<Loaded, ConfigErrors> {
    let config = match draft.merge() {
        Ok(config) => config,
        Err(e) => return Err(internal(draft.problems, &e)),
    };
    let merged = Merged::of(&config);
    let mut warnings = vec![];
    let profile = profile::load(&merged, &mut draft);
    conflict::check(&merged, &mut draft, &mut warnings);
    if !draft.problems.is_empty() {
        return Err(ConfigErrors::new(draft.problems, warnings));
    }
    match config.try_deserialize::<Raw>() {
        Ok(raw) => Ok(Loaded {
            settings: settings::from_raw(raw, profile),
            origins: merged.rows(&CONFIG),
            warnings,
        }),
        Err(e) => Err(internal(draft.problems, &e)),
    }
}

/// The table and the serde mirror disagree, which only a mistake in this crate can bring about.
fn internal(mut problems: Vec<Problem>, e: &ConfigError) -> ConfigErrors {
    problems.push(Problem {
        source: "memreg-config".to_owned(),
        key: String::new(),
        value: String::new(),
        message: format!("internal invariant broken: {e}; please report this"),
        allowed: String::new(),
        hint: None,
    });
    ConfigErrors::new(problems, vec![])
}

/// The accepted values of one source.
///
/// Only keys of the table get here. That matters: `config` reads top-level names as paths, and for
/// one such as `a[99999999999]` it would allocate that list.
#[derive(Clone, Debug)]
struct Layer(Map<String, Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.0.clone())
    }
}

fn insert(table: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            table.insert(name.clone(), value);
        }
        [section, rest @ ..] => {
            let inner = table
                .entry(section.clone())
                .or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
            if let ValueKind::Table(inner) = &mut inner.kind {
                insert(inner, rest, value);
            }
        }
    }
}
