//! What a call asks for, checked: which entries, and whether the caller may see them.

use std::time::SystemTime;

use brig_proto::v1;
use brig_proto::v1::{LedgerEntryKind, Reason};
use prost_types::Timestamp;

use crate::config::Role;
use crate::ledger::{Filter, Hash, Range, to_millis};
use crate::principal::Principal;
use crate::run::fields::Fields;
use crate::status::{FieldProblem, Problem};

/// Kinds as the API has them, and as the entries have them.
const KINDS: &[(LedgerEntryKind, &str)] = &[
    (LedgerEntryKind::Accepted, "accept"),
    (LedgerEntryKind::Finished, "finish"),
    (LedgerEntryKind::Refused, "refused"),
    (LedgerEntryKind::Reviewed, "reviewed"),
    (LedgerEntryKind::SessionCreated, "open"),
    (LedgerEntryKind::SessionClosed, "close"),
    (LedgerEntryKind::Downloaded, "downloaded"),
    (LedgerEntryKind::Erased, "erased"),
    (LedgerEntryKind::Installed, "installed"),
];
/// The longest name of a tenant or user that is looked for, in bytes.
const NAME_MAX: usize = 256;

/// The filters that List, Follow, Export and Erase have in common.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked<'a> {
    pub(super) tenant: &'a str,
    pub(super) user: &'a str,
    pub(super) execution: &'a str,
    pub(super) session: &'a str,
    pub(super) kinds: &'a [i32],
    pub(super) from: Option<&'a Timestamp>,
    pub(super) to: Option<&'a Timestamp>,
    pub(super) all_tenants: bool,
}

macro_rules! asked {
    ($($request:ident),+) => {$(
        impl<'a> From<&'a v1::$request> for Asked<'a> {
            fn from(request: &'a v1::$request) -> Self {
                Self {
                    tenant: &request.tenant,
                    user: &request.user,
                    execution: &request.execution_id,
                    session: &request.session_id,
                    kinds: &request.kinds,
                    from: request.time_from.as_ref(),
                    to: request.time_to.as_ref(),
                    all_tenants: request.all_tenants,
                }
            }
        }
    )+};
}

asked!(LedgerListRequest, LedgerFollowRequest, LedgerExportRequest);

impl<'a> From<&'a v1::LedgerEraseRequest> for Asked<'a> {
    fn from(request: &'a v1::LedgerEraseRequest) -> Self {
        Self {
            tenant: &request.tenant,
            user: &request.user,
            execution: &request.execution_id,
            to: request.time_to.as_ref(),
            ..Self::default()
        }
    }
}

/// Reads filters. Every caller but an operator gets their own tenant's entries, or nothing.
pub(super) fn read(asked: Asked<'_>, principal: &Principal) -> Result<Filter, Problem> {
    let other = !asked.tenant.is_empty() && asked.tenant != principal.tenant;
    if (other || asked.all_tenants) && !principal.may(Role::Operator) {
        return Err(Problem::Role(Role::Operator));
    }
    let mut fields = Fields::default();
    if asked.all_tenants && !asked.tenant.is_empty() {
        let message = "is set beside all_tenants; leave one of them out";
        fields.wrong("tenant", Reason::NotApplicable, message);
    }
    let tenant = match asked.tenant {
        _ if asked.all_tenants => None,
        "" => Some(principal.tenant.clone()),
        name => Some(name.to_owned()),
    };
    for (field, name) in [("tenant", asked.tenant), ("user", asked.user)] {
        if name.len() > NAME_MAX {
            fields.wrong(field, Reason::TooLarge, format!("has more than {NAME_MAX} bytes"));
        }
    }
    let id = |id: Option<brig_jailer::ids::Id>| id.map(String::from);
    let filter = Filter {
        tenant,
        user: (!asked.user.is_empty()).then(|| asked.user.to_owned()),
        execution: id(fields.id("execution_id", asked.execution)),
        session: id(fields.id("session_id", asked.session)),
        kinds: fields.keep(kinds(asked.kinds)).unwrap_or_default(),
        from_ms: fields.keep_some(time("time_from", asked.from)),
        to_ms: fields.keep_some(time("time_to", asked.to)),
    };
    fields.done()?;
    Ok(filter)
}

/// Reads the token of a page: the number of the last entry of the one before.
pub(super) fn page_start(token: &str) -> Result<i64, Problem> {
    match (token, token.parse()) {
        ("", _) => Ok(i64::MAX),
        (_, Ok(number @ 1..)) => Ok(number),
        _ => Err(invalid("page_token", "is of no page; begin again without it")),
    }
}

