//! Compiles the BPF programs.

fn main() {
    sluice_bpf_build::compile(
        "bpf/finder.bpf.c",
        &["bpf/common.h", "bpf/siphash.h"],
        &[("sockops", "find_peer"), ("iterator", "enroll")],
    );
    sluice_bpf_build::compile(
        "bpf/capture.bpf.c",
        &["bpf/common.h"],
        &[
            ("connect4", "connect_v4"),
            ("connect6", "connect_v6"),
            ("blind4", "blind_v4"),
            ("blind6", "blind_v6"),
            ("classifier", "look"),
            ("peer4", "peer_v4"),
            ("peer6", "peer_v6"),
            ("name4", "name_v4"),
            ("name6", "name_v6"),
            ("release", "released"),
            ("sockops", "follow"),
        ],
    );
}
