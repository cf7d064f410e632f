//! Macros for wire structures: `layout!` derives encoding and decoding from a list of offsets,
//! `bits!` from the bit fields of one word, `codes!` from a list of code points. [`digest`] has the checksum of wire
//! formats.
//!
//! Invariant, checked at compile time: fields are inside the structure, in ascending order, without
//! overlap. Bytes and bits without a field are written as zero and ignored when read.

#![no_std]
#![forbid(unsafe_code)]

pub mod digest;

/// A value of fixed length in a structure; multi-byte integers are little endian.
pub trait Field: Sized {
    /// Length in bytes.
    const LEN: usize;

    /// Reads the value from exactly [`Self::LEN`] bytes.
    fn read(bytes: &[u8]) -> Self;

    /// Writes the value into exactly [`Self::LEN`] bytes.
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! integer_fields {
    ($($integer:ty),*) => { $(
        impl Field for $integer {
            const LEN: usize = size_of::<$integer>();

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let mut le = [0; size_of::<$integer>()];
                le.copy_from_slice(bytes);
                <$integer>::from_le_bytes(le)
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )* };
}

integer_fields!(u8, u16, u32, u64, u128);

/// An unsigned integer of 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct U24(u32);

impl U24 {
    /// The largest value.
    pub const MAX: u32 = (1 << 24) - 1;

    /// Returns the value of the low 24 bits; higher bits are dropped.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MAX)
    }

    /// Returns the value, at most [`U24::MAX`].
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Field for U24 {
    const LEN: usize = 3;

    #[inline]
    fn read(bytes: &[u8]) -> Self {
        let mut le = [0; 4];
        le[..Self::LEN].copy_from_slice(bytes);
        Self(u32::from_le_bytes(le))
    }

    #[inline]
    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_le_bytes()[..Self::LEN]);
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    const LEN: usize = T::LEN * N;

    #[inline]
    fn read(bytes: &[u8]) -> Self {
        core::array::from_fn(|index| T::read(&bytes[index * T::LEN..(index + 1) * T::LEN]))
    }

    #[inline]
    fn write(&self, bytes: &mut [u8]) {
        for (value, dst) in self.iter().zip(bytes.chunks_exact_mut(T::LEN)) {
            value.write(dst);
        }
    }
}

/// Rejects at compile time a table whose `(offset, length)` pairs overlap, are out of order, or
/// leave the structure.
pub const fn assert_layout(fields: &[(usize, usize)], len: usize) {
    let mut end = 0;
    let mut index = 0;
    while index < fields.len() {
        assert!(fields[index].0 >= end, "fields overlap or are out of order");
        end = fields[index].0 + fields[index].1;
        index += 1;
    }
    assert!(end <= len, "a field leaves the structure");
}

/// Defines a structure from a table of `OFFSET => field: Type`, with `encode` and `decode`.
///
/// ```
/// isolane_layout::layout! {
///     /// A point.
///     pub struct Point[8] {
///         /// East.
///         0 => x: u32,
///         /// North.
///         4 => y: u32,
///     }
/// }
/// assert_eq!(Point { x: 1, y: 2 }.encode(), [1, 0, 0, 0, 2, 0, 0, 0]);
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident[$len:expr] { $($fields:tt)* }) => {
        $crate::layout! { @bare $(#[$meta])* pub struct $name[$len] { $($fields)* } }

        /// All bytes zero.
        impl Default for $name {
            fn default() -> Self {
                Self::decode(&[0; $len])
            }
        }
    };
    // With the caller's `Default`, for structures whose empty value is not all zeroes.
    (
        @bare
        $(#[$meta:meta])*
        pub struct $name:ident[$len:expr] {
            $( $(#[$field_meta:meta])* $at:literal => $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        const _: () = $crate::assert_layout(
            &[$( ($at, <$ty as $crate::Field>::LEN) ),*],
            $len,
        );

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// Encodes the structure; bytes without a field are zero.
            #[inline]
            pub fn encode(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $crate::Field::write(self, &mut bytes);
                bytes
            }

            /// Decodes the structure; bytes without a field are ignored.
            #[inline]
            pub fn decode(bytes: &[u8; $len]) -> Self {
                $crate::Field::read(bytes)
            }

            /// Decodes the structure from the front of `bytes`; `None` if too short.
            #[inline]
            pub fn decode_prefix(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::decode)
            }
        }

        impl $crate::Field for $name {
            const LEN: usize = $len;

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                Self {
                    $( $field: $crate::Field::read(
                        &bytes[$at..$at + <$ty as $crate::Field>::LEN],
                    ), )*
                }
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                $( $crate::Field::write(
                    &self.$field,
                    &mut bytes[$at..$at + <$ty as $crate::Field>::LEN],
                ); )*
            }
        }
    };
}

/// A value held in some bits of a word.
pub trait BitValue: Copy {
    /// Converts from the bits, shifted down.
    fn from_bits(bits: u64) -> Self;
    /// Converts to bits, not yet shifted up.
    fn into_bits(self) -> u64;
}

impl BitValue for bool {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }

    #[inline]
    fn into_bits(self) -> u64 {
        u64::from(self)
    }
}

