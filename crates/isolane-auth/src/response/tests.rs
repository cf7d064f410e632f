//! Responses computed with Python's hmac module, and a HMAC of the kernel's tests.

use super::*;

/// The secret of the specification's example, with each hash of a transform.
const SECRET: &str = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n";

fn parties() -> Parties {
    Parties {
        host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-123456789abc").unwrap(),
        subsystem: Nqn::new("nqn.2014-08.org.example:disk").unwrap(),
    }
}

fn hex(digest: &Digest) -> String {
    digest.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hash, transform, whether the challenge is augmented, role, response.
#[rustfmt::skip]
const KNOWN: &[(Hash, &str, bool, Role, &str)] = &[
];

#[test]
fn computes_known_responses() {
    let parties = parties();
    for &(hash, transform, augmented, role, expected) in KNOWN {
        let key = Key::parse(&format!("DHHC-1:{transform}:{SECRET}:")).unwrap();
        let secret = augmented.then(|| SharedSecret::from_bytes((0..=255).collect()));
        let challenge: Vec<u8> = (0..hash.len_bytes()).map(|at| 0xa0 + at as u8).collect();
        let responder = Responder { hash, role, parties: &parties, secret: secret.as_ref() };
        let transaction = Transaction { id: 0x0605, sequence: 0x0403_0201 };
        let response = responder.response(&key, &Digest::new(&challenge), transaction);
        assert_eq!(hex(&response), expected, "{hash} {transform} {augmented} {role:?}");
    }
}

#[test]
fn response_depends_on_each_input() {
    let key = Key::parse(&format!("DHHC-1:01:{SECRET}:")).unwrap();
    let compute = |key: &Key, role, parties: Parties, challenge: u8, id, sequence, secret: Option<u8>| {
        let secret = secret.map(|byte| SharedSecret::from_bytes(vec![byte; 256]));
        let responder = Responder { hash: Hash::Sha256, role, parties: &parties, secret: secret.as_ref() };
        hex(&responder.response(key, &Digest::new(&[challenge; 32]), Transaction { id, sequence }))
    };
    let (host, other) = (parties(), Nqn::new("nqn.other").unwrap());
    let responses = [
        compute(&key, Role::Host, host, 1, 2, 3, None),
        compute(&key.clone().with_transform(Default::default()), Role::Host, host, 1, 2, 3, None),
        compute(&key, Role::Controller, host, 1, 2, 3, None),
        compute(&key, Role::Host, Parties { host: other, ..host }, 1, 2, 3, None),
        compute(&key, Role::Host, Parties { subsystem: other, ..host }, 1, 2, 3, None),
        compute(&key, Role::Host, host, 0, 2, 3, None),
        compute(&key, Role::Host, host, 1, 0, 3, None),
        compute(&key, Role::Host, host, 1, 2, 0, None),
        compute(&key, Role::Host, host, 1, 2, 3, Some(0)),
        compute(&key, Role::Host, host, 1, 2, 3, Some(1)),
    ];
    for (at, response) in responses.iter().enumerate() {
        assert!(!responses[..at].contains(response), "response {at} is a repetition");
    }
}

/// HMAC(Ks, C1 || C2) of the kernel's drivers/nvme/common/tests/auth_kunit.c.
#[test]
fn hmac_matches_the_kernels_generated_psk() {
    let sequence = |len: usize, value: fn(u8) -> u8| -> Vec<u8> { (0..len as u8).map(value).collect() };
    for (hash, expected) in [
        (Hash::Sha256, "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a"),
        (
            Hash::Sha384,
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e11874900\
             1ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
        ),
        (
            Hash::Sha512,
            "9c9f089a618b47d2d75f4b6c28070424487b445dd96e70c4c09b55e8b6000152\
             a3363c3454043f38f0b85036ded40655350aa87b8b6a282b5c1acae16233dd5b",
        ),
    ] {
        let len = hash.len_bytes();
        let (key, c1, c2) =
            (sequence(len, |at| b'A' + at), sequence(len, |at| at), sequence(len, |at| 0xff - at));
        assert_eq!(hex(&hmac(hash, &key, &[&c1, &c2])), expected, "{hash}");
    }
}
