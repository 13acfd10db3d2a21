//! Decisions about executions: between their beginning and their end, and nowhere else.

use super::*;

fn reviewed(execution: &str) -> Reviewed {
    Reviewed {
        execution: id(execution),
        request: Some("decide".to_owned()),
        reviewer_tenant: "default".to_owned(),
        user: "rita".to_owned(),
        review: "rejected".to_owned(),
        work_sha256: "ab".repeat(32),
        message: "it reads too much".to_owned(),
        time: UNIX_EPOCH + Duration::from_millis(1_700_000_001_000),
    }
}

async fn found(ledger: &Ledger, filter: Filter) -> Vec<Found> {
    let most = Most {
        entries: 10,
        bytes: 1 << 20,
    };
    ledger.batch(filter, Start::After(0), most).await.unwrap().entries
}

#[tokio::test]
async fn a_decision_comes_back_with_who_decided_and_who_had_asked() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e1")).await.unwrap();
    ledger.reviewed(reviewed("e1")).await.unwrap();
    ledger.finish(finish("e1")).await.unwrap();
    for user in ["rita", "ann"] {
        let of_user = Filter {
            user: Some(user.to_owned()),
            kinds: vec!["reviewed"],
            ..Filter::default()
        };
        let entries = found(&ledger, of_user).await;
        let [
            Found {
                content: Content::Reviewed(entry, asked),
                session,
                tenant,
                ..
            },
        ] = &entries[..]
        else {
            panic!("{entries:?}")
        };
        assert_eq!(**entry, reviewed("e1"));
        assert_eq!(
            (asked.user.as_str(), session.as_deref(), tenant.as_str()),
            ("ann", Some("s1"), "default")
        );
    }
    let whole = Range {
        first: 1,
        last: None,
        expected: None,
    };
    let verdict = ledger.verify(whole).await.unwrap();
    assert_eq!((verdict.entries, verdict.broken), (3, None));
}

#[tokio::test]
async fn nothing_is_decided_about_what_has_not_begun_or_has_ended() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let refused = ledger.reviewed(reviewed("e1")).await.unwrap_err();
    assert!(matches!(refused, LedgerError::NotRunning(_)), "{refused}");
    ledger.accept(accept("e1")).await.unwrap();
    ledger.finish(finish("e1")).await.unwrap();
    let refused = ledger.reviewed(reviewed("e1")).await.unwrap_err();
    assert!(matches!(refused, LedgerError::NotRunning(_)), "{refused}");
    assert_eq!(found(&ledger, Filter::default()).await.len(), 2);
}
