//! Everything that ends the client, each with its exit code.

use std::process::ExitCode;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0}")]
    Unexpected(String),
    #[error("not authorised: {0}")]
    NotAuthorised(String),
    #[error("{0}")]
    Name(String),
    #[error("server unreachable: {0}")]
    Unreachable(String),
    #[error("bad configuration: {0}")]
    Configuration(String),
    #[error("local service down: {0}")]
    TargetDown(String),
}

impl ClientError {
    /// Documented in the README; 0 is a stop by the user, 2 is clap's for usage.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Unexpected(_) => 1,
            Self::NotAuthorised(_) => 3,
            Self::Name(_) => 4,
            Self::Unreachable(_) => 5,
            Self::Configuration(_) => 6,
            Self::TargetDown(_) => 7,
        })
    }

    /// The word for it in `--output json`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unexpected(_) => "unexpected",
            Self::NotAuthorised(_) => "not_authorised",
            Self::Name(_) => "name",
            Self::Unreachable(_) => "unreachable",
            Self::Configuration(_) => "configuration",
            Self::TargetDown(_) => "target_down",
        }
    }
}
