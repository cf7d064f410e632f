//! Text form of socket options: `priority=5,tos=0x68,send-buffer=4M`.

use super::SocketOptions;
use std::fmt;
use std::str::FromStr;

/// A malformed list of socket options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionSyntaxError(String);

impl FromStr for SocketOptions {
    type Err = OptionSyntaxError;

    fn from_str(text: &str) -> Result<SocketOptions, OptionSyntaxError> {
        let mut options = SocketOptions::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            options
                .parse_one(name, value)
                .map_err(|reason| OptionSyntaxError(format!("`{part}`: {reason}")))?;
        }
        Ok(options)
    }
}

impl SocketOptions {
    fn parse_one(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "priority" => self.priority = Some(parse_number(value)?),
            "tos" => self.type_of_service = Some(parse_type_of_service(value)?),
            "busy-poll" => self.busy_poll_us = Some(parse_number(value)?),
            "prefer-busy-poll" => self.prefer_busy_poll = Some(parse_switch(value)?),
            "congestion" => self.congestion_control = Some(parse_algorithm(value)?),
            "receive-buffer" => self.receive_buffer_bytes = Some(parse_bytes(value)?),
            "send-buffer" => self.send_buffer_bytes = Some(parse_bytes(value)?),
            "max-unsent" => self.max_unsent_bytes = Some(parse_bytes(value)?),
            _ => return Err(format!("unknown socket option; use {NAMES}")),
        }
        Ok(())
    }
}

impl fmt::Display for SocketOptions {
    /// Writes the format that [`SocketOptions::from_str`] parses.
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
            ("max-unsent", number(self.max_unsent_bytes)),
        ];
        let given = parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

/// Parses a decimal number, or hexadecimal after `0x`; the kernel takes a signed 32-bit value.
fn parse_number(text: &str) -> Result<u32, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let fits = value.ok().filter(|value| i32::try_from(*value).is_ok());
    fits.ok_or_else(|| String::from("expected a number such as 5 or 0x68"))
}

fn parse_type_of_service(text: &str) -> Result<u8, String> {
    let value = u8::try_from(parse_number(text)?).ok().filter(|value| value & ECN == 0);
    value.ok_or_else(|| {
        String::from("expected a multiple of 4 up to 252: DSCP * 4 (the low two bits are ECN)")
    })
}

fn parse_bytes(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        _ => return Err(String::from("expected bytes such as 65536, 256k, or 4M")),
    };
    let value = digits.parse::<u32>().ok().and_then(|value| value.checked_mul(1 << shift));
    let fits = value.filter(|value| *value > 0 && i32::try_from(*value / 2).is_ok() && *value < 1 << 30);
    fits.ok_or_else(|| String::from("expected bytes below 1 GiB such as 65536, 256k, or 4M"))
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(String::from("expected on or off")),
    }
}

/// Algorithm names are shorter than 16 bytes (`TCP_CA_NAME_MAX`).
fn parse_algorithm(text: &str) -> Result<String, String> {
    let is_name = (1..16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(text.to_owned()) } else { Err(String::from("expected a name such as bbr or cubic")) }
}

const ECN: u8 = 3;
const NAMES: &str = "priority=N, tos=N, busy-poll=US, prefer-busy-poll=on|off, congestion=NAME, receive-buffer=BYTES, \
                     send-buffer=BYTES, max-unsent=BYTES";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_options_text() {
        for text in [
            "",
            "priority=5",
            "priority=6,tos=0x68,busy-poll=50,prefer-busy-poll=on,congestion=bbr,receive-buffer=65536,\
             send-buffer=4194304,max-unsent=131072",
        ] {
            assert_eq!(text.parse::<SocketOptions>().expect(text).to_string(), text);
        }
        let options: SocketOptions = "tos=104,send-buffer=4M,max-unsent=128k".parse().expect("well formed");
        assert_eq!(options.to_string(), "tos=0x68,send-buffer=4194304,max-unsent=131072");
    }

    #[test]
    fn syntax_errors_name_expected_form() {
        for (text, expected) in [
            ("speed=9", "unknown socket option"),
            ("priority", "expected a number"),
            ("priority=-1", "expected a number"),
            ("priority=4294967295", "expected a number"),
            ("tos=3", "multiple of 4"),
            ("tos=256", "multiple of 4"),
            ("send-buffer=0", "below 1 GiB"),
            ("send-buffer=4G", "expected bytes"),
            ("receive-buffer=4000M", "below 1 GiB"),
            ("prefer-busy-poll=maybe", "on or off"),
            ("congestion=", "expected a name"),
            ("congestion=a name that is too long", "expected a name"),
        ] {
            let error = text.parse::<SocketOptions>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
