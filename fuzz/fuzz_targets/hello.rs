#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memreg_fuzz::targets::hello(data));
