//! Macro for commands: `command!` derives encoding and decoding from the bit fields of a submission entry.
//!
//! Invariant, checked at compile time: a field is inside its dwords.

macro_rules! command {
    // A field lists the bits that hold it, lowest first.
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $opcode:expr => {
            $( $(#[$field_meta:meta])* $( $word:ident[$high:literal : $low:literal] )+ => $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        const _: () = { $( $( assert!($high >= $low && $high < u32::BITS); )+ )* };

        #[allow(unused_assignments)]
        impl $name {
            /// Encodes the command, with an empty SGL.
            #[inline]
            pub fn entry(&self) -> $crate::SubmissionEntry {
                let mut entry = $crate::SubmissionEntry::from($opcode);
                $(
                    let mut bits = isolane_layout::BitValue::into_bits(self.$field);
                    $(
                        entry.$word |= ((bits & isolane_layout::mask($high, $low)) << $low) as u32;
                        bits >>= $high - $low + 1;
                    )+
                )*
                entry
            }

            /// Decodes the command.
            #[inline]
            pub fn parse(entry: &$crate::SubmissionEntry) -> Self {
                $(
                    let (mut $field, mut len) = (0, 0);
                    $(
                        let bits = (u64::from(entry.$word) >> $low) & isolane_layout::mask($high, $low);
                        $field |= bits << len;
                        len += $high - $low + 1;
                    )+
                )*
                Self { $( $field: isolane_layout::BitValue::from_bits($field) ),* }
            }
        }
    };
}
