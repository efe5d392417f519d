//! Who may come in. Only this module makes an [`Admitted`], and only an `Admitted` can be served.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Refusal;

/// What was routed and may be served.
pub struct Admitted<R> {
    routed: R,
}

impl<R> Admitted<R> {
    pub fn routed(&self) -> &R {
        &self.routed
    }
}

/// The rules of the whole server: blocked addresses.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    blocked: Vec<IpNet>,
}

impl Chain {
    pub fn new(blocked: Vec<IpNet>) -> Self {
        Self { blocked }
    }

    pub fn admit<R>(&self, visitor: IpAddr, routed: R) -> Result<Admitted<R>, Refusal> {
        if self.is_blocked(visitor) {
            return Err(Refusal::Forbidden);
        }
        Ok(Admitted { routed })
    }

    /// Clients come through the same rule.
    pub fn is_blocked(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.blocked.iter().any(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::Chain;

    #[test]
    fn an_ipv4_address_in_ipv6_clothes_is_blocked_too() {
        let chain = Chain::new(vec!["10.0.0.0/8".parse().unwrap()]);
        assert!(chain.is_blocked("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!chain.is_blocked("11.1.2.3".parse().unwrap()));
    }
}
