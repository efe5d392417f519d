//! The harness of the black-box tests: real binaries on free ports, scripted origins, raw visitors, and waiting
//! for conditions instead of sleeping.

pub mod chance;
pub mod eventually;

pub mod process;

pub mod part;

pub mod origin;
pub mod visitor;

pub mod server;

pub mod acme;
pub mod balancer;
pub mod client;
pub mod cluster;
pub mod dns;
pub mod hosts;
pub mod http2;
pub mod link;
pub mod load;
pub mod published;
pub mod store;
pub mod tls;

pub mod wormhole;

pub mod stack;

pub mod fuzzing;

#[expect(clippy::disallowed_methods, reason = "a test's environment is its configuration")]
pub fn env(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}
