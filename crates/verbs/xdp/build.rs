//! Compiles the XDP program.

fn main() {
    sluice_bpf_build::compile("bpf/steer.bpf.c", &[], &[("xdp.frags", "steer")]);
}
