//! What `[links]` may say.

use axum::http::Uri;

use super::{range, socket};
use crate::config::{Links, Listen};

/// The longest that a link can hold, in milliseconds: as long as signed addresses of S3.
const LINK_MAX_MS: u64 = 7 * 86_400_000;
/// The longest beginning of a link, in bytes.
const PUBLIC_MAX: usize = 1024;

impl Links {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = range("links.connections", self.connections, 10_000)
            .into_iter()
            .chain(self.listen_problem())
            .chain(public_problem(&self.public))
            .collect();
        if !(1_000..=LINK_MAX_MS).contains(&self.lifetime_max.millis()) {
            problems.push(format!("links.lifetime_max: {} is not in 1s to 7d", self.lifetime_max));
        }
        if !(1_000..=self.lifetime_max.millis()).contains(&self.lifetime.millis()) {
            problems.push(format!(
                "links.lifetime: {} is not in 1s to {}, links.lifetime_max",
                self.lifetime, self.lifetime_max
            ));
        }
        problems
    }

    fn listen_problem(&self) -> Option<String> {
        let listen = &self.listen;
        let unnamed = || {
            let problem = "links.public: is empty, and nobody can follow a link to links.listen, ";
            let mend = "; give the URL of the server in front of it";
            self.public.is_empty().then(|| format!("{problem}{listen}{mend}"))
        };
        match listen {
            Listen::Nowhere => None,
            Listen::Path(path) => socket("links.listen", path).or_else(unnamed),
            Listen::Address(address) if !address.ip().is_loopback() && !self.unsafe_any_address => Some(format!(
                "links.listen: {listen} is no loopback address, and nothing is encrypted there: listen at 127.0.0.1 \
                 behind a server that encrypts, or set links.unsafe_any_address"
            )),
            Listen::Address(address) if address.ip().is_unspecified() => unnamed(),
            Listen::Address(_) => None,
        }
    }
}

fn public_problem(url: &str) -> Option<String> {
    (!url.is_empty() && !can_begin_a_link(url)).then(|| {
        format!(
            "links.public: {url:?} is no beginning of a URL: https:// or http://, a host, and at most a port and a path, \
             such as \"https://files.example.org/brig\""
        )
    })
}

/// Whether a text is a URL that a path can be put behind.
fn can_begin_a_link(url: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#@\"<>\\".contains(&byte);
    let Ok(parsed) = url.parse::<Uri>() else { return false };
    let authority = parsed.authority().map_or("", |authority| authority.as_str());
    let names_port = authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    url.len() <= PUBLIC_MAX
        && url.bytes().all(is_plain)
        && matches!(parsed.scheme_str(), Some("http" | "https"))
        && parsed.host().is_some_and(|host| !host.is_empty())
        && names_port == parsed.port_u16().is_some()
}
