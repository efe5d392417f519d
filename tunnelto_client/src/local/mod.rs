//! The local service: what the user named, how it is dialled, and the folder of files that needs no service.

pub mod dial;
mod files;
pub mod target;
pub mod tls;
