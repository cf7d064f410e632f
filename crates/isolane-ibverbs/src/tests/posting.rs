//! Requests of programs.

use super::*;

/// Posts a SEND of `length` inline bytes.
fn send_inline(end: &End, length: u32) -> c_int {
    let mut bytes = [7_u8; 256];
    let mut element = abi::Sge { addr: bytes.as_mut_ptr().expose_provenance() as u64, length, lkey: 0 };
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::SendWr = unsafe { std::mem::zeroed() };
    let (sg_list, send_flags) = (&raw mut element, abi::SEND_INLINE);
    let mut request = abi::SendWr { sg_list, num_sge: 1, opcode: abi::WR_SEND, send_flags, ..empty };
    // SAFETY: the queue pair lives, and the request is valid.
    unsafe { post_send(end.qp, &mut request, null_mut()) }
}

#[test]
fn grants_inline_data_in_the_space_of_elements() {
    for (elements, requested, granted) in [(0, 0, 16), (1, 0, 16), (4, 0, 64), (4, 100, 100)] {
        let peer = End::new();
        let end = End::with(|init| {
            (init.cap.max_send_sge, init.cap.max_inline_data) = (elements, requested);
        });
        end.connect(&peer);
        // SAFETY: all fields are numbers and pointers, and the queue pair lives.
        let reported = unsafe {
            let (mut attributes, mut init) = (abi::QpAttr::default(), std::mem::zeroed());
            assert_eq!(ibv_query_qp(end.qp, &mut attributes, 0, &mut init), 0);
            [attributes.cap.max_inline_data, init.cap.max_inline_data]
        };
        assert_eq!(reported, [granted, granted]);
        assert_eq!((send_inline(&end, granted), send_inline(&end, granted + 1)), (0, libc::EINVAL));
        finish([end, peer]);
    }
}
