//! The visitors' side: accept, classify, HTTP/1 and HTTP/2. What a request leads to is the handler's matter,
//! which this module takes as a parameter.

pub mod announced;
pub mod brought;
pub mod classify;
pub mod crowding;
pub mod forwarded;
pub mod h1;
pub mod h2;
pub mod handler;
pub mod handover;
pub mod listener;
pub mod pages;
pub mod secure;
