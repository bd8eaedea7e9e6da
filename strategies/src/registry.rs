//! The strategies that this program knows, by name.

use crate::{Fmr, Frwr, Guarded, Physical, Strategy};
use memreg_core::plugin::{self, API, Entry, Options};

/// What a strategy is built with.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// The user's word that the peer may keep access for ever; `physical` needs it.
    pub danger_trust_peer: bool,
    /// `[strategy.options]`, for a plugin.
    pub options: Options,
}

/// A strategy as lists show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The name used in the configuration.
    pub name: &'static str,
    /// One line on what it does.
    pub about: &'static str,
    /// Whether it comes from another crate.
    pub plugin: bool,
}

/// All strategies of this program, sorted by name.
///
/// Plugins announce themselves to the linker, which drops a crate that nobody names: `use
/// their_plugin as _;`.
#[derive(Clone, Debug)]
pub struct Registry {
    makers: Vec<Maker>,
}

/// A strategy that cannot be taken into the registry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Two strategies have one name.
    #[error("two strategies are named {name}: \"{first}\" and \"{second}\"")]
    Duplicate {
        /// The name.
        name: &'static str,
        /// What the one that was there first says of itself.
        first: &'static str,
        /// What the other says.
        second: &'static str,
    },
    /// A plugin was written for another version of the contract.
    #[error("strategy {name} is written for plugin api {got}, this build has {API}")]
    Api {
        /// The plugin.
        name: &'static str,
        /// Its version.
        got: u32,
    },
    /// A name that the configuration could not say.
    #[error(
        "strategy name {0:?} is not one of lower-case letters, digits, - and _, or is \"auto\""
    )]
    Name(&'static str),
}

/// A strategy that could not be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No strategy has this name.
    #[error("no strategy is named {name:?}; known are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names.
        known: Vec<&'static str>,
    },
    /// The plugin refused its options.
    #[error("strategy {name}: {reason}")]
    Plugin {
        /// The plugin.
        name: &'static str,
        /// Its reason.
        reason: String,
    },
}

#[derive(Clone, Copy, Debug)]
enum Maker {
    Frwr,
    Fmr,
    Physical,
    Plugin(Entry),
}

impl Registry {
    /// The built-in strategies and all plugins linked into this program.
    ///
    /// # Errors
    /// [`RegistryError`] for the first plugin, by name, that does not fit.
    pub fn new() -> Result<Registry, RegistryError> {
        let mut registry = Registry::builtin();
        let mut linked: Vec<&Entry> = plugin::linked().collect();
        // The linker's order may change from build to build; the error must not.
        linked.sort_by_key(|e| (e.name, e.about, e.api));
        for entry in linked {
            registry.register(*entry)?;
        }
        Ok(registry)
    }

    /// The built-in strategies alone.
    #[must_use]
    pub fn builtin() -> Registry {
        let mut makers = vec![Maker::Frwr, Maker::Fmr, Maker::Physical];
        makers.sort_by_key(|m| m.known().name);
        Registry { makers }
    }

    /// Adds a plugin that does not come through the linker, as in a test or a static library.
    ///
    /// # Errors
    /// [`RegistryError`]; nothing was added.
    pub fn register(&mut self, entry: Entry) -> Result<(), RegistryError> {
        let name = entry.name;
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if name.is_empty() || name == "auto" || !name.bytes().all(legal) {
            return Err(RegistryError::Name(name));
        }
        if entry.api != API {
            return Err(RegistryError::Api { name, got: entry.api });
        }
        match self.makers.binary_search_by_key(&name, |m| m.known().name) {
            Ok(at) => Err(RegistryError::Duplicate {
                name,
                first: self.makers[at].known().about,
                second: entry.about,
            }),
            Err(at) => {
                self.makers.insert(at, Maker::Plugin(entry));
                Ok(())
            }
        }
    }

