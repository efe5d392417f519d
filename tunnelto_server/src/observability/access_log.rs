//! One line per exchange at info, as fields. Text that came from outside is escaped.

use crate::exchange::Exchange;

pub fn record(exchange: &Exchange) {
    tracing::info!(
        target: "access",
        visitor = %exchange.visitor.ip(),
        name = exchange.name.as_ref().map(tracing::field::display),
        method = %exchange.method,
        target = ?String::from_utf8_lossy(&exchange.target),
        status = exchange.status,
        outcome = exchange.outcome.label(),
        ms = exchange.began.elapsed().as_secs_f64() * 1000.0,
        bytes_in = exchange.bytes_in,
        bytes_out = exchange.bytes_out,
    );
}
