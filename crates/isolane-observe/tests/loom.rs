//! Every order of the steps of a writer and a reader of the ring of slow operations.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p isolane-observe --release --test loom
//! ```

#![cfg(loom)]
#![forbid(unsafe_code)]

use isolane_observe::ring::Ring;
use loom::sync::Arc;
use loom::thread;

#[test]
fn reader_never_sees_mixed_records() {
    loom::model(|| {
        let ring = Arc::new(Ring::<2>::new(1));
        let shared = Arc::clone(&ring);
        let reader = thread::spawn(move || {
            for [first, second] in shared.copy() {
                assert_eq!(first, second);
            }
        });
        (1..=2).for_each(|number| ring.publish([number; 2]));
        reader.join().expect("reader");
        assert_eq!(ring.copy(), [[2, 2]]);
    });
}
