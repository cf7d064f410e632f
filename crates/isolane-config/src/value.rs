//! Values of keys: numbers, sizes, times, addresses, and paths, in the form of the command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use isolane_host::Cores;
use isolane_target::{Listen, parse_address};
use isolane_volume::spec::{format_size, parse_size};
use isolane_volumes::Kinds;
use serde_json::{Value as Json, json};
use toml_edit::{Array, Value as Toml};

use crate::problem::Invalid;

/// A value of a key.
pub(crate) trait Value: Sized {
    /// An example, as written in a file.
    const EXAMPLE: &'static str;

    fn parse(value: &Toml, kinds: &Kinds) -> Result<Self, Invalid>;
    fn print(&self) -> Toml;
    fn schema() -> Json;
}

/// Returns the text of a value of type `T`.
pub(crate) fn text_of<T: Value>(value: &Toml) -> Result<&str, Invalid> {
    value.as_str().ok_or_else(|| wrong_type::<T>(value, "a text"))
}

/// Returns the error of a value that is not of the expected type.
pub(crate) fn wrong_type<T: Value>(value: &Toml, expected: &str) -> Invalid {
    let found = match value {
        Toml::String(_) => "a text",
        Toml::Integer(_) | Toml::Float(_) => "a number",
        Toml::Boolean(_) => "true or false",
        Toml::Datetime(_) => "a date",
        Toml::Array(_) => "a list",
        Toml::InlineTable(_) => "a table",
    };
    Invalid::new(format!("{found} instead of {expected}"), format!("write it as {}", T::EXAMPLE))
}

/// Returns the texts of a list of values of type `T`.
pub(crate) fn texts_of<T: Value>(value: &Toml) -> Result<Vec<&str>, Invalid> {
    let list = value.as_array().ok_or_else(|| wrong_type::<T>(value, "a list"))?;
    list.iter().map(|entry| entry.as_str().ok_or_else(|| wrong_type::<T>(entry, "a text"))).collect()
}

/// Returns a list of texts.
pub(crate) fn list_of<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Toml {
    Toml::Array(texts.into_iter().map(|text| text.as_ref().to_owned()).collect::<Array>())
}

impl Value for bool {
    const EXAMPLE: &'static str = "true";

    fn parse(value: &Toml, _: &Kinds) -> Result<bool, Invalid> {
        match value.as_str() {
            Some(text @ ("on" | "yes")) => Err(Invalid::new(format!("{text:?} is a text"), "write true")),
            Some(text @ ("off" | "no")) => Err(Invalid::new(format!("{text:?} is a text"), "write false")),
            _ => value.as_bool().ok_or_else(|| wrong_type::<bool>(value, "true or false")),
        }
    }

    fn print(&self) -> Toml {
        (*self).into()
    }

    fn schema() -> Json {
        json!({ "type": "boolean" })
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Number<MIN, MAX> {
    /// Returns the number, or `None` if it is out of range.
    pub fn new(number: u32) -> Option<Number<MIN, MAX>> {
        (MIN..=MAX).contains(&number).then_some(Number(number))
    }

    /// Returns the number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> Value for Number<MIN, MAX> {
    const EXAMPLE: &'static str = "8";

    fn parse(value: &Toml, _: &Kinds) -> Result<Self, Invalid> {
        let number = value.as_integer().ok_or_else(|| wrong_type::<Self>(value, "a whole number"))?;
        u32::try_from(number)
            .ok()
            .and_then(Number::new)
            .ok_or_else(|| Invalid::new("out of range", format!("write a number from {MIN} to {MAX}")))
    }

    fn print(&self) -> Toml {
        i64::from(self.0).into()
    }

    fn schema() -> Json {
        json!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A size in bytes, at least `MIN`: a number, or a text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size<const MIN: u64>(u64);

impl<const MIN: u64> Size<MIN> {
    /// Returns a size, or `None` if it is too small.
    pub fn new(bytes: u64) -> Option<Size<MIN>> {
        (bytes >= MIN).then_some(Size(bytes))
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64> Value for Size<MIN> {
    const EXAMPLE: &'static str = "\"64M\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<Self, Invalid> {
        let bytes = match value {
            Toml::Integer(number) => u64::try_from(*number.value())
                .map_err(|_| Invalid::new("below 0", format!("write at least {}", format_size(MIN))))?,
            value => parse_size(text_of::<Self>(value)?).map_err(|error| {
                let text = error.to_string();
                let (reason, remedy) = text.split_once("; ").unwrap_or((&text, "write a size, such as 10G"));
                Invalid::new(reason.rsplit_once(": ").map_or(reason, |(_, reason)| reason), remedy)
            })?,
        };
        let too_small = || Invalid::new("too small", format!("write at least {:?}", format_size(MIN)));
        Size::new(bytes).ok_or_else(too_small)
    }

    fn print(&self) -> Toml {
        format_size(self.0).into()
    }

    fn schema() -> Json {
        let text = "^[0-9]+([kKmMgGtT]|[kKmMgGtT]i?B|B)?$";
        json!({ "anyOf": [{ "type": "integer", "minimum": MIN }, { "type": "string", "pattern": text }] })
    }
}

/// A time from `MIN_MS` to `MAX_MS` milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time<const MIN_MS: u64, const MAX_MS: u64>(Duration);

impl<const MIN_MS: u64, const MAX_MS: u64> Time<MIN_MS, MAX_MS> {
    /// Returns a time, or `None` if it is out of range.
    pub fn new(time: Duration) -> Option<Time<MIN_MS, MAX_MS>> {
        let range = Duration::from_millis(MIN_MS)..=Duration::from_millis(MAX_MS);
        range.contains(&time).then_some(Time(time))
    }

    /// Returns the time.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> Value for Time<MIN_MS, MAX_MS> {
    const EXAMPLE: &'static str = "\"10s\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<Self, Invalid> {
        let Some(text) = value.as_str() else {
            return Err(match value {
                Toml::Integer(number) => Invalid::new(
                    "no unit",
                    format!("write a text with a unit, such as \"{}s\"", number.value()),
                ),
                value => wrong_type::<Self>(value, "a text"),
            });
        };
        let form =
            || Invalid::new("not a time", "write a whole number with us, ms, s, m, or h, such as \"10s\"");
        let time = parse_time(text).ok_or_else(form)?;
        let range =
            || format!("write a time from {} to {}", show_time(MIN_MS * 1000), show_time(MAX_MS * 1000));
        Time::new(time).ok_or_else(|| Invalid::new("out of range", range()))
    }

    fn print(&self) -> Toml {
        show_time(u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)).into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^[0-9]+(us|ms|s|m|min|h)$" })
    }
}

/// Units of times in microseconds, the largest first.
const TIME_UNITS: [(&str, u64); 6] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1)];

fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let (_, unit) = TIME_UNITS.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    let number: u64 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    number.checked_mul(*unit).map(Duration::from_micros)
}

