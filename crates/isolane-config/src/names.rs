//! Names of objects and hosts, and sources of keys.

use std::collections::BTreeSet;
use std::fmt;

use isolane_volumes::Kinds;
use isolane_wire::Nqn;
use serde_json::{Value as Json, json};
use toml_edit::Value as Toml;

use crate::problem::Invalid;
use crate::value::{AbsolutePath, Value, list_of, text_of, texts_of, wrong_type};

/// Name of a port, a host, or a referral within the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the name, or the reason why it is not valid.
    ///
    /// # Errors
    /// Cause and remedy.
    pub fn new(text: &str) -> Result<Name, String> {
        Name::parse_text(text).map_err(|Invalid { reason, remedy }| format!("{reason}; {remedy}"))
    }

    fn parse_text(text: &str) -> Result<Name, Invalid> {
        let is_valid = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
        let starts = text.starts_with(|char: char| char.is_ascii_alphanumeric());
        if starts && text.len() <= MAX_NAME_BYTES && text.chars().all(is_valid) {
            Ok(Name(text.to_owned()))
        } else {
            let remedy =
                format!("use up to {MAX_NAME_BYTES} letters, digits, `-`, `_`, and `.`, such as \"db1\"");
            Err(Invalid::new("not a valid name", remedy))
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for Name {
    const EXAMPLE: &'static str = "\"left\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<Name, Invalid> {
        Name::parse_text(text_of::<Name>(value)?)
    }

    fn print(&self) -> Toml {
        self.as_str().into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": MAX_NAME_BYTES })
    }
}

/// Names of objects, each once; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(pub BTreeSet<Name>);

/// Parses a list of names.
fn parse_names<T: Value>(value: &Toml) -> Result<BTreeSet<Name>, Invalid> {
    let mut names = BTreeSet::new();
    for text in texts_of::<T>(value)? {
        if !names.insert(Name::parse_text(text)?) {
            return Err(Invalid::new(format!("{text:?} is there twice"), "write each name once"));
        }
    }
    Ok(names)
}

impl Value for Names {
    const EXAMPLE: &'static str = "[\"left\"]";

    fn parse(value: &Toml, _: &Kinds) -> Result<Names, Invalid> {
        let names = parse_names::<Names>(value)?;
        if names.is_empty() {
            return Err(Invalid::new("an empty list", "name at least one, as in [\"left\"]"));
        }
        Ok(Names(names))
    }

    fn print(&self) -> Toml {
        list_of(self.0.iter().map(Name::as_str))
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": Name::schema(), "minItems": 1, "uniqueItems": true })
    }
}

/// Hosts that have access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every host, listed or not.
    Any,
    /// The listed hosts only.
    Listed(BTreeSet<Name>),
}

impl Value for Hosts {
    const EXAMPLE: &'static str = "[\"db1\"], or \"any\" for every host";

    fn parse(value: &Toml, _: &Kinds) -> Result<Hosts, Invalid> {
        match value.as_str() {
            Some("any") => Ok(Hosts::Any),
            Some(_) => {
                Err(Invalid::new("a text instead of a list", format!("write it as {}", Self::EXAMPLE)))
            }
            None => parse_names::<Hosts>(value).map(Hosts::Listed),
        }
    }

    fn print(&self) -> Toml {
        match self {
            Hosts::Any => "any".into(),
            Hosts::Listed(names) => list_of(names.iter().map(Name::as_str)),
        }
    }

    fn schema() -> Json {
        let list = json!({ "type": "array", "items": Name::schema(), "uniqueItems": true });
        json!({ "anyOf": [{ "const": "any" }, list] })
    }
}

/// Returns a name in the standard format.
fn parse_nqn(text: &str, example: &str) -> Result<Nqn, Invalid> {
    let nqn: Nqn = text.parse().map_err(|error| {
        let text = format!("{error}");
        let (reason, remedy) = text.split_once("; ").unwrap_or((&text, "give another name"));
        Invalid::new(reason, remedy)
    })?;
    if nqn.has_standard_format() {
        Ok(nqn)
    } else {
        let remedy = format!("write nqn.YEAR-MONTH.DOMAIN:NAME with your domain, such as {example}");
        Err(Invalid::new("not an NVMe qualified name", remedy))
    }
}

/// NQN of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StandardNqn(pub Nqn);

impl Value for StandardNqn {
    const EXAMPLE: &'static str = "\"nqn.2014-08.org.example:host\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<StandardNqn, Invalid> {
        parse_nqn(text_of::<StandardNqn>(value)?, "nqn.2014-08.org.example:host").map(StandardNqn)
    }

    fn print(&self) -> Toml {
        self.0.as_str().into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^nqn\\.[0-9]{4}-(0[1-9]|1[0-2])\\.[^:]", "maxLength": Nqn::MAX_LEN })
    }
}

/// NQN of a subsystem, which is usable in a URI and in a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubsystemNqn(pub Nqn);

impl Value for SubsystemNqn {
    const EXAMPLE: &'static str = "\"nqn.2014-08.org.example:disks\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<SubsystemNqn, Invalid> {
        parse_subsystem(text_of::<SubsystemNqn>(value)?)
    }

    fn print(&self) -> Toml {
        self.0.as_str().into()
    }

    fn schema() -> Json {
        let pattern = format!(
            "^nqn\\.[0-9]{{4}}-(0[1-9]|1[0-2])\\.(?!:)[^\\u0000-\\u0020\\u007f-\\U0010ffff{FORBIDDEN_PATTERN}]+$"
        );
        let pattern = pattern.replace("\\U0010ffff", "\\uffff");
        json!({ "type": "string", "pattern": pattern, "maxLength": Nqn::MAX_LEN, "not": { "const": Nqn::DISCOVERY } })
    }
}

