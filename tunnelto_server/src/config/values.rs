//! Parsers of single values. Each error says what was expected.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use tunnelto_lib::name::{Hostname, Label};

use super::PublicUrl;
use crate::{limits::MAX_WORKERS, sign::MasterKeys};

pub fn host(text: &str) -> Result<Hostname, String> {
    Hostname::parse(text.trim())
        .map_err(|_| "expected a host name without scheme and port, such as example.com".into())
}

pub fn label(text: &str) -> Result<Label, String> {
    Label::parse(text.trim()).map_err(|error| error.to_string())
}

pub fn workers(text: &str) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| (1..=MAX_WORKERS).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX_WORKERS}"))
}

/// An address alone means itself.
pub fn network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let address = text.parse::<std::net::IpAddr>().map(IpNet::from);
    text.parse().or(address).map_err(|_| "expected an address or a range such as 10.0.0.0/8".into())
}

pub fn word(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected a value; unset it to get the default".into()),
        word => Ok(word.into()),
    }
}

pub fn path(text: &str) -> Result<PathBuf, String> {
    word(text).map(PathBuf::from)
}

pub fn https_url(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_url =
        text.parse::<http::Uri>().is_ok_and(|url| url.scheme_str() == Some("https") && url.host().is_some());
    if is_url { Ok(text.into()) } else { Err("expected a URL that begins with https://".into()) }
}

pub fn email(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_address = text.split_once('@').is_some_and(|(who, host)| !who.is_empty() && !host.is_empty());
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_address && is_plain {
        Ok(text.into())
    } else {
        Err("expected an address such as ann@example.com".into())
    }
}

/// Port 53 unless said otherwise.
pub fn dns_server(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    let alone = text.parse().map(|ip: std::net::IpAddr| SocketAddr::from((ip, 53)));
    text.parse().or(alone).map_err(|_| "expected an address such as 10.0.0.2:53".into())
}

/// What may hold a secret. It is parsed by [`super::Config`], since an error of the command line would print it.
#[derive(Clone)]
pub struct Hidden(pub String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[hidden]")
    }
}

pub fn hidden(text: &str) -> Result<Hidden, std::convert::Infallible> {
    Ok(Hidden(text.into()))
}

/// A number and a unit: 500ms, 10s, 2m, 1h.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)) {
        Some(total) if millis > 0 => Ok(Duration::from_millis(total)),
        _ => Err("expected a number with a unit: 500ms, 10s, 2m or 1h".into()),
    }
}

/// A number, alone or with K, M or G, which are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected a number of bytes such as 500K, 20M or 1G".into())
}

/// Whole seconds: three signs of life fall into it, one of which may be late.
pub fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    let is_fit = lease >= Duration::from_secs(3) && lease.subsec_nanos() == 0;
    is_fit.then_some(lease).ok_or_else(|| "expected whole seconds, 3s at least".into())
}

/// `NEW` or `NEW,OLD`, each 64 hexadecimal digits.
pub fn master_keys(text: &str) -> Result<MasterKeys, String> {
    const EXPECTED: &str = "expected 64 hexadecimal digits; make them with `openssl rand -hex 32`";
    let mut keys = text.trim().split(',').map(|key| hex_key(key.trim()).ok_or(EXPECTED));
    let current = keys.next().ok_or(EXPECTED)??;
    let old = keys.next().transpose()?;
    match keys.next() {
        Some(_) => Err("expected one key, or two as NEW,OLD".into()),
        None => Ok(MasterKeys::new(current, old)),
    }
}

pub fn hex_key(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; 32];
    for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(key)
}

/// Scheme and port count; the host is the tunnel's own.
pub fn public_url(text: &str) -> Result<PublicUrl, String> {
    const EXPECTED: &str = "expected a URL such as https://example.com or http://example.com:8080";
    let uri: http::Uri = text.trim().parse().map_err(|_| EXPECTED)?;
    let scheme = match uri.scheme_str() {
        Some("http") => "http",
        Some("https") => "https",
        _ => return Err(EXPECTED.into()),
    };
    let default = if scheme == "http" { 80 } else { 443 };
    Ok(PublicUrl { scheme, port: uri.port_u16().filter(|port| *port != default) })
}

/// It stands in a Location field as it is.
pub fn home_url(text: &str) -> Result<String, String> {
    let uri: http::Uri = text.trim().parse().map_err(|_| "expected a URL")?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(text.trim().into()),
        _ => Err("expected a URL that begins with http:// or https://".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "10", "s", "-1s", "1d", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [("1", 1), ("500K", 512_000), (" 20M ", 20_971_520), ("1G", 1 << 30)] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "0", "K", "-1", "1.5M", "1T", "99999999999G"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn leases_are_whole_seconds() {
        assert_eq!(lease("3s"), Ok(Duration::from_secs(3)));
        for bad in ["2s", "3500ms", "15"] {
            assert!(lease(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn workers_are_counted() {
        assert_eq!((workers("1"), workers(" 64 ")), (Ok(1), Ok(64)));
        for bad in ["", "0", "-1", "two", "1025"] {
            assert!(workers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_are_ranges_or_addresses() {
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("::1").unwrap().to_string(), "::1/128");
        assert!(network("10.0.0.0/33").is_err());
        assert!(network("").is_err());
    }

    #[test]
    fn master_keys_may_rotate() {
        let hex = "ab".repeat(32);
        assert!(master_keys(&hex).is_ok());
        assert!(master_keys(&format!("{hex},{hex}")).is_ok());
        for bad in ["", "ab", &format!("{hex},"), &format!("{hex},{hex},{hex}"), &"+1".repeat(32)] {
            assert!(master_keys(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn default_ports_are_not_printed() {
        assert_eq!(public_url("https://a.b:443").unwrap(), PublicUrl { scheme: "https", port: None });
        assert_eq!(public_url("http://a.b:81").unwrap(), PublicUrl { scheme: "http", port: Some(81) });
        assert!(public_url("a.b").is_err());
    }
}