fn show_time(micros: u64) -> String {
    let unit = TIME_UNITS.iter().find(|(_, unit)| micros != 0 && micros.is_multiple_of(*unit));
    unit.map_or_else(|| "0s".to_owned(), |(name, unit)| format!("{}{name}", micros / unit))
}

impl Value for Cores {
    const EXAMPLE: &'static str = "\"0-3\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<Cores, Invalid> {
        text_of::<Cores>(value)?.parse().map_err(|error| {
            let text = format!("{error}");
            let (reason, remedy) = text.split_once(": ").unwrap_or((&text, "write a list as 0,1 or 0-3,8"));
            Invalid::new(reason, remedy)
        })
    }

    fn print(&self) -> Toml {
        ranges(self.as_slice()).into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" })
    }
}

/// Returns cores in their order, with ranges.
fn ranges(cores: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => ranges.push((*core, *core)),
        }
    }
    let show = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.into_iter().map(show).collect::<Vec<_>>().join(",")
}

/// One in so many sends: `1/1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneIn(pub std::num::NonZeroU32);

impl Value for OneIn {
    const EXAMPLE: &'static str = "\"1/1000\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<OneIn, Invalid> {
        let number = text_of::<OneIn>(value)?.strip_prefix("1/").and_then(|number| number.parse().ok());
        number.map(OneIn).ok_or_else(|| Invalid::new("not a fraction", "write 1/N, such as \"1/1000\""))
    }

    fn print(&self) -> Toml {
        format!("1/{}", self.0).into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^1/\\+?0*[1-9][0-9]*$" })
    }
}

/// An address to listen on, with socket options. Names of hosts are not accepted, so that a check asks no server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub Listen);

impl Value for ListenAddress {
    const EXAMPLE: &'static str = "\"10.0.0.1:4420\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<ListenAddress, Invalid> {
        let text = text_of::<ListenAddress>(value)?;
        let (address, options) = text.split_once(',').unwrap_or((text, ""));
        let port = address.strip_prefix(':').unwrap_or(address);
        let address = match port.parse::<u16>() {
            Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Err(_) => parse_address(address).map_err(not_an_address)?,
        };
        let options = options.parse().map_err(|error| {
            Invalid::new(format!("{error}"), "write options as on the command line, such as priority=5")
        })?;
        Ok(ListenAddress(Listen { address, options }))
    }

    fn print(&self) -> Toml {
        self.0.to_string().into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "minLength": 1 })
    }
}

fn not_an_address(error: String) -> Invalid {
    let (reason, remedy) = error.split_once("; ").unwrap_or((&error, "write it as 127.0.0.1:4420"));
    Invalid::new(reason, remedy)
}

/// Addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(pub Vec<SocketAddr>);

impl Value for Addresses {
    const EXAMPLE: &'static str = "[\"10.0.0.1:4420\"]";

