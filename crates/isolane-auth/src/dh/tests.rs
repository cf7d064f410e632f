//! Known values, computed with OpenSSL 3 and Python, and values that a peer must not send.

use proptest::prelude::*;

use super::*;
use crate::digest::hash;
use crate::nonces::Nonces;
use isolane_wire::auth::Hash;

fn exponent(group: DhGroup, seed: u8) -> Exponent {
    Exponent::new(group, Nonces::from_seed(seed).exponent()).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    let value = hash(Hash::Sha256, bytes);
    value.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of the modulus, of the public value of seed 1, and of the secret of seeds 1 and 2.
const KNOWN: [(DhGroup, [&str; 3]); 5] = [
    (
        DhGroup::Ffdhe2048,
        [
            "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
            "eafb09f4b0e465e027bff760469be3a414d046d8592c6974b4903731dfd4e939",
            "d06686234bdd22289ecd7a57bc72ae0ab5d322dd07c79a57fb9fd1758869c286",
        ],
    ),
    (
        DhGroup::Ffdhe3072,
        [
            "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
            "e7296ae4bdddd8d18b6fe3ba5874643caf99c4497539dc6be7b185e5136a724f",
            "e816e0bb3f01c4f1c77f53ddf3d4900f17824953442446f690f5748cb636d1c8",
        ],
    ),
    (
        DhGroup::Ffdhe4096,
        [
            "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
            "f0c69d4e85169879b830600a13eeafaaf920dfaaa9cebd55eb7adfafa9e4e6dd",
            "2cb0c21352282d9cf8e8253ce2bc8b124ebc5c3bd27543714b08757a3405683a",
        ],
    ),
    (
        DhGroup::Ffdhe6144,
        [
            "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
            "c0a7511e7c265a2897c1591c84dbf79bc5c5b8e1536afa2d27b38a6b55d25440",
            "4932630a165c7a351dddf5f54562d43f0ab52ad7eeeb80c8c73eca5d3ee76a5d",
        ],
    ),
    (
        DhGroup::Ffdhe8192,
        [
            "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
            "01c8d8b790f259547d8ea3bcafa2f8a6d0e2d1941d4b3db34a12c3bb71583252",
            "f351208b8cc8b61a429b376ef02d372bdba1cbd546c61418ccf1b001065b6eb5",
        ],
    ),
];

#[test]
fn computes_known_values_of_each_group() {
    for (group, [modulus, public, secret]) in KNOWN {
        assert_eq!(sha256(&field(group).unwrap().modulus.modulus().to_be_bytes()), modulus, "{group}");
        let (one, two) = (exponent(group, 1), exponent(group, 2));
        assert_eq!(sha256(&one.public_value()), public, "{group}");
        let ours = one.shared_secret(&two.public_value()).unwrap();
        let theirs = two.shared_secret(&one.public_value()).unwrap();
        assert_eq!(sha256(ours.as_bytes()), secret, "{group}");
        assert_eq!(ours.as_bytes(), theirs.as_bytes());
    }
}

/// Peers hash the leading zeroes of the secret as well.
#[test]
fn secret_keeps_its_leading_zeroes() {
    let (one, two) = (exponent(DhGroup::Ffdhe2048, 3), exponent(DhGroup::Ffdhe2048, 243));
    let secret = one.shared_secret(&two.public_value()).unwrap();
    assert_eq!((secret.as_bytes().len(), secret.as_bytes()[0]), (256, 0));
    assert_eq!(sha256(secret.as_bytes()), "79a0ea4588c1b3bcd5970e92be9c86c60946651085b8ed55170a095f671a6cc2");
}

#[test]
fn rejects_values_that_lead_to_known_secrets() {
    for (group, _) in KNOWN {
        let modulus = field(group).unwrap().modulus.modulus().to_be_bytes();
        let len = modulus.len();
        let shifted = |change: i8| {
            let mut value = modulus.to_vec();
            value[len - 1] = value[len - 1].wrapping_add_signed(change);
            value
        };
        let small = |last: u8| {
            let mut value = vec![0; len];
            value[len - 1] = last;
            value
        };
        let exponent = exponent(group, 7);
        let (zero, one, minus_one, p) = (small(0), small(1), shifted(-1), shifted(0));
        let (all_ones, too_long) = (vec![0xff; len], [vec![1], small(2)].concat());
        for bad in [zero, one, minus_one, p, all_ones, too_long, Vec::new()] {
            assert_eq!(exponent.shared_secret(&bad).err(), Some(UnusableDhValue(group)), "{group}: {bad:x?}");
        }
        assert!(exponent.shared_secret(&shifted(-2)).is_ok());
        assert!(exponent.shared_secret(&[2]).is_ok(), "a value without its leading zeroes");
    }
    assert!(Exponent::new(DhGroup::Null, &[1; Exponent::BYTES]).is_none());
}

#[test]
fn exponents_have_the_length_of_their_group() {
    for (group, _) in KNOWN {
        let bits = field(group).unwrap().exponent_bits;
        for random in [[0; Exponent::BYTES], [0xff; Exponent::BYTES]] {
            let exponent = Exponent::new(group, &random).unwrap();
            let value = BoxedUint::from_be_slice(&exponent.bytes, 400).unwrap();
            assert_eq!(value.bit_width(), bits, "{group}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn both_sides_compute_the_same_secret(one: [u8; 25], two: [u8; 25]) {
        let bytes = |half: [u8; 25]| -> [u8; Exponent::BYTES] { std::array::from_fn(|at| half[at % 25]) };
        let one = Exponent::new(DhGroup::Ffdhe2048, &bytes(one)).unwrap();
        let two = Exponent::new(DhGroup::Ffdhe2048, &bytes(two)).unwrap();
        let ours = one.shared_secret(&two.public_value()).unwrap();
        let theirs = two.shared_secret(&one.public_value()).unwrap();
        prop_assert_eq!(ours.as_bytes(), theirs.as_bytes());
    }
}
