//! Published keys, each error, and secrecy.

use proptest::prelude::*;

use super::*;

/// Keys of the specification and of the tests of nvme-cli and ceph-nvmeof.
const PUBLISHED: &[&str] = &[
    "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:",
    "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:",
    "DHHC-1:02:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:",
    "DHHC-1:03:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:",
    "DHHC-1:00:9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh:",
    "DHHC-1:01:9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh:",
    "DHHC-1:00:ojmm6ISA2DBpZEldEJqJvA1/cAl1wDmeolS0fCIn2qZpK0b7gpx3qu76yHpjlOOXNyjqf0oFYCWxUqkXGN2xEBOVxoA=:",
];

#[test]
fn published_keys_are_valid_and_keep_their_text() {
    for text in PUBLISHED {
        let key = Key::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(*key.to_text(), *text);
    }
    let lens = PUBLISHED.iter().map(|text| Key::parse(text).unwrap().len_bytes());
    assert_eq!(lens.collect::<Vec<_>>(), [32, 32, 32, 32, 32, 32, 64]);
}

#[test]
fn error_names_the_wrong_part() {
    let secret = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n";
    for (text, expected) in [
        (String::new(), KeyError::Form),
        (format!("DHHC-2:00:{secret}:"), KeyError::Form),
        (format!("DHHC-1:00:{secret}"), KeyError::Form),
        ("DHHC-1:00".into(), KeyError::Form),
        (format!("DHHC-1:04:{secret}:"), KeyError::Hash),
        (format!("DHHC-1:1:{secret}:"), KeyError::Hash),
        (format!("DHHC-1::{secret}:"), KeyError::Hash),
        (format!("DHHC-1:00:{}:", &secret[1..]), KeyError::Base64),
        (format!("DHHC-1:00:{secret}::"), KeyError::Base64),
        (format!("DHHC-1:00:{}:", secret.replace('G', "!")), KeyError::Base64),
        (format!("DHHC-1:00:{}:", &secret[4..]), KeyError::Length(29)),
        ("DHHC-1:00:AAA=:".into(), KeyError::Length(0)),
        ("DHHC-1:00::".into(), KeyError::Length(0)),
        // The invalid key of blktests.
        ("DHHC-1:00:Jc/My1o0qtLCWRp+sHhAVafdfaS7YQOMYhk9zSmlatobqB8C:".into(), KeyError::Crc),
        (format!("DHHC-1:00:{}:", secret.replace('G', "H")), KeyError::Crc),
        (format!("DHHC-1:00:{}:", secret.replace("aQ2n", "aQ2m")), KeyError::Crc),
    ] {
        assert_eq!(Key::parse(&text).err(), Some(expected), "{text}");
    }
}

#[test]
fn debug_and_errors_show_no_secret() {
    let text = PUBLISHED[1];
    let key = Key::parse(text).unwrap();
    assert_eq!(format!("{key:?}"), "Key { transform: Hash(Sha256), .. }");
    let damaged = text.replace("aQ2n", "aQ2m");
    let error = format!("{0} {0:?}", Key::parse(&damaged).unwrap_err());
    assert!(!error.contains("ia6z") && !error.contains("aQ2m"), "{error}");
}

#[test]
fn generated_keys_differ_and_are_valid() {
    for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
        let (one, two) = (
            Key::generate(hash, KeyTransform::Hash(hash)).unwrap(),
            Key::generate(hash, KeyTransform::None).unwrap(),
        );
        assert!(!one.is_same_secret(&two));
        let read = Key::parse(&one.to_text()).unwrap();
        assert!(read.is_same_secret(&one));
        assert_eq!((read.len_bytes(), read.transform_hash()), (hash.len_bytes(), KeyTransform::Hash(hash)));
        assert!(one.to_text().len() <= Key::MAX_TEXT);
    }
}

#[test]
fn transform_depends_on_hash_and_nqn() {
    let key = Key::parse(PUBLISHED[0]).unwrap();
    let text = |hash| key.clone().with_transform(hash).transform("nqn.host").as_bytes().to_vec();
    assert_eq!(text(KeyTransform::None), key.secret());
    assert_eq!(text(KeyTransform::Hash(Hash::Sha512)).len(), 64);
    let sha256 = key.clone().with_transform(KeyTransform::Hash(Hash::Sha256));
    assert_ne!(sha256.transform("nqn.host").as_bytes(), sha256.transform("nqn.other").as_bytes());
}

proptest! {
    #[test]
    fn no_text_panics_and_valid_text_is_reproduced(text in "(DHHC-1:)?(0[0-4]:)?[A-Za-z0-9+/=]{0,100}:?") {
        if let Ok(key) = Key::parse(&text) {
            prop_assert_eq!(&*key.to_text(), &text);
        }
    }

    #[test]
    fn each_changed_character_is_noticed(at in 10usize..58, by in 1u8..63) {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = PUBLISHED[0].as_bytes().to_vec();
        let old = ALPHABET.iter().position(|&letter| letter == text[at]).unwrap();
        text[at] = ALPHABET[(old + usize::from(by)) % 64];
        prop_assert!(Key::parse(std::str::from_utf8(&text).unwrap()).is_err());
    }
}