/// Reads a number of an entry.
pub(super) fn sequence(field: &str, number: u64) -> Result<i64, Problem> {
    i64::try_from(number).map_err(|_large| invalid(field, "is no number of an entry: they end below 2^63"))
}

/// Reads what is to be verified.
pub(super) fn range(asked: &v1::LedgerVerifyRequest) -> Result<Range, Problem> {
    let first = sequence("first_sequence", asked.first_sequence)?.max(1);
    let last = Some(sequence("last_sequence", asked.last_sequence)?).filter(|last| *last > 0);
    if last.is_some_and(|last| last < first) {
        return Err(invalid("last_sequence", "comes before first_sequence"));
    }
    let expected = match asked.expected_hash.as_str() {
        "" => None,
        text => Some(hash(text).ok_or_else(|| {
            invalid(
                "expected_hash",
                "is no SHA-256: 64 lower-case hexadecimal digits are accepted",
            )
        })?),
    };
    Ok(Range { first, last, expected })
}

/// The kind of an entry in the API.
pub(super) fn kind(name: &str) -> LedgerEntryKind {
    let found = KINDS.iter().find(|(_, entry)| *entry == name);
    found.map_or(LedgerEntryKind::Unspecified, |(kind, _)| *kind)
}

fn kinds(asked: &[i32]) -> Result<Vec<&'static str>, FieldProblem> {
    let name = |number: &i32| {
        let found = KINDS.iter().find(|(kind, _)| i32::from(*kind) == *number);
        found.map(|(_, name)| *name).ok_or_else(|| FieldProblem {
            field: "kinds".to_owned(),
            message: format!("{number} is no kind of entry"),
            reason: Reason::InvalidValue,
        })
    };
    let mut names = asked
        .iter()
        .take(KINDS.len() + 1)
        .map(name)
        .collect::<Result<Vec<_>, _>>()?;
    names.dedup();
    Ok(names)
}

fn time(field: &str, time: Option<&Timestamp>) -> Result<Option<i64>, FieldProblem> {
    let read = |time: &Timestamp| {
        let time = SystemTime::try_from(*time).map_err(|_outside| FieldProblem {
            field: field.to_owned(),
            message: "is no time that can be compared".to_owned(),
            reason: Reason::InvalidValue,
        })?;
        Ok(to_millis(time))
    };
    time.map(read).transpose()
}

fn hash(text: &str) -> Option<Hash> {
    let digits = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    if text.len() != 64 || !digits(text) {
        return None;
    }
    let mut hash = Hash::default();
    for (place, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(hash)
}

fn invalid(field: &str, message: &str) -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: field.to_owned(),
        message: message.to_owned(),
        reason: Reason::InvalidValue,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(roles: &[Role]) -> Principal {
        Principal {
            tenant: "blue".to_owned(),
            class: "default".to_owned(),
            user: String::new(),
            roles: roles.to_vec(),
        }
    }

    #[test]
    fn an_auditor_sees_the_own_tenant_and_no_other() {
        let auditor = principal(&[Role::Auditor]);
        let own = read(Asked::default(), &auditor).unwrap();
        assert_eq!(own.tenant.as_deref(), Some("blue"));
        let red = Asked {
            tenant: "red",
            ..Asked::default()
        };
        let all = Asked {
            all_tenants: true,
            ..Asked::default()
        };
        for asked in [red, all] {
            assert!(matches!(read(asked, &auditor), Err(Problem::Role(Role::Operator))));
        }
        let operator = principal(&[Role::Operator]);
        assert_eq!(read(red, &operator).unwrap().tenant.as_deref(), Some("red"));
        assert_eq!(read(all, &operator).unwrap().tenant, None);
    }

    #[test]
    fn each_kind_of_the_api_has_a_name() {
        let known = (1..).map_while(|number| LedgerEntryKind::try_from(number).ok());
        assert_eq!(
            known.collect::<Vec<_>>(),
            KINDS.iter().map(|(kind, _)| *kind).collect::<Vec<_>>()
        );
    }

    #[test]
    fn wrong_filters_are_named() {
        let asked = Asked {
            execution: "No",
            session: "-",
            kinds: &[99],
            ..Asked::default()
        };
        let Err(Problem::Fields(problems)) = read(asked, &principal(&[])) else {
            panic!("accepted")
        };
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["execution_id", "session_id", "kinds"]);
    }

    #[test]
    fn a_hash_is_64_lower_case_digits() {
        assert_eq!(hash(&"0f".repeat(32)), Some([15; 32]));
        for wrong in ["", "0f", &"0F".repeat(32), &"é".repeat(32), &"+f".repeat(32)] {
            assert_eq!(hash(wrong), None, "{wrong}");
        }
    }
}
