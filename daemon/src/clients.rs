//! Who is connected, and as whom: a reload changes that for open connections too.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use crate::config::Client;
use crate::principal::{self, Peer, Principal};

/// The entries of the configuration, and the connections that were named by them.
#[derive(Debug)]
pub struct Clients {
    entries: RwLock<Arc<[Client]>>,
    /// As many as there are connections; those that ended are forgotten with the next one.
    named: Mutex<Vec<Weak<Named>>>,
}

/// One connection's peer, and who it is.
#[derive(Debug)]
pub struct Named {
    pub peer: Peer,
    /// `None` for a peer that the configuration does not name.
    principal: RwLock<Option<Arc<Principal>>>,
}

impl Clients {
    /// Takes the entries of a configuration.
    pub fn new(entries: Vec<Client>) -> Self {
        Self {
            entries: RwLock::new(entries.into()),
            named: Mutex::default(),
        }
    }

    /// Names a connection.
    ///
    /// Looks up users and groups of the host, which can block: not for an async task.
    pub fn name(&self, peer: Peer) -> Arc<Named> {
        let named = Arc::new(Named {
            peer,
            principal: RwLock::default(),
        });
        {
            let mut known = self.named.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|named| named.strong_count() > 0);
            known.push(Arc::downgrade(&named));
        }
        self.find(&named);
        named
    }

    /// Takes other entries, and names every open connection again. Blocks as [`Clients::name`] does.
    pub fn replace(&self, entries: Vec<Client>) {
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries.into();
        let known = self.named.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|named| self.find(&named));
    }

    /// Finds out who a peer is, again if the entries changed meanwhile.
    fn find(&self, named: &Named) {
        loop {
            let entries = self.entries();
            let found = principal::find(&entries, named.peer);
            *named.principal.write().unwrap_or_else(PoisonError::into_inner) = found;
            if Arc::ptr_eq(&entries, &self.entries()) {
                return;
            }
        }
    }

    fn entries(&self) -> Arc<[Client]> {
        Arc::clone(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Named {
    /// Who the peer is as of now.
    pub fn principal(&self) -> Option<Arc<Principal>> {
        self.principal.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Role};

    use super::*;

    #[test]
    fn an_open_connection_is_who_the_new_entries_say() {
        let clients = Clients::new(Config::default().clients);
        let root = clients.name(Peer { uid: 0, gid: 0 });
        assert_eq!(root.principal().unwrap().roles, Role::ALL);
        let mut only = Config::default().clients[0].clone();
        only.roles = [Role::Auditor].into();
        clients.replace(vec![only]);
        assert_eq!(root.principal().unwrap().roles, [Role::Auditor]);
        clients.replace(Vec::new());
        assert_eq!(root.principal(), None);
    }

    #[test]
    fn connections_that_ended_are_forgotten() {
        let clients = Clients::new(Vec::new());
        for _ in 0..100 {
            drop(clients.name(Peer { uid: 0, gid: 0 }));
        }
        assert_eq!(clients.named.lock().unwrap().len(), 1);
    }
}
