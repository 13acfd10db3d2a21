//! Who a client is: found out once per connection, from what the kernel says about the peer.

use std::sync::Arc;

use nix::unistd::{Gid, Group, Uid, User};
use serde::{Deserialize, Serialize};

use crate::config::{Client, Role};

/// Who asks, and what they may do. Everything a request does is done in this name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    pub tenant: String,
    pub class: String,
    /// The user that is recorded: the configuration's, else `uid N` of the host.
    pub user: String,
    pub roles: Vec<Role>,
}

/// The credentials of a peer, as the kernel took them down when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
}

impl Principal {
    /// Whether a role was given.
    pub fn may(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Who asks: the user that the request names, else the connection's.
    pub fn asking(&self, named: &str) -> String {
        if named.is_empty() { &self.user } else { named }.to_owned()
    }
}

/// Finds the first entry that fits the peer.
///
/// Looks up users and groups of the host, which can block: not for an async task.
pub fn find(clients: &[Client], peer: Peer) -> Option<Arc<Principal>> {
    find_by(clients, peer, is_member)
}

fn find_by(clients: &[Client], peer: Peer, is_member: impl Fn(Peer, &str) -> bool) -> Option<Arc<Principal>> {
    let fits = |client: &&Client| match (&client.uid, &client.group) {
        (Some(uid), _) => *uid == peer.uid,
        (None, Some(group)) => is_member(peer, group),
        (None, None) => false,
    };
    let client = clients.iter().find(fits)?;
    Some(Arc::new(Principal {
        tenant: client.tenant.clone(),
        class: client.class.clone(),
        user: if client.user.is_empty() {
            format!("uid {}", peer.uid)
        } else {
            client.user.clone()
        },
        roles: client.roles.iter().copied().collect(),
    }))
}

/// Whether the peer runs in a group, or its user is entered in it.
fn is_member(peer: Peer, group: &str) -> bool {
    let Some(group) = Group::from_name(group).ok().flatten() else {
        return false;
    };
    if Gid::from_raw(peer.gid) == group.gid {
        return true;
    }
    let user = User::from_uid(Uid::from_raw(peer.uid)).ok().flatten();
    user.is_some_and(|user| user.gid == group.gid || group.mem.contains(&user.name))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    fn shipped(peer: Peer, groups: &[&str]) -> Option<Arc<Principal>> {
        find_by(&Config::default().clients, peer, |_, group| groups.contains(&group))
    }

    #[test]
    fn root_has_every_role() {
        let root = shipped(Peer { uid: 0, gid: 0 }, &[]).unwrap();
        assert_eq!(root.roles, Role::ALL);
        assert_eq!((root.tenant.as_str(), root.user.as_str()), ("default", "uid 0"));
    }

    #[test]
    fn a_member_of_the_client_group_may_run_and_nothing_else() {
        let client = shipped(Peer { uid: 1000, gid: 1000 }, &["brig-clients"]).unwrap();
        assert_eq!(client.roles, [Role::Runner]);
        assert!(client.may(Role::Runner) && !client.may(Role::Reviewer));
    }

    #[test]
    fn the_configured_user_is_recorded_where_there_is_one() {
        let mut config = Config::default();
        config.clients[0].user = "platform".to_owned();
        let peer = Peer { uid: 0, gid: 0 };
        assert_eq!(find(&config.clients, peer).unwrap().user, "platform");
    }

    #[test]
    fn the_first_entry_that_fits_counts() {
        let both = shipped(Peer { uid: 1000, gid: 1000 }, &["brig-clients", "brig-admin"]).unwrap();
        assert_eq!(both.roles, Role::ALL);
    }

    #[test]
    fn everybody_else_is_nobody() {
        assert_eq!(shipped(Peer { uid: 1000, gid: 1000 }, &["users"]), None);
        let nobody = Peer {
            uid: 4_000_000_000,
            gid: 4_000_000_000,
        };
        assert_eq!(find(&Config::default().clients, nobody), None);
    }

    #[test]
    fn the_group_that_a_peer_runs_in_counts_as_membership() {
        assert!(is_member(
            Peer {
                uid: 4_000_000_000,
                gid: 0
            },
            "root"
        ));
        assert!(!is_member(
            Peer {
                uid: 4_000_000_000,
                gid: 4_000_000_000
            },
            "root"
        ));
    }
}
