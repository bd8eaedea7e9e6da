//! Every section and key: the one table that checks, messages, defaults and the reference are made
//! from.

/// One key of the configuration.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its path; a last segment `*` stands for any name.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Its default as one would write it in a variable; `None` = unset.
    pub default: Option<&'static str>,
    /// What one might write where there is no default.
    pub example: &'static str,
    /// What it means, in one line.
    pub about: &'static str,
}

/// What a key takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number of `unit`.
    Int { min: u64, max: u64, unit: &'static str },
    /// A whole number, or `auto` to have one chosen.
    AutoOr { min: u64, max: u64 },
    /// Bytes, with or without a unit.
    Size { min: u64, max: u64, power_of_two: bool },
    /// One of a few words.
    Word(&'static [&'static str]),
    /// `auto`, a built-in strategy or a plugin's name.
    Strategy,
    /// The names that `auto` may choose from.
    Order,
    /// A built-in profile's name, or the path of a profile's TOML.
    Profile,
    /// A device's exact name.
    Device,
    /// Any one line of text.
    Line,
    /// A plugin's option: any scalar.
    Scalar,
}

/// A set of sections and keys that one kind of file may hold.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Paths of the tables, and what they are about.
    pub sections: &'static [(&'static str, &'static str)],
    /// Key lists, in the order of the sections.
    pub keys: &'static [&'static [Key]],
}

impl Schema {
    /// The key at this path.
    pub fn key(&self, path: &[String]) -> Option<&'static Key> {
        self.keys().find(|key| key.is_at(path))
    }

    /// Whether a table belongs at this path.
    pub fn is_section(&self, path: &[String]) -> bool {
        self.sections.iter().any(|(name, _)| name.split('.').eq(path.iter().map(String::as_str)))
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + Clone + use<> {
        self.keys.iter().flat_map(|list| list.iter())
    }

    /// Names directly inside the deepest section that `path` leads into.
    pub fn siblings(&self, path: &[String]) -> Vec<&'static str> {
        let depth = (0..path.len()).rev().find(|n| self.is_section(path.get(..*n).unwrap_or(&[])));
        let inside = path.get(..depth.unwrap_or(0)).unwrap_or(&[]);
        let sections = self.sections.iter().map(|(name, _)| *name);
        let mut names = vec![];
        for full in self.keys().map(|key| key.path).chain(sections) {
            let mut rest = full.split('.');
            if inside.iter().all(|s| rest.next() == Some(s.as_str()))
                && let Some(name) = rest.next()
                && !names.contains(&name)
            {
                names.push(name);
            }
        }
        names
    }
}

impl Key {
    fn is_at(&self, path: &[String]) -> bool {
        let mut segments = self.path.split('.');
        let matches = |s: &String| match segments.next() {
            Some("*") => !s.is_empty(),
            other => other == Some(s.as_str()),
        };
        path.iter().all(matches) && segments.next().is_none()
    }
}

impl Kind {
    /// The values that are right, for messages and the reference.
    pub fn allowed(self) -> String {
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int { min, max, unit } => join(format!("{min}..={max}"), unit),
            Kind::AutoOr { min, max } => format!("auto or {min}..={max}"),
            Kind::Size { min, max, power_of_two } => {
                let what = if power_of_two { "a power of two, " } else { "" };
                format!("{what}{min}..={max} bytes, or with KiB, MiB, GiB, TiB, KB, MB, GB, TB")
            }
            Kind::Word(words) => words.join(", "),
            Kind::Strategy => "auto, frwr, fmr, physical or a plugin's name".to_owned(),
            Kind::Order => "frwr, fmr and plugins' names, each once, at least one".to_owned(),
            Kind::Profile => {
                "a built-in profile's name, or a path with / or ending in .toml".into()
            }
            Kind::Device => "a device's exact name, 1..=63 bytes without /".to_owned(),
            Kind::Line => "one line of text".to_owned(),
            Kind::Scalar => "a boolean, a 64-bit whole number, a number or text".to_owned(),
        }
    }

    /// What the type is called, for "is …, not …".
    pub fn noun(self) -> &'static str {
        match self {
            Kind::Bool => "a boolean",
            Kind::Int { .. } => "a whole number",
            Kind::AutoOr { .. } => "auto or a whole number",
            Kind::Size { .. } => "a size",
            Kind::Order => "a list of names",
            Kind::Scalar => "a scalar",
            Kind::Word(_) | Kind::Strategy | Kind::Profile | Kind::Device | Kind::Line => "text",
        }
    }
}

