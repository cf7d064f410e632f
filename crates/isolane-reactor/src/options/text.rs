//! Socket options as text: `priority=5,tos=0x68,send-buffer=4M`.

use super::SocketOptions;
use std::fmt;
use std::str::FromStr;

/// Why a text is no list of socket options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionSyntaxError(String);

impl fmt::Display for OptionSyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionSyntaxError {}

impl FromStr for SocketOptions {
    type Err = OptionSyntaxError;

    fn from_str(text: &str) -> Result<SocketOptions, OptionSyntaxError> {
        let mut options = SocketOptions::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            options.parse_one(name, value).map_err(|why| OptionSyntaxError(format!("`{part}`: {why}")))?;
        }
        Ok(options)
    }
}

impl SocketOptions {
    fn parse_one(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "priority" => self.priority = Some(number(value)?),
            "tos" => self.type_of_service = Some(type_of_service(value)?),
            "busy-poll" => self.busy_poll_us = Some(number(value)?),
            "prefer-busy-poll" => self.prefer_busy_poll = Some(switch(value)?),
            "congestion" => self.congestion_control = Some(algorithm(value)?),
            "receive-buffer" => self.receive_buffer_bytes = Some(bytes(value)?),
            "send-buffer" => self.send_buffer_bytes = Some(bytes(value)?),
            "unsent-max" => self.unsent_bytes_max = Some(bytes(value)?),
            _ => return Err(format!("it is no socket option; there are {NAMES}")),
        }
        Ok(())
    }
}

impl fmt::Display for SocketOptions {
    /// What [`SocketOptions::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let parts = [
            ("priority", number(self.priority)),
            ("tos", self.type_of_service.map(|tos| format!("{tos:#x}"))),
            ("busy-poll", number(self.busy_poll_us)),
            ("prefer-busy-poll", self.prefer_busy_poll.map(|on| String::from(if on { "on" } else { "off" }))),
            ("congestion", self.congestion_control.clone()),
            ("receive-buffer", number(self.receive_buffer_bytes)),
            ("send-buffer", number(self.send_buffer_bytes)),
            ("unsent-max", number(self.unsent_bytes_max)),
        ];
        let given = parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

/// Decimal, or hexadecimal behind `0x`; signed 32 bits in the kernel.
fn number(text: &str) -> Result<u32, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let fits = value.ok().filter(|value| i32::try_from(*value).is_ok());
    fits.ok_or_else(|| String::from("write a number, as 5 or 0x68"))
}

fn type_of_service(text: &str) -> Result<u8, String> {
    let value = u8::try_from(number(text)?).ok().filter(|value| value & ECN == 0);
    value
        .ok_or_else(|| String::from("it is a multiple of 4 up to 252: DSCP * 4 (the two low bits are ECN's)"))
}

fn bytes(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        _ => return Err(String::from("write bytes, as 65536, 256k or 4M")),
    };
    let value = digits.parse::<u32>().ok().and_then(|value| value.checked_mul(1 << shift));
    let fits = value.filter(|value| *value > 0 && i32::try_from(*value / 2).is_ok() && *value < 1 << 30);
    fits.ok_or_else(|| String::from("write bytes below 1 GiB, as 65536, 256k or 4M"))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(String::from("write on or off")),
    }
}

/// The kernel's names are short (`TCP_CA_NAME_MAX`).
fn algorithm(text: &str) -> Result<String, String> {
    let is_name = (1..16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(text.to_owned()) } else { Err(String::from("write its name, as bbr or cubic")) }
}

const ECN: u8 = 3;
const NAMES: &str = "priority=N, tos=N, busy-poll=US, prefer-busy-poll=on|off, congestion=NAME, receive-buffer=BYTES, \
                     send-buffer=BYTES and unsent-max=BYTES";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_and_parsing_are_inverse() {
        for text in [
            "",
            "priority=5",
            "priority=6,tos=0x68,busy-poll=50,prefer-busy-poll=on,congestion=bbr,receive-buffer=65536,\
             send-buffer=4194304,unsent-max=131072",
        ] {
            assert_eq!(text.parse::<SocketOptions>().expect(text).to_string(), text);
        }
        let options: SocketOptions = "tos=104,send-buffer=4M,unsent-max=128k".parse().expect("well formed");
        assert_eq!(options.to_string(), "tos=0x68,send-buffer=4194304,unsent-max=131072");
    }

    #[test]
    fn every_mistake_says_what_to_write() {
        for (text, told) in [
            ("speed=9", "no socket option"),
            ("priority", "write a number"),
            ("priority=-1", "write a number"),
            ("priority=4294967295", "write a number"),
            ("tos=3", "multiple of 4"),
            ("tos=256", "multiple of 4"),
            ("send-buffer=0", "below 1 GiB"),
            ("send-buffer=4G", "write bytes"),
            ("receive-buffer=4000M", "below 1 GiB"),
            ("prefer-busy-poll=maybe", "on or off"),
            ("congestion=", "write its name"),
            ("congestion=a name that is too long", "write its name"),
        ] {
            let error = text.parse::<SocketOptions>().expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
