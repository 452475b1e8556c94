#![no_main]
#![allow(unsafe_code)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz::tcp_segments::run(data));
