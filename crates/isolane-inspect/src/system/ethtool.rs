//! Settings of network cards, by the generic netlink family `ethtool`.
//!
//! A reply becomes lines of a name and a number, which a copy of a system has in a file.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use super::fields::Fields;
use super::read_error::{Malformed, ReadError, Reason};
use super::root::{Root, SMALL};

/// Settings by name.
pub type Settings = BTreeMap<String, u64>;

/// Settings that one request returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardPart {
    /// `rx` and `rx_max`: number of receive buffers.
    Rings,
    /// `combined_max` and `rx_max`: number of queues.
    Channels,
    /// `adaptive_rx`, and `rx_us`: delay of receive interrupts, in microseconds.
    Coalescing,
    /// Each feature that is on has 1, and each that can be switched on has 0.
    Features,
    /// `speed`, and `max_speed` of the hardware, in Mb/s.
    Link,
}

/// Text for a card whose driver has no such settings.
const UNSUPPORTED: &str = "unsupported\n";

impl CardPart {
    /// Returns the settings of a card, `None` if its driver has none. A copy of a system has them in a file below
    /// `/isolane/ethtool`.
    ///
    /// # Errors
    /// The path in a copy, and the reason.
    pub fn read(self, root: &Root, card: &str) -> Result<Option<Settings>, ReadError> {
        let path = self.path(card);
        let text = root.text(&path, SMALL, || Ok(query(card, self)?))?;
        decode_settings(&text).map_err(|error| ReadError { path, reason: Reason::Malformed(error) })
    }

    /// Returns the path of the settings in a copy.
    pub fn path(self, card: &str) -> String {
        let name = match self {
            CardPart::Rings => "rings",
            CardPart::Channels => "channels",
            CardPart::Coalescing => "coalescing",
            CardPart::Features => "features",
            CardPart::Link => "link",
        };
        format!("/isolane/ethtool/{card}/{name}")
    }

    /// Returns the command of linux/ethtool_netlink.h: `ETHTOOL_MSG_RINGS_GET` and so on.
    fn command(self) -> u8 {
        match self {
            CardPart::Link => 4,
            CardPart::Features => 11,
            CardPart::Rings => 15,
            CardPart::Channels => 17,
            CardPart::Coalescing => 19,
        }
    }

    /// Returns the types of attributes with a number, and their names.
    fn numbers(self) -> &'static [(u16, &'static str)] {
        match self {
            CardPart::Link => &[(5, "speed")],
            CardPart::Features => &[],
            CardPart::Rings => &[(2, "rx_max"), (6, "rx")],
            CardPart::Channels => &[(2, "rx_max"), (5, "combined_max")],
            CardPart::Coalescing => &[(2, "rx_us"), (11, "adaptive_rx")],
        }
    }
}

/// Decodes lines of a name and a number. Returns `None` for a card whose driver has no such settings.
///
/// # Errors
/// A line has no name or no number, or there is no line.
pub fn decode_settings(text: &str) -> Result<Option<Settings>, Malformed> {
    if text == UNSUPPORTED {
        return Ok(None);
    }
    let line = |(index, line)| {
        let mut fields = Fields::new(index, line);
        Ok((fields.word("a name")?.to_owned(), fields.number("a number")?))
    };
    let settings = text.lines().enumerate().map(line).collect::<Result<Settings, Malformed>>()?;
    if settings.is_empty() { Err(Malformed::at(0, "a setting")) } else { Ok(Some(settings)) }
}

/// Decodes the attributes of a reply. Unknown attributes are ignored.
pub fn decode_ethtool(part: CardPart, reply: &[u8]) -> Settings {
    let mut settings = Settings::new();
    for (kind, value) in attributes(reply) {
        match (part, kind) {
            (CardPart::Features, HARDWARE_FEATURES) => {
                for name in names_in(value, Bits::Set) {
                    settings.entry(name).or_insert(0);
                }
            }
            (CardPart::Features, ACTIVE_FEATURES) => {
                settings.extend(names_in(value, Bits::Set).map(|name| (name, 1)));
            }
            (CardPart::Link, LINK_MODES) => {
                settings.extend(
                    names_in(value, Bits::All)
                        .filter_map(|name| speed(&name))
                        .max()
                        .map(|max| ("max_speed".into(), max)),
                );
            }
            _ => {
                let known = part.numbers().iter().find(|(number, _)| *number == kind);
                // An unknown speed is the largest number.
                let number = number(value).filter(|number| *number != u64::from(u32::MAX));
                settings.extend(known.zip(number).map(|((_, name), number)| ((*name).to_owned(), number)));
            }
        }
    }
    settings
}