/// Strategies that are always there.
pub(crate) const BUILT_IN: [&str; 3] = ["frwr", "fmr", "physical"];

/// The configuration.
pub(crate) static CONFIG: Schema = Schema {
    sections: &[
        ("device", "What carries the registrations out."),
        ("device.caps", "sim only: overrides of the profile, by the name of the attribute."),
        ("strategy", "How memory is granted to the peer."),
        ("strategy.options", "Options of a plugin, by the names it gives them: scalars only."),
        ("queues", "How much may be in flight."),
        ("memory", "How large an operation may be."),
    ],
    keys: &[DEVICE, CAPS, STRATEGY, QUEUES, MEMORY],
};

/// A profile of the software device, in a file of its own.
pub(crate) static PROFILE: Schema = Schema {
    sections: &[("caps", "Attributes that differ from those of the base.")],
    keys: &[PROFILE_HEAD, PROFILE_CAPS],
};

const DEVICE: &[Key] = &[
    Key {
        path: "device.kind",
        kind: Kind::Word(&["sim", "verbs"]),
        default: Some("sim"),
        example: "",
        about: "the software device inside this process, or libibverbs",
    },
    Key {
        path: "device.name",
        kind: Kind::Device,
        default: None,
        example: "rxe0",
        about: "verbs only: which device, compared exactly; unset = the nearest active one",
    },
    Key {
        path: "device.port",
        kind: Kind::AutoOr { min: 1, max: 255 },
        default: Some("auto"),
        example: "",
        about: "verbs only: the device's port; auto = its first active one",
    },
    Key {
        path: "device.gid_index",
        kind: Kind::AutoOr { min: 0, max: 255 },
        default: Some("auto"),
        example: "",
        about: "verbs only: entry of the port's GID table; auto = the one that reaches farthest",
    },
    Key {
        path: "device.numa_node",
        kind: Kind::AutoOr { min: 0, max: 1023 },
        default: Some("auto"),
        example: "",
        about: "verbs only: memory node to be near if no device is named; auto = this process's",
    },
    Key {
        path: "device.relaxed_ordering",
        kind: Kind::Word(&["auto", "try", "require", "off"]),
        default: Some("auto"),
        example: "",
        about: "whether data may be written out of order; auto = what the device does by itself",
    },
    Key {
        path: "device.profile",
        kind: Kind::Profile,
        default: Some("generic"),
        example: "",
        about: "sim only: which hardware it resembles; a path is relative to the file that says it",
    },
    Key {
        path: "device.seed",
        kind: Kind::Int { min: 0, max: u64::MAX, unit: "" },
        default: Some("1"),
        example: "",
        about: "sim only: the one source of its choices; same seed, same run",
    },
];

const STRATEGY: &[Key] = &[
    Key {
        path: "strategy.name",
        kind: Kind::Strategy,
        default: Some("auto"),
        example: "",
        about: "how memory is granted; anything but auto works or is an error, never replaced",
    },
    Key {
        path: "strategy.order",
        kind: Kind::Order,
        default: Some("frwr,fmr"),
        example: "",
        about: "what auto tries, in this order; never physical",
    },
    Key {
        path: "strategy.danger_trust_peer",
        kind: Kind::Bool,
        default: Some("false"),
        example: "",
        about: "the peer may keep access for ever; physical works only with true",
    },
    Key {
        path: "strategy.options.*",
        kind: Kind::Scalar,
        default: None,
        example: "1",
        about: "an option of the plugin named above",
    },
];

const QUEUES: &[Key] = &[
    Key {
        path: "queues.credits",
        kind: Kind::Int { min: 1, max: 65_535, unit: "operations" },
        default: Some("128"),
        example: "",
        about: "operations in flight; lowered, and said so, where the device has less room",
    },
    Key {
        path: "queues.backchannel",
        kind: Kind::Int { min: 0, max: 65_535, unit: "operations" },
        default: Some("0"),
        example: "",
        about: "extra send and receive slots for calls of the peer",
    },
    Key {
        path: "queues.ranges_per_request",
        kind: Kind::Int { min: 1, max: 14, unit: "ranges" },
        default: Some("4"),
        example: "",
        about: "contiguous ranges of one operation, for strategies that count ranges, not pages",
    },
];

