//! One line per exchange at info, as fields. Text that came from outside is escaped.

use std::{net::IpAddr, time::Duration};

use tunnelto_lib::name::Label;

/// What a line says.
pub struct Line<'a> {
    pub visitor: IpAddr,
    pub name: Option<&'a Label>,
    pub method: &'a str,
    pub target: &'a [u8],
    pub status: Option<u16>,
    pub outcome: &'static str,
    pub took: Duration,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

pub fn record(line: &Line<'_>) {
    tracing::info!(
        target: "access",
        visitor = %line.visitor,
        name = line.name.map(tracing::field::display),
        method = line.method,
        target = ?String::from_utf8_lossy(line.target),
        status = line.status,
        outcome = line.outcome,
        ms = line.took.as_millis() as u64,
        bytes_in = line.bytes_in,
        bytes_out = line.bytes_out,
    );
}
