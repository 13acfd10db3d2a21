//! Many executions in many contexts at one time.

use brig_tests::daemon;
use brig_tests::spec::code;

use super::{Kept, MINE};

#[test]
fn contexts_at_work_at_one_time_each_keep_their_own_count() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let names = ["a", "b", "c", "d"];
    for name in names {
        kept.context(name, "python");
        kept.begin(name, code("n = 0")).finish().expect_success();
    }
    let daemon = &daemon;
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(move || {
                for count in 1..=25 {
                    let source = format!("n += 1\nprint({name:?}, n, 'x' * 1000)");
                    let live = daemon.execute_in(MINE, name, code(&source)).unwrap();
                    let stdout = live.finish().expect_success().stdout();
                    assert_eq!(stdout, format!("{name} {count} {}\n", "x".repeat(1000)));
                }
            });
        }
    });
}
