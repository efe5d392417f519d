//! From a host to what serves it.

use tunnelto_lib::name::{Hostname, Label};

use crate::error::Refusal;

/// The label under which clients may connect through the visitors' door. No tunnel may have it.
pub const WORMHOLE: &str = "wormhole";

/// What a host leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Destination {
    Tunnel(Routed),
    /// The bare allowed host.
    Home,
    /// The control server.
    Wormhole,
}

/// A tunnel's name. Whether anybody serves it is the pool's question.
#[derive(Debug, PartialEq, Eq)]
pub struct Routed {
    pub name: Label,
}

#[derive(Clone, Debug)]
pub struct Table {
    allowed_hosts: Vec<Hostname>,
}

impl Table {
    pub fn new(allowed_hosts: Vec<Hostname>) -> Self {
        Self { allowed_hosts }
    }

    pub fn route(&self, host: &Hostname) -> Result<Destination, Refusal> {
        if self.allowed_hosts.contains(host) {
            return Ok(Destination::Home);
        }
        for allowed in &self.allowed_hosts {
            match host.under(allowed) {
                Some(WORMHOLE) => return Ok(Destination::Wormhole),
                // A label with dots belongs to a longer allowed host, or to nobody.
                Some(label) if !label.contains('.') => {
                    let name = Label::parse(label).map_err(|_| Refusal::InvalidHost)?;
                    return Ok(Destination::Tunnel(Routed { name }));
                }
                _ => {}
            }
        }
        Err(Refusal::InvalidHost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_lead_where_they_should() {
        let host = |text| Hostname::parse(text).unwrap();
        let table = Table::new(vec![host("example.com"), host("eu.example.com")]);
        let tunnel = |name| Ok(Destination::Tunnel(Routed { name: Label::parse(name).unwrap() }));
        assert_eq!(table.route(&host("bob.example.com")), tunnel("bob"));
        assert_eq!(table.route(&host("bob.eu.example.com")), tunnel("bob"));
        assert_eq!(table.route(&host("example.com")), Ok(Destination::Home));
        assert_eq!(table.route(&host("eu.example.com")), Ok(Destination::Home));
        assert_eq!(table.route(&host("wormhole.example.com")), Ok(Destination::Wormhole));
        assert_eq!(table.route(&host("a.b.example.com")), Err(Refusal::InvalidHost));
        assert_eq!(table.route(&host("example.org")), Err(Refusal::InvalidHost));
        assert_eq!(table.route(&host("a_b.example.com")), Err(Refusal::InvalidHost));
    }
}
