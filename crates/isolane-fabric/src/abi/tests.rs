//! Layout of the structures, compared with libfabric's headers if these are installed.

use std::fmt::Write;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use super::*;

/// Writes an assertion for each field: Rust structure, C structure, and fields (with the name in C, if that differs).
macro_rules! layout {
    ($text:ident: $($rust:ident = $c:literal { $($field:ident $(= $name:literal)?),* })*) => {
        $($({
            let name = [$($name,)? stringify!($field)][0];
            writeln!($text, "_Static_assert(offsetof(struct {}, {name}) == {}, \"{} {name}\");", $c, offset_of!($rust, $field), $c).unwrap();
        })*)*
    };
}

/// Writes an assertion for the size of each structure that does not grow.
macro_rules! sizes {
    ($text:ident: $($rust:ident = $c:literal)*) => {
        $(writeln!($text, "_Static_assert(sizeof(struct {}) == {}, \"{}\");", $c, size_of::<$rust>(), $c).unwrap();)*
    };
}

fn assertions() -> String {
    let mut text = String::new();
    for header in [
        "stddef.h",
        "rdma/fabric.h",
        "rdma/fi_cm.h",
        "rdma/fi_domain.h",
        "rdma/fi_endpoint.h",
        "rdma/fi_eq.h",
    ] {
        writeln!(text, "#include <{header}>").unwrap();
    }
    writeln!(
        text,
        "#include <rdma/fi_errno.h>\n#include <rdma/fi_rma.h>\n#include <rdma/providers/fi_prov.h>"
    )
    .unwrap();
    layout!(text:
        Fid = "fid" { class = "fclass", context, ops }
        FidOps = "fi_ops" { size, close, bind, control, ops_open }
        FidFabric = "fid_fabric" { fid, ops, api_version }
        FidDomain = "fid_domain" { fid, ops, mr }
        FidMr = "fid_mr" { fid, mem_desc, key }
        FidEq = "fid_eq" { fid, ops }
        FidCq = "fid_cq" { fid, ops }
        FidPep = "fid_pep" { fid, ops, cm }
        FidEp = "fid_ep" { fid, ops, cm, msg, rma, tagged, atomic, collective }
        FabricOps = "fi_ops_fabric" { size, domain, passive_ep, eq_open, wait_open, trywait }
        DomainOps = "fi_ops_domain" { size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx, query_atomic, query_collective }
        MrOps = "fi_ops_mr" { size, reg, regv, regattr }
        EqOps = "fi_ops_eq" { size, read, readerr, write, sread, strerror }
        FidCntr = "fid_cntr" { fid, ops }
        CntrOps = "fi_ops_cntr" { size, read, readerr, add, set, wait, adderr, seterr }
        CqOps = "fi_ops_cq" { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        EpOps = "fi_ops_ep" { size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
        CmOps = "fi_ops_cm" { size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join }
        MsgOps = "fi_ops_msg" { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        RmaOps = "fi_ops_rma" { size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata }
        TxAttr = "fi_tx_attr" { caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit, rma_iov_limit, tclass }
        RxAttr = "fi_rx_attr" { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
        EpAttr = "fi_ep_attr" { kind = "type", protocol, protocol_version, max_msg_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key }
        DomainAttr = "fi_domain_attr" { domain, name, threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key, auth_key_size, max_err_data, mr_cnt, tclass }
        FabricAttr = "fi_fabric_attr" { fabric, name, prov_name, prov_version, api_version }
        Info = "fi_info" { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic }
        Provider = "fi_provider" { version, fi_version, context, name, getinfo, fabric, cleanup }
        EqAttr = "fi_eq_attr" { size, flags, wait_obj }
        CqAttr = "fi_cq_attr" { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        EqErrEntry = "fi_eq_err_entry" { fid, context, data, err, prov_errno, err_data, err_data_size }
        EqCmEntry = "fi_eq_cm_entry" { fid, info }
        CqTaggedEntry = "fi_cq_tagged_entry" { op_context, flags, len, buf, data, tag }
        CqErrEntry = "fi_cq_err_entry" { op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size }
        MrAttr = "fi_mr_attr" { mr_iov, iov_count, access, offset, requested_key, context, iface }
        Msg = "fi_msg" { msg_iov, desc, iov_count, addr, context, data }
        MsgRma = "fi_msg_rma" { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        RmaIov = "fi_rma_iov" { addr, len, key }
    );
    sizes!(text:
        EqCmEntry = "fi_eq_cm_entry" CqTaggedEntry = "fi_cq_tagged_entry" CqErrEntry = "fi_cq_err_entry"
        EqErrEntry = "fi_eq_err_entry" Msg = "fi_msg" MsgRma = "fi_msg_rma" RmaIov = "fi_rma_iov" FidEp = "fid_ep"
        Provider = "fi_provider" Iovec = "iovec"
    );
    for (name, value) in [
        ("FI_CLASS_CONNREQ", CLASS_CONNREQ as u64),
        ("FI_CLASS_CQ", CLASS_CQ as u64),
        ("FI_CLASS_SRX_CTX", CLASS_SRX_CTX as u64),
        ("FI_REMOTE_CQ_DATA", REMOTE_CQ_DATA),
        ("FI_SELECTIVE_COMPLETION", SELECTIVE_COMPLETION),
        ("FI_DELIVERY_COMPLETE", DELIVERY_COMPLETE),
        ("FI_SOURCE", SOURCE),
        ("FI_ORDER_RMA_WAW", ORDER_RMA_WAW),
        ("FI_GETWAITOBJ", GETWAITOBJ as u64),
        ("FI_ENABLE", ENABLE as u64),
        ("FI_BACKLOG", BACKLOG as u64),
        ("FI_SHUTDOWN", u64::from(SHUTDOWN)),
        ("FI_WAIT_FD", WAIT_FD as u64),
        ("FI_CNTR_EVENTS_COMP", CNTR_EVENTS_COMP as u64),
        ("FI_CQ_FORMAT_TAGGED", CQ_FORMAT_TAGGED as u64),
        ("FI_OPT_CM_DATA_SIZE", OPT_CM_DATA_SIZE as u64),
        ("FI_ETOOSMALL", ETOOSMALL as u64),
        ("FI_ENORX", ENORX as u64),
    ] {
        writeln!(text, "_Static_assert({name} == {value}ULL, \"{name}\");").unwrap();
    }
    text
}

/// Compiles a text. Returns whether the compiler accepts it, and its messages.
fn compile(text: &str) -> Option<(bool, String)> {
    let arguments = ["-x", "c", "-w", "-fsyntax-only", "-"];
    let mut compiler =
        Command::new("cc").args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    compiler.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let output = compiler.wait_with_output().ok()?;
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn layout_is_the_one_of_the_headers() {
    let text = assertions();
    assert!(text.lines().count() > 250, "{text}");
    let has_headers = compile("#include <rdma/providers/fi_prov.h>").is_some_and(|(accepted, _)| accepted);
    if has_headers {
        let (accepted, messages) = compile(&text).unwrap();
        assert!(accepted, "{messages}");
        let (accepted, _) = compile(&text.replacen("== 8,", "== 9,", 1)).unwrap();
        assert!(!accepted, "a wrong offset is accepted");
    }
}
