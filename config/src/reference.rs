//! The reference of the configuration: a file with every key, which is itself a valid
//! configuration.

use std::fmt::Write as _;

use crate::schema::{CONFIG, Key, Kind};

/// The reference: every key with its meaning, allowed values and default, as a TOML file that sets
/// the defaults.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    for (section, about) in CONFIG.sections {
        let _ = write!(out, "\n# {about}\n[{section}]\n");
        for key in CONFIG.keys() {
            if let Some(name) = name_in(section, key) {
                describe(&mut out, name, key);
            }
        }
    }
    out
}

const HEAD: &str = "\
# The configuration of memreg. Every key may be left out; what is commented out below is an example
# of a key that is unset by default.
#
# A later source overrides an earlier one: the defaults below, the file, the environment, `--set
# section.key=value`, the command line's own flags. In the environment a key is a variable in upper
# case with two underscores at each dot, such as MEMREG__QUEUES__CREDITS; lists are separated by
# commas; any other variable that starts with MEMREG_ is an error, MEMREG_TEST_... apart.
#
# Sizes are bytes: 4096, \"4KiB\" or \"4 KiB\". KiB, MiB, GiB and TiB are powers of 1024, KB, MB, GB
# and TB powers of 1000. Case matters; fractions and a bare K, M or G are refused.
";

/// The key's name if it stands directly in the section.
fn name_in<'k>(section: &str, key: &'k Key) -> Option<&'k str> {
    key.path.strip_prefix(section)?.strip_prefix('.').filter(|name| !name.contains('.'))
}

fn describe(out: &mut String, name: &str, key: &Key) {
    let name = if name == "*" { "name_of_the_option" } else { name };
    let _ = write!(out, "\n# {}\n# {}", key.about, key.kind.allowed());
    match key.default {
        Some(default) => {
            let _ = write!(out, "\n{name} = {}\n", literal(default, key.kind));
        }
        None => {
            let _ = write!(out, "\n#{name} = {}\n", literal(key.example, key.kind));
        }
    }
}

/// A default or an example as TOML has it.
fn literal(value: &str, kind: Kind) -> String {
    match kind {
        Kind::Bool | Kind::Int { .. } | Kind::Scalar => value.to_owned(),
        Kind::Size { .. } | Kind::AutoOr { .. } if value.bytes().all(|b| b.is_ascii_digit()) => {
            value.to_owned()
        }
        Kind::Order => {
            let names: Vec<String> = value.split(',').map(|name| format!("\"{name}\"")).collect();
            format!("[{}]", names.join(", "))
        }
        _ => format!("\"{value}\""),
    }
}