/// Parses the name of a subsystem.
///
/// # Errors
/// Cause and remedy.
pub fn parse_subsystem_nqn(text: &str) -> Result<Nqn, String> {
    let parsed = parse_subsystem(text).map(|SubsystemNqn(nqn)| nqn);
    parsed.map_err(|Invalid { reason, remedy }| format!("{reason}; {remedy}"))
}

fn parse_subsystem(text: &str) -> Result<SubsystemNqn, Invalid> {
    if let Some(bad) = text.chars().find(|&char| !char.is_ascii_graphic() || FORBIDDEN.contains(char)) {
        let remedy = "use a name such as nqn.2014-08.org.example:disk";
        return Err(Invalid::new(format!("{bad:?} is special in a URI or a shell"), remedy));
    }
    let nqn = parse_nqn(text, "nqn.2014-08.org.example:disk")?;
    if nqn.is_discovery() {
        return Err(Invalid::new("the name of discovery", "give the subsystem a name of your domain"));
    }
    Ok(SubsystemNqn(nqn))
}

/// Characters that end an NQN in a URI or are special in a shell.
const FORBIDDEN: &str = "?#&;|<>()$`\\\"'*[]{}!";
/// The same in a regular expression.
const FORBIDDEN_PATTERN: &str = "?#&;|<>()$`\\\\\"'*\\[\\]{}!";
const MAX_NAME_BYTES: usize = 64;

/// Defines a text of printable ASCII characters.
macro_rules! ascii_text {
    ($(#[doc = $about:literal])* $name:ident, $max:literal, $example:literal) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Value for $name {
            const EXAMPLE: &'static str = $example;

            fn parse(value: &Toml, _: &Kinds) -> Result<$name, Invalid> {
                let text = text_of::<$name>(value)?;
                let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                // Fields are padded with spaces, so spaces at the end are lost.
                let is_valid = is_printable && !text.is_empty() && text.len() <= $max && text.trim() == text;
                is_valid.then(|| $name(text.to_owned())).ok_or_else(|| {
                    let remedy = concat!("write 1 to ", $max, " printable ASCII characters without spaces around");
                    Invalid::new("not valid for this field", remedy)
                })
            }

            fn print(&self) -> Toml {
                self.as_str().into()
            }

            fn schema() -> Json {
                json!({ "type": "string", "pattern": "^[!-~]([ -~]*[!-~])?$", "maxLength": $max })
            }
        }
    };
}

ascii_text!(
    /// Serial number of a subsystem.
    Serial, 20, "\"SN0001\""
);
ascii_text!(
    /// Model number of a subsystem.
    Model, 40, "\"Isolane\""
);

/// Location of a key. A key itself never is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file that only its owner can read.
    File(AbsolutePath),
    /// A credential of the systemd unit.
    Credential(Name),
}

impl KeySource {
    fn parse_text(text: &str) -> Result<KeySource, Invalid> {
        if let Some(path) = text.strip_prefix("file:") {
            return AbsolutePath::parse_text(path).map(KeySource::File).map_err(
                |Invalid { reason, .. }| {
                    Invalid::new(
                        reason,
                        "write the path from the root, such as \"file:/etc/isolane/db1.key\"",
                    )
                },
            );
        }
        if let Some(name) = text.strip_prefix("credential:") {
            return Name::parse_text(name).map(KeySource::Credential);
        }
        let is_key = text.to_ascii_uppercase().contains("DHHC-1:");
        let reason = if is_key { "a key in the file" } else { "not a location of a key" };
        let remedy = "write the key into a file that only its owner can read, and name it, as in \
                      \"file:/etc/isolane/db1.key\", or name a credential of systemd, as in \"credential:db1\"";
        Err(Invalid::new(reason, remedy))
    }

    fn text(&self) -> String {
        match self {
            KeySource::File(path) => format!("file:{}", path.as_text()),
            KeySource::Credential(name) => format!("credential:{name}"),
        }
    }
}

/// One key, or two during a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthKeys(pub Vec<KeySource>);

impl Value for AuthKeys {
    const EXAMPLE: &'static str = "\"file:/etc/isolane/db1.key\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<AuthKeys, Invalid> {
        let texts = match value {
            Toml::String(text) => vec![text.value().as_str()],
            Toml::Array(_) => texts_of::<AuthKeys>(value)?,
            value => return Err(wrong_type::<AuthKeys>(value, "a text or a list of two")),
        };
        let keys: Vec<KeySource> =
            texts.into_iter().map(KeySource::parse_text).collect::<Result<_, Invalid>>()?;
        match keys.as_slice() {
            [_] => Ok(AuthKeys(keys)),
            [first, second] if first != second => Ok(AuthKeys(keys)),
            [_, _] => Err(Invalid::new("twice the same key", "write it once")),
            _ => Err(Invalid::new("not one or two keys", "name one key, or two while hosts change theirs")),
        }
    }

    fn print(&self) -> Toml {
        match self.0.as_slice() {
            [only] => only.text().into(),
            keys => list_of(keys.iter().map(KeySource::text)),
        }
    }

    fn schema() -> Json {
        let key =
            json!({ "type": "string", "pattern": "^(file:/|credential:[A-Za-z0-9][A-Za-z0-9._-]{0,63}$)" });
        json!({ "anyOf": [key, { "type": "array", "items": key, "minItems": 1, "maxItems": 2, "uniqueItems": true }] })
    }
}