    /// All strategies, sorted by name.
    pub fn known(&self) -> impl Iterator<Item = Known> {
        self.makers.iter().map(Maker::known)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known().map(|k| k.name)
    }

    /// Whether a strategy has this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names().any(|n| n == name)
    }

    /// Makes the strategy of that name, for one connection.
    ///
    /// # Errors
    /// [`BuildError::Unknown`] with the known names, or the plugin's own reason.
    pub fn build(&self, name: &str, options: &BuildOptions) -> Result<Strategy, BuildError> {
        let maker = self.makers.iter().find(|m| m.known().name == name).ok_or_else(|| {
            BuildError::Unknown { name: name.to_owned(), known: self.names().collect() }
        })?;
        Ok(match maker {
            Maker::Frwr => Frwr::new().into(),
            Maker::Fmr => Fmr::new().into(),
            Maker::Physical => Physical::new(options.danger_trust_peer).into(),
            Maker::Plugin(entry) => Guarded::build(entry, &options.options)
                .map_err(|reason| BuildError::Plugin { name: entry.name, reason })?
                .into(),
        })
    }
}

impl Maker {
    fn known(&self) -> Known {
        let (name, about, plugin) = match self {
            Maker::Frwr => ("frwr", "fast registration by work request; revoked by one too", false),
            Maker::Fmr => ("fmr", "ordinary registration by verb, once per operation", false),
            Maker::Physical => {
                ("physical", "copies through an arena that the peer keeps; never revoked", false)
            }
            Maker::Plugin(e) => (e.name, e.about, true),
        };
        Known { name, about, plugin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memreg_core::MemReg;
    use memreg_core::plugin::OptionValue;

    const ENTRY: Entry = Entry {
        name: "linked-test",
        api: API,
        about: "a plugin of this test",
        check: |_| Ok(()),
        build: |options| match options.get("mode") {
            None => Ok(Box::new(Fmr::new())),
            Some(_) => Err("option mode: not known".to_owned()),
        },
    };

    inventory::submit!(ENTRY);

    #[test]
    fn linked_plugins_are_known_and_names_are_sorted() {
        let r = Registry::new().unwrap();
        assert_eq!(r.names().collect::<Vec<_>>(), ["fmr", "frwr", "linked-test", "physical"]);
        assert!(r.known().filter(|k| k.plugin).all(|k| k.name == "linked-test"));
        let opts = BuildOptions::default();
        for name in r.names() {
            assert_eq!(r.build(name, &opts).unwrap().name(), name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let e = Registry::builtin().build("frw", &BuildOptions::default()).unwrap_err();
        assert_eq!(e.to_string(), "no strategy is named \"frw\"; known are fmr, frwr, physical");
    }

    #[test]
    fn a_plugin_can_refuse_its_options() {
        let r = Registry::new().unwrap();
        let options = [("mode".to_owned(), OptionValue::Int(1))].into();
        let e = r.build("linked-test", &BuildOptions { options, danger_trust_peer: false });
        assert_eq!(e.unwrap_err().to_string(), "strategy linked-test: option mode: not known");
    }

    #[test]
    fn duplicates_wrong_versions_and_bad_names_are_errors() {
        let mut r = Registry::builtin();
        let e = r.register(Entry { name: "frwr", ..ENTRY }).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("fast registration by work request"), "{text}");
        assert!(text.contains("a plugin of this test"), "{text}");
        r.register(ENTRY).unwrap();
        assert!(matches!(r.register(ENTRY), Err(RegistryError::Duplicate { .. })));
        let e = r.register(Entry { name: "new", api: 7, ..ENTRY }).unwrap_err();
        assert_eq!(e.to_string(), "strategy new is written for plugin api 7, this build has 1");
        for name in ["", "auto", "Frwr", "a b", "ü"] {
            let e = r.register(Entry { name, ..ENTRY });
            assert_eq!(e, Err(RegistryError::Name(name)));
        }
        assert_eq!(r.names().count(), 4);
    }
}
