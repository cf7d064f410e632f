//! Sizes and offsets, compared with `layout.txt`. `tests/ibverbs.sh` compares that with Debian's headers.

use std::mem::{offset_of, size_of};

use super::*;

macro_rules! layout {
    ($($name:ident { $($field:ident),* })*) => {
        vec![$(
            (concat!(stringify!($name), " -"), size_of::<$name>()),
            $((concat!(stringify!($name), " ", stringify!($field)), offset_of!($name, $field)),)*
        )*]
    };
}

#[test]
fn layout_is_the_one_of_the_headers() {
    let layout = layout! {
        Device { ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ContextOps { query_device, query_port, compat_memory, alloc_mw, bind_mw, dealloc_mw, compat_create_cq, poll_cq, req_notify_cq, compat_cq, compat_srq, post_srq_recv, compat_qp, post_send, post_recv, compat_ah }
        Context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        VerbsContext { query_port, advise_mr, alloc_null_mr, counters, device_memory, flow_actions, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, work_queues, query_rt_values, create_cq_ex, private, query_device_ex, destroy_flow, placeholder2, create_flow, placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, placeholder3, sz, context }
        Pd { context, handle }
        Td { context }
        Mr { context, pd, addr, length, handle, lkey, rkey }
        Ah { context, pd, handle }
        CompChannel { context, fd, refcnt }
        Cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        CqEx { base, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns }
        Srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        Qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        QpEx { base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write }
        DeviceAttr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        OdpCaps { general_caps, rc_odp_caps, uc_odp_caps, ud_odp_caps }
        RssCaps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size, rx_hash_fields_mask, rx_hash_function }
        DeviceAttrEx { orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex }
        PortAttr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        GidEntry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        AhAttr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        QpInitAttrEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags }
        QpAttr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
        SrqAttr { max_wr, max_sge, srq_limit }
        SrqInitAttr { srq_context, attr }
        SrqInitAttrEx { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        CqInitAttrEx { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ParentDomainInitAttr { pd, td, comp_mask, alloc, free, pd_context }
        TdInitAttr { comp_mask }
        PollCqAttr { comp_mask }
        Sge { addr, length, lkey }
        DataBuf { addr, length }
        SendWr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn, bind_mw_or_tso }
        RecvWr { wr_id, next, sg_list, num_sge }
        Wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        WcTmInfo { tag, private }
        AsyncEvent { element, event_type }
        CmEventChannel { fd }
        CmAddr { src_addr, dst_addr, sgid, dgid, pkey }
        CmRoute { addr, path_rec, num_paths }
        SaPathRec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference }
        CmId { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type }
        CmConnParam { private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
        CmUdParam { private_data, private_data_len, ah_attr, qp_num, qkey }
        CmEvent { id, listen_id, event, status, param }
        CmAddrInfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next }
    };
    let expected: Vec<(&str, usize)> = include_str!("layout.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut parts = line.split('|').map(str::trim);
            let (name, value) = (parts.next().unwrap(), parts.next_back().unwrap());
            (name, value.parse().unwrap())
        })
        .collect();
    assert_eq!(layout, expected);
}
