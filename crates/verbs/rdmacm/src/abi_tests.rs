//! Every structure against the distribution's headers.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use super::*;

/// Lines `name value`: our number, and the C expression that must have it.
fn facts() -> Vec<(String, usize)> {
    let mut facts = Vec::new();
    macro_rules! layout {
        ($($name:ident { $($field:ident),* })*) => {
            $(
                facts.push((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()));
                $(facts.push((
                    format!("offsetof(struct {}, {})", stringify!($name), stringify!($field)),
                    offset_of!($name, $field),
                ));)*
            )*
        };
    }
    layout! {
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr { src_storage, dst_storage, addr }
        ibv_sa_path_rec {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class,
            reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference
        }
        rdma_route { addr, path_rec, num_paths }
        rdma_event_channel { fd }
        rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type
        }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth,
            flow_control, retry_count, rnr_retry_count, srq, qp_num
        }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len,
            ai_src_addr, ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len,
            ai_route, ai_connect_len, ai_connect, ai_next
        }
        rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    }
    macro_rules! numbers {
        ($($name:ident),*) => {
            $(facts.push((stringify!($name).to_owned(), $name as usize));)*
        };
    }
    numbers!(
        RDMA_PS_IPOIB,
        RDMA_PS_TCP,
        RDMA_PS_UDP,
        RDMA_PS_IB,
        RDMA_UDP_QKEY,
        RDMA_MAX_RESP_RES,
        RDMA_MAX_INIT_DEPTH,
        RAI_PASSIVE,
        RAI_NUMERICHOST,
        RAI_NOROUTE,
        RAI_FAMILY,
        RDMA_OPTION_ID,
        RDMA_OPTION_IB,
        RDMA_OPTION_ID_TOS,
        RDMA_OPTION_ID_REUSEADDR,
        RDMA_OPTION_ID_AFONLY,
        RDMA_OPTION_ID_ACK_TIMEOUT,
        RDMA_OPTION_IB_PATH,
        RDMA_CM_JOIN_MC_ATTR_ADDRESS,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
        RDMA_MC_JOIN_FLAG_FULLMEMBER,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
    );
    let kinds = crate::channel::EventKind::ALL;
    for (kind, name, _) in kinds {
        facts.push(((*name).to_owned(), *kind as usize));
    }
    facts
}

#[test]
fn structures_and_numbers_are_those_of_the_headers() {
    if !std::path::Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        println!("SKIP rdmacm_layout: needs rdma/rdma_cma.h (librdmacm-dev)");
        return;
    }
    let facts = facts();
    let mut source = String::from(
        "#include <rdma/rdma_cma.h>\n#include <rdma/rsocket.h>\n#include <stddef.h>\n",
    );
    for (expression, value) in &facts {
        writeln!(
            source,
            "_Static_assert({expression} == {value}, \"{expression}\");"
        )
        .unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("layout.c");
    std::fs::write(&path, source).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only"])
        .arg(&path)
        .output()
        .expect("cc runs");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}