/// `ETHTOOL_A_FEATURES_HW`, `ETHTOOL_A_FEATURES_ACTIVE`, and `ETHTOOL_A_LINKMODES_OURS`.
const HARDWARE_FEATURES: u16 = 2;
const ACTIVE_FEATURES: u16 = 4;
const LINK_MODES: u16 = 3;

/// Returns the speed of a mode such as `10000baseT/Full`, in Mb/s.
fn speed(mode: &str) -> Option<u64> {
    mode.split_once("base")?.0.parse().ok()
}

/// Bits of a set to return.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bits {
    /// All that the set has, for example each supported mode.
    All,
    /// Those that are 1.
    Set,
}

/// Returns the names of bits in a set of bits. A set has a mask of all its bits, or only bits that are 1.
fn names_in(set: &[u8], wanted: Bits) -> impl Iterator<Item = String> {
    const NO_MASK: u16 = 1;
    const BITS: u16 = 3;
    const BIT: u16 = 1;
    const NAME: u16 = 2;
    const VALUE: u16 = 3;
    let has_all = wanted == Bits::All || attributes(set).any(|(kind, _)| kind == NO_MASK);
    let bits = attributes(set).filter(|(kind, _)| *kind == BITS).flat_map(|(_, bits)| attributes(bits));
    let is_wanted = move |bit: &[u8]| has_all || attributes(bit).any(|(kind, _)| kind == VALUE);
    let bits = bits.filter(move |(kind, bit)| *kind == BIT && is_wanted(bit));
    let names = bits.flat_map(|(_, bit)| attributes(bit)).filter(|(kind, _)| *kind == NAME);
    let names = names.map(|(_, name)| text(name));
    names.filter(|name| !name.is_empty() && name.chars().all(|letter| letter.is_ascii_graphic()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned()
}

/// Splits bytes into attributes of netlink, up to the first one that is truncated.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const TYPE: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let (len, kind) = (short(bytes, 0)?, short(bytes, 2)? & TYPE);
        let value = bytes.get(4..usize::from(len))?;
        bytes = bytes.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn number(bytes: &[u8]) -> Option<u64> {
    match bytes.len() {
        1 => Some(bytes[0].into()),
        _ => word(bytes, 0).map(u64::from),
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the settings of a card of the running system, as text.
fn query(card: &str, part: CardPart) -> Result<String, Errno> {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(GENERIC))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    let ask = |family: u16, command: u8, attribute: &[u8]| {
        sendto(
            &socket,
            &request(family, command, attribute),
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut reply = vec![0; 64 << 10];
        let (len, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
        reply.truncate(len);
        check_reply(reply)
    };
    let family = ask(CONTROL_FAMILY, GET_FAMILY, &attribute(FAMILY_NAME, b"ethtool\0"))?;
    let family = attributes(&family).find(|(kind, _)| *kind == FAMILY_ID).and_then(|(_, id)| short(id, 0));
    let header = attribute(HEADER | NESTED, &attribute(CARD_NAME, &[card.as_bytes(), b"\0"].concat()));
    let settings = match ask(family.ok_or(Errno::NOENT)?, part.command(), &header) {
        Err(Errno::OPNOTSUPP) => Settings::new(),
        reply => decode_ethtool(part, &reply?),
    };
    let text: String = settings.iter().map(|(name, number)| format!("{name} {number}\n")).collect();
    Ok(if text.is_empty() { UNSUPPORTED.to_owned() } else { text })
}

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, and `CTRL_ATTR_FAMILY_NAME` of linux/genetlink.h.
const CONTROL_FAMILY: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `ETHTOOL_A_…_HEADER`, `ETHTOOL_A_HEADER_DEV_NAME`, and `NLA_F_NESTED`.
const HEADER: u16 = 1;
const CARD_NAME: u16 = 2;
const NESTED: u16 = 0x8000;
/// Lengths of `nlmsghdr`, and of it with `genlmsghdr`.
const MESSAGE_BYTES: usize = 16;
const HEADERS_BYTES: usize = MESSAGE_BYTES + 4;

/// Returns `nlmsghdr`, `genlmsghdr`, and attributes.
fn request(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    const NLM_F_REQUEST: u16 = 1;
    let len = (HEADERS_BYTES + attributes.len()) as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend([family.to_ne_bytes(), NLM_F_REQUEST.to_ne_bytes()].concat());
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len();
    let mut bytes = [(len as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

/// Returns the attributes of a reply, or its error.
fn check_reply(reply: Vec<u8>) -> Result<Vec<u8>, Errno> {
    const NLMSG_ERROR: u16 = 2;
    let kind = short(&reply, 4).ok_or(Errno::BADMSG)?;
    if kind == NLMSG_ERROR {
        let code = word(&reply, MESSAGE_BYTES).ok_or(Errno::BADMSG)? as i32;
        return Err(Errno::from_raw_os_error(code.saturating_neg().clamp(1, 4_095)));
    }
    Ok(reply.get(HEADERS_BYTES..).ok_or(Errno::BADMSG)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, u64)]) -> Settings {
        pairs.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
    }

    /// Returns a set of which these bits are 1.
    fn set(names: &[&str]) -> Vec<u8> {
        [attribute(1, b""), masked(&[], names)].concat()
    }

    /// Returns a set with a mask.
    fn masked(ones: &[&str], zeroes: &[&str]) -> Vec<u8> {
        let name = |name: &&str| attribute(2, &[name.as_bytes(), b"\0"].concat());
        let one = |at: &&str| attribute(1 | NESTED, &[name(at), attribute(3, b"")].concat());
        let zero = |at: &&str| attribute(1 | NESTED, &name(at));
        let bits: Vec<_> = ones.iter().map(one).chain(zeroes.iter().map(zero)).collect();
        attribute(3 | NESTED, &bits.concat())
    }

    #[test]
    fn decodes_numbers_of_a_reply() {
        let header = attribute(1 | NESTED, &attribute(2, b"eth0\0"));
        let reply =
            [header, attribute(2, &4096_u32.to_ne_bytes()), attribute(6, &256_u32.to_ne_bytes())].concat();
        assert_eq!(decode_ethtool(CardPart::Rings, &reply), settings(&[("rx", 256), ("rx_max", 4096)]));
        let reply = [attribute(2, &8_u32.to_ne_bytes()), attribute(11, &[1])].concat();
        let expected = settings(&[("adaptive_rx", 1), ("rx_us", 8)]);
        assert_eq!(decode_ethtool(CardPart::Coalescing, &reply), expected);
        for len in 0..reply.len() {
            decode_ethtool(CardPart::Coalescing, &reply[..len]);
        }
    }

    #[test]
    fn decodes_features_and_speeds() {
        let reply = [
            attribute(4 | NESTED, &set(&["rx-gro", "a b", ""])),
            attribute(2 | NESTED, &masked(&["rx-gro", "tx-tcp-segmentation"], &["netns-local"])),
        ];
        let expected = settings(&[("rx-gro", 1), ("tx-tcp-segmentation", 0)]);
        assert_eq!(decode_ethtool(CardPart::Features, &reply.concat()), expected);
        let modes = masked(&["Autoneg", "10000baseT/Full"], &["25000baseCR/Full", "1000baseX/Full"]);
        let reply = [attribute(3 | NESTED, &modes), attribute(5, &10_000_u32.to_ne_bytes())].concat();
        let expected = settings(&[("max_speed", 25_000), ("speed", 10_000)]);
        assert_eq!(decode_ethtool(CardPart::Link, &reply), expected);
        assert!(decode_ethtool(CardPart::Link, &attribute(5, &u32::MAX.to_ne_bytes())).is_empty());
    }

    #[test]
    fn decodes_settings_of_a_copy() {
        assert_eq!(decode_settings("rx 1\nrx_max 2\n"), Ok(Some(settings(&[("rx", 1), ("rx_max", 2)]))));
        assert_eq!(decode_settings(UNSUPPORTED), Ok(None));
        for text in ["", "rx\n", "rx x\n", "\n"] {
            assert!(decode_settings(text).is_err(), "{text}");
        }
    }

    #[test]
    fn replies_have_attributes_or_an_error() {
        let error = [&36_u32.to_ne_bytes()[..], &[2, 0], &[0; 10], &(-95_i32).to_ne_bytes()].concat();
        assert_eq!(check_reply(error), Err(Errno::OPNOTSUPP));
        assert_eq!(check_reply(request(16, 3, b"1234")), Ok(b"1234".to_vec()));
        for len in 0..HEADERS_BYTES {
            assert!(check_reply(request(16, 3, b"")[..len].to_vec()).is_err(), "{len}");
        }
    }

    /// The loopback device has features in every kernel, but no rings.
    #[test]
    fn reads_settings_of_the_loopback_device() {
        let root = Root::system().unwrap();
        match CardPart::Features.read(&root, "lo") {
            Ok(settings) => assert!(settings.unwrap().contains_key("tx-tcp-segmentation")),
            // A sandbox without netlink, or a kernel before Linux 5.6.
            Err(error) => return eprintln!("not run: {error}"),
        }
        assert_eq!(CardPart::Rings.read(&root, "lo").unwrap(), None);
        assert_eq!(CardPart::Rings.read(&root, "no-such-card").unwrap_err().reason, Reason::Missing);
    }
}
