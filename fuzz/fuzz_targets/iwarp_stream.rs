#![no_main]
#![allow(unsafe_code)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz::iwarp_stream::run(data));
