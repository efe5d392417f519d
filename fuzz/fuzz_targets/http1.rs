//! See `tests::fuzzing::http1`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tests::fuzzing::http1(data));