    fn parse(value: &Toml, _: &Kinds) -> Result<Addresses, Invalid> {
        let texts = texts_of::<Addresses>(value)?;
        let addresses: Vec<SocketAddr> =
            texts.iter().map(|text| parse_address(text).map_err(not_an_address)).collect::<Result<_, _>>()?;
        match addresses.iter().find(|address| address.ip().is_unspecified()) {
            Some(address) => Err(Invalid::new(
                format!("no host can connect to {address}"),
                "name an address that hosts can reach",
            )),
            None => Ok(Addresses(addresses)),
        }
    }

    fn print(&self) -> Toml {
        list_of(self.0.iter().map(SocketAddr::to_string))
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": { "type": "string", "minLength": 1 } })
    }
}

/// Address of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics(pub SocketAddr);

impl Value for Metrics {
    const EXAMPLE: &'static str = "\"127.0.0.1:9100\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<Metrics, Invalid> {
        let parsed = text_of::<Metrics>(value)?.parse().map(Metrics);
        parsed.map_err(|_| Invalid::new("not an address", "write ADDRESS:PORT, such as 127.0.0.1:9100"))
    }

    fn print(&self) -> Toml {
        self.0.to_string().into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": ":[0-9]+$" })
    }
}

/// A path from the root, because the working directory of a service is not the one of its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsolutePath(PathBuf);

impl AbsolutePath {
    /// Returns a path from the root.
    ///
    /// # Errors
    /// Cause and remedy: it is relative, or not UTF-8.
    pub fn new(path: &Path) -> Result<AbsolutePath, String> {
        let text = path.to_str().ok_or("not UTF-8; rename it")?;
        AbsolutePath::parse_text(text).map_err(|Invalid { reason, remedy }| format!("{reason}; {remedy}"))
    }

    pub(crate) fn parse_text(text: &str) -> Result<AbsolutePath, Invalid> {
        if text.contains('\0') {
            return Err(Invalid::new("a path has no NUL", "remove it"));
        }
        let path = Path::new(text);
        path.is_absolute().then(|| AbsolutePath(path.to_owned())).ok_or_else(|| {
            Invalid::new("not an absolute path", "write the path from the root, such as \"/var/lib/isolane\"")
        })
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the path as text; paths of a file are UTF-8.
    pub(crate) fn as_text(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

impl Value for AbsolutePath {
    const EXAMPLE: &'static str = "\"/var/lib/isolane\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<AbsolutePath, Invalid> {
        AbsolutePath::parse_text(text_of::<AbsolutePath>(value)?)
    }

    fn print(&self) -> Toml {
        self.as_text().into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^/" })
    }
}

/// Place of the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSocket {
    /// No socket.
    Off,
    /// At this path.
    At(AbsolutePath),
}

impl Value for ControlSocket {
    const EXAMPLE: &'static str = "\"/run/isolane/serve.sock\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<ControlSocket, Invalid> {
        match text_of::<ControlSocket>(value)? {
            "off" => Ok(ControlSocket::Off),
            text => AbsolutePath::parse_text(text).map(ControlSocket::At),
        }
    }

    fn print(&self) -> Toml {
        match self {
            ControlSocket::Off => "off".into(),
            ControlSocket::At(path) => path.as_text().into(),
        }
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^(off$|/)" })
    }
}

/// Actions for a device that is slower than its peers, as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnSlow(String);

impl OnSlow {
    /// Returns the actions as on the command line.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the actions, or `None` if one is unknown.
    pub fn new(text: &str) -> Option<OnSlow> {
        let is_list = text.split(',').all(|action| ON_SLOW.contains(&action));
        (text == "none" || is_list).then(|| OnSlow(text.to_owned()))
    }
}

impl Value for OnSlow {
    const EXAMPLE: &'static str = "\"log,metric\"";

    fn parse(value: &Toml, _: &Kinds) -> Result<OnSlow, Invalid> {
        OnSlow::new(text_of::<OnSlow>(value)?).ok_or_else(|| {
            Invalid::new("unknown actions", "write a list of log, metric, light, and avoid, or none alone")
        })
    }

    fn print(&self) -> Toml {
        self.0.as_str().into()
    }

    fn schema() -> Json {
        let action = ON_SLOW.join("|");
        json!({ "type": "string", "pattern": format!("^(none|({action})(,({action}))*)$") })
    }
}

const ON_SLOW: [&str; 4] = ["log", "metric", "light", "avoid"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_whole_units() {
        for (text, micros) in [("10s", 10_000_000), ("1500ms", 1_500_000), ("2m", 120_000_000), ("7us", 7)] {
            assert_eq!(parse_time(text), Some(Duration::from_micros(micros)), "{text}");
            assert_eq!(show_time(micros), text);
        }
        for text in
            ["", "10", "s", "1.5s", "+1s", "10 s", "99999999999999999999s", "9999999999999999999h", "1d"]
        {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn cores_keep_their_order() {
        for text in ["0-3", "3,0-1,8", "5"] {
            assert_eq!(ranges(text.parse::<Cores>().unwrap().as_slice()), text);
        }
    }
}
