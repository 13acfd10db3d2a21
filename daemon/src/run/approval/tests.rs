use super::*;

fn approval(millis: u64) -> Approval {
    Approval::within(Duration::from_millis(millis))
}

fn approved_by(reviewer: &str) -> Decision {
    Decision {
        verdict: Verdict::Approved,
        reviewer: reviewer.to_owned(),
        comment: String::new(),
    }
}

#[tokio::test]
async fn of_two_who_decide_the_first_one_counts_and_the_other_is_told() {
    let approval = approval(60_000);
    let first = approval.claim().await.unwrap();
    let second = async { approval.claim().await.unwrap_err() };
    let deciding = async { first.decide(approved_by("t/ann")) };
    let (told, decided) = tokio::join!(second, deciding);
    assert_eq!(told, decided);
    assert_eq!(approval.decision(), Some(decided));
}

#[tokio::test]
async fn who_gives_up_deciding_leaves_it_to_the_next() {
    let approval = approval(60_000);
    let first = approval.claim().await.unwrap();
    let second = async { approval.claim().await.unwrap().decide(approved_by("t/bob")) };
    let giving_up = async { drop(first) };
    let (decided, ()) = tokio::join!(second, giving_up);
    assert_eq!(decided.reviewer, "t/bob");
    assert_eq!(approval.claim().await.unwrap_err(), decided);
}

#[tokio::test]
async fn nothing_is_decided_while_somebody_only_claims_to() {
    let approval = approval(60_000);
    let claim = approval.claim().await.unwrap();
    assert_eq!(approval.decision(), None);
    tokio::select! {
        biased;
        () = approval.decided() => panic!("nobody has decided"),
        () = tokio::task::yield_now() => {}
    }
    claim.decide(approved_by("t/ann"));
    approval.decided().await;
}

#[test]
fn only_a_policy_that_says_so_asks_for_approval() {
    let text = "template = \"base\"\n[syscalls]\ngroups = [\"base\"]\n";
    let policy = |more: &str| Policy::parse("p", &format!("{text}{more}")).unwrap();
    assert!(Approval::asked_by(&policy("")).is_none());
    let before = SystemTime::now();
    let asked = "[execution]\nreview = \"required\"\nreview_timeout = \"5m\"\n";
    let approval = Approval::asked_by(&policy(asked)).unwrap();
    let within = approval.expire_time.duration_since(before).unwrap();
    assert!(
        within >= Duration::from_secs(300) && within < Duration::from_secs(330),
        "{within:?}"
    );
}
