//! Links: addresses under which an artifact is handed out for a short time, over HTTP, to whoever has one.
//!
//! A browser so needs no right to the socket of brigd. Who may download an artifact asks for a link (`Artifacts.Link`); it
//! is signed (`token`) with a key of this daemon (`key`), and nothing is kept of it. Who follows it has no name: what it
//! allows is in it, and the gate is asked again each time (`answer`), so that an artifact which has gone is gone for all.
//!
//! The endpoint serves nothing else. It is HTTP/1.1 without TLS, at a loopback address or at a socket (`listener`), for a
//! server in front of it to encrypt. Whoever reaches it without a link can make it hash 98 bytes, and hold one of its
//! connections for ten seconds (`connection`).

mod answer;
mod connection;
mod key;
mod listener;
mod name;
mod range;
mod token;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;

use crate::config::{self, Config, Listen};
use crate::slots::Slots;
pub use key::{Key, KeyError};
pub use listener::{Listener, serve};
pub use token::{Disposition, Grant};

/// What links begin with, behind the URL of this daemon.
const PATH: &str = "/artifact/";
/// Media types that a browser shows without running anything of them.
///
/// No SVG, HTML or PDF: what is active in them was looked for when they were collected, by a program that may have missed
/// something, and an address of this daemon would be where it runs.
const SHOWN: [&str; 5] = ["image/gif", "image/jpeg", "image/png", "image/webp", "text/plain"];

/// What links are made and read with.
#[derive(Debug)]
pub struct Links {
    current: RwLock<Arc<Current>>,
    /// The URL of the place where they are served; set before the first is made.
    served_at: OnceLock<String>,
    connections: Arc<Slots>,
}

/// What a reload can replace.
#[derive(Debug)]
struct Current {
    /// None where no links are served.
    key: Option<Key>,
    key_file: PathBuf,
    config: config::Links,
}

impl Links {
    /// Reads the key, or makes it, if links are served at all. Can block: meant for start-up.
    pub fn open(config: &Config) -> Result<Self, KeyError> {
        let current = Current {
            key: read_key(config)?,
            key_file: config.link_key(),
            config: config.links.clone(),
        };
        Ok(Self {
            connections: Slots::new(config.links.connections),
            current: RwLock::new(Arc::new(current)),
            served_at: OnceLock::new(),
        })
    }

    /// Notes where they are served. Where that is a socket, the configuration has the URL.
    pub fn serve_at(&self, listener: &Listener) {
        if let Some(url) = listener.url() {
            self.served_at.get_or_init(|| url);
        }
    }

    /// Reads the key again, which was replaced or removed; what is signed with another one is worth nothing then. Can block.
    pub fn read_key_again(&self) -> Result<Option<Key>, KeyError> {
        let current = self.current();
        match current.config.listen {
            Listen::Nowhere => Ok(None),
            _ => Key::open(&current.key_file).map(Some),
        }
    }

    /// Takes another key, and other values of the configuration.
    pub fn replace(&self, key: Option<Key>, config: config::Links) {
        self.connections.resize(config.connections);
        let key_file = self.current().key_file.clone();
        let current = Current { key, key_file, config };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
    }

    /// Whether links are served.
    pub fn is_on(&self) -> bool {
        self.current().key.is_some()
    }

    /// How long a link holds that is asked for without a time, and the longest that may be asked for.
    pub fn lifetimes(&self) -> (Duration, Duration) {
        let config = &self.current().config;
        (config.lifetime.duration(), config.lifetime_max.duration())
    }

    /// Makes a link to an artifact of a tenant; none where no links are served.
    pub fn make(
        &self,
        tenant: &str,
        artifact: &Id,
        expire_time: SystemTime,
        disposition: Disposition,
    ) -> Option<String> {
        let current = self.current();
        let public = Some(&current.config.public).filter(|public| !public.is_empty());
        let url = public.or_else(|| self.served_at.get())?.trim_end_matches('/');
        let grant = Grant::new(current.key.as_ref()?, tenant, artifact, expire_time, disposition);
        Some(format!("{url}{PATH}{}", grant.sign(current.key.as_ref()?)))
    }

    /// Reads what stands in a link behind its beginning, if its signature is ours.
    fn read(&self, token: &str) -> Option<Grant> {
        Grant::read(self.current().key.as_ref()?, token)
    }

    /// Whether what a link says is about an artifact of a tenant.
    fn is_of(&self, grant: &Grant, tenant: &str) -> bool {
        let current = self.current();
        current.key.as_ref().is_some_and(|key| grant.is_of(key, tenant))
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether a browser may show files of a type, in the place of keeping them.
pub fn may_be_shown(media_type: &str) -> bool {
    SHOWN.contains(&media_type)
}

/// The types that a browser may show.
pub fn shown_types() -> String {
    SHOWN.join(", ")
}

fn read_key(config: &Config) -> Result<Option<Key>, KeyError> {
    match config.links.listen {
        Listen::Nowhere => Ok(None),
        _ => Key::open(&config.link_key()).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(directory: &std::path::Path, text: &str) -> Links {
        let config = Config {
            state: directory.to_owned(),
            links: toml::from_str(text).unwrap(),
            ..Config::default()
        };
        Links::open(&config).unwrap()
    }

    fn make(links: &Links) -> Option<String> {
        let artifact = Id::parse("a1").unwrap();
        links.make("t", &artifact, SystemTime::now(), Disposition::Attachment)
    }

    #[test]
    fn where_none_are_served_none_are_made_and_no_key_either() {
        let directory = tempfile::tempdir().unwrap();
        let links = links(directory.path(), "");
        assert!(!links.is_on() && make(&links).is_none());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_begin_as_the_configuration_says_and_end_with_their_key() {
        let directory = tempfile::tempdir().unwrap();
        let on = "listen = \"127.0.0.1:1\"\npublic = \"https://files.example.org/brig/\"";
        let links = links(directory.path(), on);
        let link = make(&links).unwrap();
        let token = link.strip_prefix("https://files.example.org/brig/artifact/").unwrap();
        assert!(
            links
                .read(token)
                .is_some_and(|grant| links.is_of(&grant, "t") && !links.is_of(&grant, "u"))
        );
        // The same key again, and then another one.
        let config = links.current().config.clone();
        links.replace(links.read_key_again().unwrap(), config.clone());
        assert!(links.read(token).is_some());
        std::fs::remove_file(directory.path().join("links.key")).unwrap();
        links.replace(links.read_key_again().unwrap(), config);
        assert!(links.read(token).is_none());
    }
}
