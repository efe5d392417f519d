//! What the product promises, one module a promise, with the real binaries.

mod acme;
mod answers;
mod apart;
mod auth;
mod behind_nginx;
mod cases;
mod claims;
mod client_cli;
mod discovery;
mod http;
mod http2;
mod index;
mod instances;
mod local_endings;
mod memory;
mod names;
mod packaging;
mod protocol_1;
mod protocol_2;
mod published;
mod rolling;
mod shards;
mod stopping;
mod tls;
mod tls_files;
mod upgrade;
