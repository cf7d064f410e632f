//! Queries of devices and ports.

use super::*;
use crate::context::_ibv_query_gid_ex;

#[test]
fn refuses_unknown_flags_of_gid_query() {
    let end = End::new();
    let mut entry = abi::GidEntry::default();
    // SAFETY: the context lives.
    let mut query = |flags| unsafe {
        _ibv_query_gid_ex(end.context, 1, 0, &mut entry, flags, size_of::<abi::GidEntry>())
    };
    assert_eq!((query(0), query(1)), (0, libc::EINVAL));
    finish([end]);
}
