//! Values from a fixed list.

use isolane_volumes::Kinds;
use serde_json::{Value as Json, json};

use crate::problem::{Invalid, nearest};
use crate::value::{Value, text_of};

/// Defines a value from a list of words.
macro_rules! choice {
    ($(#[doc = $about:literal])* pub enum $name:ident, $example:literal { $($(#[doc = $doc:literal])* $variant:ident = $word:literal,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[doc = $doc])* $variant,)* }

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
