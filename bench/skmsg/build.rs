//! Compiles the BPF programs.

fn main() {
    sluice_bpf_build::compile(
        "bpf/steer.bpf.c",
        &[],
        &[("sockops", "pair"), ("message", "redirect")],
    );
}