macro_rules! integer_bit_values {
    ($($integer:ty),*) => { $(
        impl BitValue for $integer {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                bits as $integer
            }

            #[inline]
            fn into_bits(self) -> u64 {
                self as u64
            }
        }
    )* };
}

integer_bit_values!(u8, u16, u32, u64);

/// Returns the mask of the bits `high` to `low`, shifted down to bit 0.
pub const fn mask(high: u32, low: u32) -> u64 {
    u64::MAX >> (63 - (high - low))
}

/// Defines a word of bit fields from a table of `field / with_field: Type = [HIGH:LOW]`.
#[macro_export]
macro_rules! bits {
    ($(#[$meta:meta])* pub struct $name:ident($repr:ty) { $($fields:tt)* }) => {
        $crate::bits! { @word $(#[$meta])* pub struct $name($repr) { $($fields)* } }

        impl $crate::Field for $name {
            const LEN: usize = size_of::<$repr>();

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                Self(<$repr as $crate::Field>::read(bytes))
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                $crate::Field::write(&self.0, bytes);
            }
        }

        impl $crate::BitValue for $name {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                Self(bits as $repr)
            }

            #[inline]
            fn into_bits(self) -> u64 {
                u64::from(self.0)
            }
        }
    };
    // Variant without `Field`, for a type with a custom encoding.
    (
        @word
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) {
            $( $(#[$field_meta:meta])* $field:ident / $with:ident: $ty:ty = [$high:literal : $low:literal], )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $repr);

        const _: () = { $( assert!($high >= $low && $high < <$repr>::BITS); )* };

        impl $name {
            $(
                $(#[$field_meta])*
                #[inline]
                pub fn $field(self) -> $ty {
                    let bits = (u64::from(self.0) >> $low) & $crate::mask($high, $low);
                    <$ty as $crate::BitValue>::from_bits(bits)
                }

                #[doc = concat!("This value with `", stringify!($field), "` replaced; excess bits are dropped.")]
                #[inline]
                #[must_use]
                pub fn $with(self, value: $ty) -> Self {
                    let mask = $crate::mask($high, $low);
                    let bits = (<$ty as $crate::BitValue>::into_bits(value) & mask) << $low;
                    Self(((u64::from(self.0) & !(mask << $low)) | bits) as $repr)
                }
            )*
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("raw", &format_args!("{:#x}", self.0))
                    $( .field(stringify!($field), &self.$field()) )*
                    .finish()
            }
        }
    };
}

/// Defines an enumeration of code points from a table of `Name = NUMBER, "text"`.
#[macro_export]
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $repr:ty {
            $( $(#[$code_meta:meta])* $code:ident = $value:literal, $text:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $( $(#[$code_meta])* #[doc = $text] $code = $value, )*
        }

        impl $name {
            /// All known codes, in table order.
            pub const ALL: &'static [Self] = &[$( Self::$code ),*];

            /// Returns the code with this number, if known.
            #[inline]
            pub const fn decode(code: $repr) -> Option<Self> {
                match code {
                    $( $value => Some(Self::$code), )*
                    _ => None,
                }
            }

            /// Returns the number on the wire.
            #[inline]
            pub const fn code(self) -> $repr {
                self as $repr
            }

            /// Returns the name as text.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$code => $text, )*
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    layout! {
        /// A structure with holes.
        pub struct Holed[12] {
            /// First.
            1 => first: u16,
            /// Second.
            4 => second: [u8; 3],
            /// Third.
            8 => third: u32,
        }
    }

    bits! {
        /// A word with holes.
        pub struct Word(u32) {
            /// Low.
            low / with_low: u8 = [3:0],
            /// One bit.
            flag / with_flag: bool = [9:9],
            /// High.
            high / with_high: u16 = [31:20],
        }
    }

    #[test]
    fn fields_lie_where_the_table_says() {
        let holed = Holed { first: 0x0201, second: [3, 4, 5], third: 0x0908_0706 };
        let bytes = [0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 9];
        assert_eq!(holed.encode(), bytes);
        assert_eq!(Holed::decode(&bytes), holed);
        assert_eq!(Holed::decode_prefix(&bytes[..Holed::LEN - 1]), None);
    }

    layout! {
        /// Words that share 4 bytes.
        pub struct Shared[4] {
            /// Low.
            0 => low: super::U24,
            /// High.
            3 => high: u8,
        }
    }

    #[test]
    fn three_bytes_hold_24_bits() {
        let shared = Shared { low: super::U24::new(0xff03_0201), high: 4 };
        assert_eq!((shared.low.get(), shared.encode()), (0x03_0201, [1, 2, 3, 4]));
        assert_eq!(Shared::decode_prefix(&[1, 2, 3, 4, 5]), Some(shared));
        assert_eq!(Shared::decode(&[0xff; Shared::LEN]).low.get(), super::U24::MAX);
    }

    #[test]
    fn bits_match_the_table_and_truncate_values() {
        let word = Word(0).with_low(0xfa).with_flag(true).with_high(0xfabc);
        assert_eq!(word.0, 0xabc0_020a);
        assert_eq!((word.low(), word.flag(), word.high()), (0xa, true, 0xabc));
        assert_eq!(word.with_flag(false).0, 0xabc0_000a);
    }
}
