//! Values from a fixed list.

use isolane_volumes::Kinds;
use serde_json::{Value as Json, json};

use crate::problem::{Invalid, nearest};
use crate::value::{Value, list_of, text_of, texts_of};

/// Defines a value from a list of words.
macro_rules! choice {
    ($(#[doc = $about:literal])* pub enum $name:ident, $example:literal { $($(#[doc = $doc:literal])* $variant:ident = $word:literal,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[doc = $doc])* $variant,)* }

        impl Choice for $name {
            const ALL: &'static [(&'static str, $name)] = $name::ALL;
            const EXAMPLE: &'static str = concat!("[", $example, "]");
        }

        impl $name {
            /// All values and their words.
            pub const ALL: &'static [(&'static str, $name)] = &[$(($word, $name::$variant)),*];

            /// Returns the word of the value.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl Value for $name {
            const EXAMPLE: &'static str = $example;

            fn parse(value: &toml_edit::Value, _: &Kinds) -> Result<$name, Invalid> {
                let text = text_of::<$name>(value)?;
                let found = Self::ALL.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
                found.ok_or_else(|| unknown_word(text, &[$($word),*]))
            }

            fn print(&self) -> toml_edit::Value {
                self.word().into()
            }

            fn schema() -> Json {
                json!({ "enum": [$($word),*] })
            }
        }
    };
}

/// A value from a fixed list.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];
    /// A list of one.
    const EXAMPLE: &'static str;
}

/// Values from a fixed list, each once, in an order that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices<T>(pub Vec<T>);

impl<T: Choice> Value for Choices<T> {
    const EXAMPLE: &'static str = T::EXAMPLE;

    fn parse(value: &toml_edit::Value, _: &Kinds) -> Result<Choices<T>, Invalid> {
        let mut chosen = Vec::new();
        for text in texts_of::<Choices<T>>(value)? {
            let words: Vec<&str> = T::ALL.iter().map(|(word, _)| *word).collect();
            let found = T::ALL.iter().find(|(word, _)| *word == text);
            let choice = found.ok_or_else(|| unknown_word(text, &words))?.1;
            if chosen.contains(&choice) {
                return Err(Invalid::new(format!("\"{text}\" is there twice"), "write it once"));
            }
            chosen.push(choice);
        }
        if chosen.is_empty() {
            return Err(Invalid::new("an empty list", "remove the key, or name one"));
        }
        Ok(Choices(chosen))
    }

    fn print(&self) -> toml_edit::Value {
        list_of(
            self.0
                .iter()
                .filter_map(|choice| T::ALL.iter().find(|(_, of)| of == choice))
                .map(|(word, _)| *word),
        )
    }

    fn schema() -> Json {
        let words: Vec<&str> = T::ALL.iter().map(|(word, _)| *word).collect();
        json!({ "type": "array", "items": { "enum": words }, "minItems": 1, "uniqueItems": true })
    }
}

choice! {
    /// Hash function of authentication.
    pub enum AuthHash, "\"sha512\"" {
        /// SHA-256.
        Sha256 = "sha256",
        /// SHA-384.
        Sha384 = "sha384",
        /// SHA-512.
        Sha512 = "sha512",
    }
}

choice! {
    /// Diffie-Hellman group of authentication.
    pub enum AuthGroup, "\"ffdhe3072\"" {
        /// No exchange.
        Null = "null",
        /// 2048 bits.
        Ffdhe2048 = "ffdhe2048",
        /// 3072 bits.
        Ffdhe3072 = "ffdhe3072",
        /// 4096 bits.
        Ffdhe4096 = "ffdhe4096",
        /// 6144 bits.
        Ffdhe6144 = "ffdhe6144",
        /// 8192 bits.
        Ffdhe8192 = "ffdhe8192",
    }
}

fn unknown_word(text: &str, words: &[&str]) -> Invalid {
    let remedy = nearest(text, words.iter().copied())
        .map_or_else(|| format!("write {}", words.join(", ")), |nearest| format!("write \"{nearest}\""));
    Invalid::new("unknown value", remedy)
}

choice! {
    /// Proof of identity that a host must give.
    pub enum Require, "\"auth\"" {
        /// None: the name of a host is believed.
        None = "none",
        /// The host proves that it knows its key.
        Auth = "auth",
        /// Host and target prove that they know their keys.
        AuthBoth = "auth-both",
    }
}

choice! {
    /// Reactor of a new connection.
    pub enum Placement, "\"round-robin\"" {
        /// The reactor on the core where its packets arrive, or next to it.
        IncomingCpu = "incoming-cpu",
        /// Each reactor in turn.
        RoundRobin = "round-robin",
        /// The reactor with the fewest connections.
        LeastLoaded = "least-loaded",
    }
}

choice! {
    /// Migration of connections between reactors.
    pub enum Scheduler, "\"dynamic\"" {
        /// A connection stays on its core.
        Static = "static",
        /// Connections move by load.
        Dynamic = "dynamic",
    }
}

choice! {
    /// Idle behavior of a reactor.
    pub enum Idle, "\"sleep\"" {
        /// Spin.
        Poll = "poll",
        /// Spin briefly after work, then sleep.
        Adaptive = "adaptive",
        /// Sleep immediately.
        Sleep = "sleep",
    }
}

choice! {
    /// Kernel interface for files, readiness, and sleep.
    pub enum KernelInterface, "\"epoll\"" {
        /// io_uring if available, else epoll.
        Auto = "auto",
        /// io_uring.
        Uring = "uring",
        /// epoll.
        Epoll = "epoll",
    }
}
