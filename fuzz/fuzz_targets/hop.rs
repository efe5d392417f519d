//! See `tests::fuzzing::hop`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tests::fuzzing::hop(data));