const MEMORY: &[Key] = &[
    Key {
        path: "memory.max_payload",
        kind: Kind::Size { min: 1, max: 1 << 40, power_of_two: false },
        default: Some("1MiB"),
        example: "",
        about: "bytes of the largest operation",
    },
    Key {
        path: "memory.split",
        kind: Kind::Size { min: 4096, max: 1 << 40, power_of_two: false },
        default: None,
        example: "1GiB",
        about: "fmr: pieces of what the device has no room for as a whole; unset = it is an error",
    },
];

const PROFILE_HEAD: &[Key] = &[
    Key {
        path: "name",
        kind: Kind::Line,
        default: None,
        example: "lab-nic",
        about: "how messages call it",
    },
    Key {
        path: "about",
        kind: Kind::Line,
        default: Some(""),
        example: "",
        about: "what it resembles",
    },
    Key {
        path: "base",
        kind: Kind::Line,
        default: Some("generic"),
        example: "",
        about: "the built-in profile that it differs from",
    },
];

/// The attributes of a device, once under `device.caps` and once under a profile's `caps`.
macro_rules! caps {
    ($($name:literal, $kind:expr, $example:literal, $about:literal;)*) => {
        const CAPS: &[Key] = &[$(caps!(@key "device.caps.", $name, $kind, $example, $about)),*];
        const PROFILE_CAPS: &[Key] = &[$(caps!(@key "caps.", $name, $kind, $example, $about)),*];
    };
    (@key $at:literal, $name:literal, $kind:expr, $example:literal, $about:literal) => {
        Key {
            path: concat!($at, $name),
            kind: $kind,
            default: None,
            example: $example,
            about: $about,
        }
    };
}

caps! {
    "mem_mgt_extensions", Kind::Bool, "true",
        "LOCAL_INV, SEND_WITH_INV and, with a page list, REG_MR";
    "sg_gaps", Kind::Bool, "false",
        "one REG_MR may describe pieces that do not join at page boundaries";
    "max_fast_reg_page_list_len", int(0, 65_535, "entries"), "512",
        "page-list entries of one REG_MR; 0 = no REG_MR";
    "mem_window_type_2b", Kind::Bool, "false",
        "windows bound by a WR; needs max_mw";
    "max_mw", int(0, 1 << 24, "windows"), "0",
        "windows at once; 0 makes mem_window_type_2b a lie";
    "max_mr", int(1, 1 << 24, "MRs"), "65536",
        "MRs of every kind at once";
    "max_mr_size", Kind::Size { min: 4096, max: u64::MAX, power_of_two: false }, "1TiB",
        "bytes of one MR";
    "iommu_mr_size", Kind::Size { min: 0, max: u64::MAX, power_of_two: false }, "0",
        "bytes of one MR for which there is really room; 0 = all that max_mr_size says";
    "relaxed_ordering", Kind::Bool, "false",
        "a registration may let the device write out of order";
    "relaxed_ordering_always", Kind::Bool, "false",
        "the device writes out of order whether it is asked to or not";
    "max_qp_wr", int(1, 1 << 20, "WRs"), "16384",
        "WRs of one send or receive queue";
    "wide_sge", int(0, 1024, "SGEs"), "0",
        "SGEs above which a queue has room for max_qp_wr_wide WRs only; 0 = no such limit";
    "max_qp_wr_wide", int(1, 1 << 20, "WRs"), "16384",
        "WRs of one queue whose WRs have more than wide_sge SGEs";
    "max_cqe", int(1, 1 << 24, "entries"), "65536",
        "entries of one CQ";
    "max_sge", int(1, 1024, "SGEs"), "16",
        "SGEs of one WR";
    "max_sge_rd", int(1, 1024, "SGEs"), "16",
        "SGEs of one RDMA READ";
    "max_inline_data", Kind::Size { min: 0, max: 65_536, power_of_two: false }, "256",
        "bytes of one inline payload";
    "page_size", Kind::Size { min: 512, max: 1 << 30, power_of_two: true }, "4096",
        "bytes of a page";
}

const fn int(min: u64, max: u64, unit: &'static str) -> Kind {
    Kind::Int { min, max, unit }
}

fn join(range: String, unit: &str) -> String {
    if unit.is_empty() { range } else { format!("{range} {unit}") }
}
