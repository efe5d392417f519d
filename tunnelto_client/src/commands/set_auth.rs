//! `tunnelto set-auth -k KEY`

use crate::{config::store_key, error::ClientError, ui::say};

pub fn run(key: &str) -> Result<(), ClientError> {
    let path = store_key(key)?;
    say(&format!("key kept in {}", path.display()));
    Ok(())
}
