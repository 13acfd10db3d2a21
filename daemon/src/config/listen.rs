//! Where something is served: an address of this host, a socket, or nowhere.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where something is served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    #[default]
    Nowhere,
    /// Port 0 is one that is free.
    Address(SocketAddr),
    /// A Unix socket.
    Path(PathBuf),
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "" => Ok(Self::Nowhere),
            path if path.starts_with('/') => Ok(Self::Path(path.into())),
            address => address.parse().map(Self::Address).map_err(|_no_address| {
                format!(
                    "{text:?} is no place to listen at: an address and a port such as \"127.0.0.1:8417\", \
                     the absolute path of a socket, or nothing"
                )
            }),
        }
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => Ok(()),
            Self::Address(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_as_it_is_written_and_nothing_else_is_one() {
        for text in ["", "127.0.0.1:8417", "[::1]:0", "/run/brig/links.sock"] {
            assert_eq!(Listen::try_from(text.to_owned()).unwrap().to_string(), text);
        }
        for text in ["8417", "localhost:8417", "127.0.0.1", "links.sock", "tcp://127.0.0.1:1"] {
            let error = Listen::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains(text) && error.contains("127.0.0.1:8417"), "{error}");
        }
    }
}
