use brig_jailer::api::Usage;

use super::*;

const LIMITS: Limits = Limits {
    timeout_ms: 30_000,
    timeout_max_ms: 300_000,
    memory_bytes: 512 << 20,
    memory_max_bytes: 512 << 20,
    pids: 128,
    disk_bytes: 512 << 20,
    workspace: Workspace::Tmpfs,
    inodes: 50_000,
    output_bytes: 8 << 20,
    max_age_ms: 3_600_000,
    cpu_ms: Some(2_000),
};

fn end(exit: Exit, cause: Option<JailCause>) -> End {
    End {
        exit,
        cause,
        usage: Usage::default(),
        oom_kills: 0,
        pids_refused: 0,
    }
}

fn facts(ended: Ended) -> Facts<'static> {
    Facts {
        ended,
        stop: None,
        interrupted: false,
        signals: 0,
        claim: None,
        output_dropped: false,
        disk_full: None,
        duration_ms: 30_012,
        limits: LIMITS,
        around: Around::default(),
    }
}

fn told(exit: Exit, cause: Option<JailCause>) -> Facts<'static> {
    facts(Ended::Told(end(exit, cause)))
}

fn claim(name: &str, message: &str) -> ErrorClaim {
    ErrorClaim {
        name: name.to_owned(),
        message: message.to_owned(),
        line: None,
        traceback: String::new(),
    }
}

/// Status and cause in short.
fn short(facts: &Facts<'_>) -> (Status, Option<CauseKind>) {
    let conclusion = conclude(facts);
    (conclusion.status, conclusion.cause.map(|cause| cause.kind))
}

#[test]
fn exit_codes_are_success_or_error() {
    let success = conclude(&told(Exit::Code(0), None));
    assert_eq!(
        (success.status, success.exit_code, success.signal),
        (Status::Success, Some(0), None)
    );
    let error = conclude(&told(Exit::Code(3), None));
    assert_eq!(
        (error.status, error.exit_code, error.cause),
        (Status::Error, Some(3), None)
    );
}

#[test]
fn a_timeout_names_its_limit_and_what_was_used() {
    let timeout = conclude(&told(Exit::Signal(9), Some(JailCause::WallTime)));
    assert_eq!(timeout.status, Status::Timeout);
    let cause = timeout.cause.unwrap();
    assert_eq!(
        (cause.kind, cause.limit, cause.used),
        (CauseKind::WallTime, Some(30_000), Some(30_012))
    );
    assert_eq!(timeout.limits_hit, [CauseKind::WallTime]);
    let hint = "The code ran longer than 30 s: make it faster or let it do less, or ask for more time (at most 300 s).";
    assert_eq!(timeout.hint.as_deref(), Some(hint));
}

#[test]
fn who_ran_into_the_timeout_used_no_less_than_it() {
    // brigd was told of the start later than it was.
    let told_late = Facts {
        duration_ms: 29_960,
        ..told(Exit::Signal(9), Some(JailCause::WallTime))
    };
    let cause = conclude(&told_late).cause.unwrap();
    assert_eq!((cause.limit, cause.used), (Some(30_000), Some(30_000)));
}

#[test]
fn a_kill_for_memory_is_told_from_every_other_kill_nine() {
    assert_eq!(
        short(&told(Exit::Signal(9), None)),
        (Status::Killed, Some(CauseKind::Signal))
    );
    let asked = Some(CauseKind::Memory);
    assert_eq!(
        short(&told(Exit::Signal(9), Some(JailCause::Memory))),
        (Status::OutOfMemory, asked)
    );
    let unseen = End {
        oom_kills: 1,
        ..end(Exit::Signal(9), None)
    };
    assert_eq!(short(&facts(Ended::Told(unseen))), (Status::OutOfMemory, asked));
}

#[test]
fn a_child_killed_for_memory_is_a_limit_hit_whatever_the_status() {
    let survived = End {
        oom_kills: 1,
        ..end(Exit::Code(0), None)
    };
    let conclusion = conclude(&facts(Ended::Told(survived)));
    assert_eq!(
        (conclusion.status, conclusion.limits_hit),
        (Status::Success, vec![CauseKind::Memory])
    );
}

#[test]
fn a_forbidden_system_call_is_named() {
    assert_eq!(
        short(&told(Exit::Signal(31), None)),
        (Status::Killed, Some(CauseKind::SyscallDenied))
    );
}

#[test]
fn the_one_who_asked_the_jailer_to_kill_knows_why() {
    let asked = |stop| {
        short(&Facts {
            stop,
            ..told(Exit::Signal(9), Some(JailCause::Asked))
        })
    };
    assert_eq!(
        asked(Some(StopCause::Cancel)),
        (Status::Cancelled, Some(CauseKind::Cancel))
    );
    assert_eq!(
        asked(Some(StopCause::ClientGone)),
        (Status::Cancelled, Some(CauseKind::ClientGone))
    );
    assert_eq!(
        asked(Some(StopCause::Output)),
        (Status::OutputLimit, Some(CauseKind::Output))
    );
    assert_eq!(
        asked(Some(StopCause::WallTime)),
        (Status::Timeout, Some(CauseKind::WallTime))
    );
    assert_eq!(asked(None), (Status::Lost, Some(CauseKind::Internal)));
}

#[test]
fn a_late_cancellation_does_not_hide_how_the_code_ended() {
    let late = Facts {
        stop: Some(StopCause::Cancel),
        ..told(Exit::Code(1), None)
    };
    assert_eq!(short(&late), (Status::Error, None));
    let deadline_first = Facts {
        stop: Some(StopCause::Cancel),
        ..told(Exit::Signal(9), Some(JailCause::WallTime))
    };
    assert_eq!(short(&deadline_first), (Status::Timeout, Some(CauseKind::WallTime)));
}

#[test]
fn what_died_with_its_whole_jail_was_killed_if_that_was_meant() {
    let exit = |exit, cause| {
        let conclusion = conclude(&told(exit, cause));
        (conclusion.exit_code, conclusion.signal)
    };
    assert_eq!(exit(Exit::Unknown, Some(JailCause::Asked)), (None, Some(9)));
    assert_eq!(exit(Exit::Unknown, Some(JailCause::SessionAge)), (None, Some(9)));
    assert_eq!(exit(Exit::Unknown, Some(JailCause::Internal)), (None, None));
    assert_eq!(exit(Exit::Unknown, None), (None, None));
    assert_eq!(exit(Exit::Code(3), Some(JailCause::Asked)), (Some(3), None));
}

#[test]
fn what_nobody_saw_is_lost_unless_it_was_being_stopped() {
    assert_eq!(short(&facts(Ended::Lost)), (Status::Lost, Some(CauseKind::Internal)));
    assert_eq!(
        short(&told(Exit::Unknown, None)),
        (Status::Lost, Some(CauseKind::Internal))
    );
    let stopping = Facts {
        stop: Some(StopCause::WallTime),
        ..facts(Ended::Unconfirmed)
    };
    assert_eq!(short(&stopping), (Status::Timeout, Some(CauseKind::WallTime)));
}

#[test]
fn a_full_disk_or_process_limit_is_the_cause_only_if_the_code_failed_of_it() {
    for message in ["[Errno 28] No space left on device", "[Errno 122] Disk quota exceeded"] {
        let full = claim("OSError", message);
        let failed = Facts {
            claim: Some(&full),
            ..told(Exit::Code(1), None)
        };
        assert_eq!(short(&failed), (Status::Error, Some(CauseKind::Disk)));
        assert_eq!(conclude(&failed).limits_hit, [CauseKind::Disk]);
    }

    let refused = End {
        pids_refused: 3,
        ..end(Exit::Code(1), None)
    };
    let threads = claim("RuntimeError", "can't start new thread");
    let failed = Facts {
        claim: Some(&threads),
        ..facts(Ended::Told(refused))
    };
    assert_eq!(short(&failed), (Status::Error, Some(CauseKind::Processes)));

    let other = claim("ValueError", "x");
    let unrelated = conclude(&Facts {
        claim: Some(&other),
        ..facts(Ended::Told(refused))
    });
    assert_eq!(
        (unrelated.cause, unrelated.limits_hit),
        (None, vec![CauseKind::Processes])
    );
}

#[test]
fn a_disk_that_is_full_at_the_end_is_a_limit_hit_and_the_cause_of_a_failed_command_only() {
    let hit = vec![CauseKind::Disk];
    for full in [Full::Bytes, Full::Inodes] {
        let disk_full = Some(full);
        let coped = conclude(&Facts {
            disk_full,
            ..told(Exit::Code(0), None)
        });
        assert_eq!(
            (coped.status, coped.cause, coped.limits_hit),
            (Status::Success, None, hit.clone())
        );
        let failed = conclude(&Facts {
            disk_full,
            ..told(Exit::Code(1), None)
        });
        let cause = failed.cause.unwrap();
        let (limit, text) = match full {
            Full::Bytes => (Some(512 << 20), "512 MiB of files"),
            Full::Inodes => (None, "50000 files and directories"),
        };
        assert_eq!(
            (failed.status, cause.kind, cause.limit),
            (Status::Error, CauseKind::Disk, limit)
        );
        assert!(cause.message.contains(text), "{}", cause.message);
        assert!(failed.hint.unwrap().contains(text));
        let other = claim("ValueError", "x");
        let unrelated = conclude(&Facts {
            disk_full,
            claim: Some(&other),
            ..told(Exit::Code(1), None)
        });
        assert_eq!((unrelated.cause, unrelated.limits_hit), (None, hit.clone()));
    }
}

#[test]
fn running_out_of_memory_names_the_limit_that_holds_for_memory_and_files_together() {
    let memory = conclude(&told(Exit::Signal(9), Some(JailCause::Memory)));
    let together = "1024 MiB (512 MiB of memory and 512 MiB of files)";
    let cause = memory.cause.unwrap();
    assert_eq!(
        cause.message,
        format!("memory and files together needed more than {together}")
    );
    assert_eq!(cause.limit, Some(512 << 20));
    assert!(memory.hint.unwrap().contains(together));
    let mut on_disk = told(Exit::Signal(9), Some(JailCause::Memory));
    on_disk.limits.workspace = Workspace::Disk;
    let together = "576 MiB (512 MiB of memory and 64 MiB of files in /tmp)";
    assert!(conclude(&on_disk).hint.unwrap().contains(together));
}

#[test]
fn dropped_output_is_a_limit_hit() {
    let conclusion = conclude(&Facts {
        output_dropped: true,
        ..told(Exit::Code(0), None)
    });
    assert_eq!(
        (conclusion.status, conclusion.limits_hit),
        (Status::Success, vec![CauseKind::Output])
    );
}

#[test]
fn claims_of_the_kernel_change_no_status() {
    let lie = claim("KeyError", "'x'");
    assert_eq!(
        short(&Facts {
            claim: Some(&lie),
            ..told(Exit::Code(0), None)
        }),
        (Status::Success, None)
    );
}

#[test]
fn hints_are_given_where_they_are_certain() {
    let missing = claim("ModuleNotFoundError", "No module named 'foo'");
    let hint = conclude(&Facts {
        claim: Some(&missing),
        ..told(Exit::Code(1), None)
    })
    .hint
    .unwrap();
    assert!(hint.starts_with("The module foo is not installed"), "{hint}");
    let own = claim("MyError", "x");
    assert_eq!(
        conclude(&Facts {
            claim: Some(&own),
            ..told(Exit::Code(1), None)
        })
        .hint,
        None
    );
    let memory = conclude(&told(Exit::Signal(9), Some(JailCause::Memory))).hint.unwrap();
    assert!(
        !memory.contains("ask for more"),
        "the limit is the policy's maximum already: {memory}"
    );
}

#[test]
fn what_is_stopped_before_it_starts_is_cancelled() {
    let conclusion = stopped_early(StopCause::ClientGone);
    assert_eq!(
        (conclusion.status, conclusion.cause.unwrap().kind),
        (Status::Cancelled, CauseKind::ClientGone)
    );
}

#[test]
fn a_child_killed_for_memory_explains_why_the_code_failed() {
    let failed = End {
        oom_kills: 1,
        ..end(Exit::Code(1), None)
    };
    let conclusion = conclude(&facts(Ended::Told(failed)));
    assert_eq!(
        (conclusion.status, conclusion.cause, conclusion.limits_hit),
        (Status::Error, None, vec![CauseKind::Memory])
    );
    assert!(
        conclusion
            .hint
            .unwrap()
            .starts_with("A process that the code started was killed")
    );
}

#[test]
fn limits_of_time_beside_the_timeout_are_timeouts_with_causes_of_their_own() {
    let mut used = end(Exit::Signal(9), Some(JailCause::CpuTime));
    used.usage.cpu_us = 2_150_000;
    let cpu = conclude(&facts(Ended::Told(used)));
    let cause = cpu.cause.unwrap();
    assert_eq!(cpu.status, Status::Timeout);
    assert_eq!(
        (cause.kind, cause.limit, cause.used),
        (CauseKind::CpuTime, Some(2_000), Some(2_150))
    );
    assert_eq!(cpu.limits_hit, [CauseKind::CpuTime]);
    let idle = conclude(&Facts {
        stop: Some(StopCause::IdleTime(700)),
        ..told(Exit::Signal(9), Some(JailCause::Asked))
    });
    let cause = idle.cause.unwrap();
    assert_eq!(
        (idle.status, cause.kind, cause.limit),
        (Status::Timeout, CauseKind::IdleTime, Some(700))
    );
    assert_eq!(idle.limits_hit, [CauseKind::IdleTime]);
}

#[test]
fn an_interrupt_is_an_error_unless_the_code_survives_it() {
    let interrupted = |ended| Facts {
        interrupted: true,
        ..ended
    };
    let error = (Status::Error, Some(CauseKind::Interrupt));
    assert_eq!(short(&interrupted(told(Exit::Code(130), None))), error);
    assert_eq!(short(&interrupted(told(Exit::Signal(2), None))), error);
    assert_eq!(short(&interrupted(told(Exit::Code(0), None))), (Status::Success, None));
    assert_eq!(short(&interrupted(told(Exit::Code(3), None))), (Status::Error, None));
    let ignored = Facts {
        stop: Some(StopCause::Interrupt),
        ..interrupted(told(Exit::Signal(9), Some(JailCause::Asked)))
    };
    assert_eq!(short(&ignored), error);
    assert_eq!(short(&told(Exit::Code(130), None)), (Status::Error, None));
    assert_eq!(
        short(&told(Exit::Signal(2), None)),
        (Status::Killed, Some(CauseKind::Signal))
    );
}

#[test]
fn the_end_of_a_session_ends_what_runs_in_it_for_that_cause() {
    let asked = |stop| Facts {
        stop: Some(stop),
        ..told(Exit::Signal(9), Some(JailCause::Asked))
    };
    assert_eq!(
        short(&asked(StopCause::SessionClosed)),
        (Status::Cancelled, Some(CauseKind::SessionClosed))
    );
    let age = (Status::Timeout, Some(CauseKind::SessionAge));
    assert_eq!(short(&asked(StopCause::SessionAge)), age);
    assert_eq!(short(&told(Exit::Signal(9), Some(JailCause::SessionAge))), age);
}

#[test]
fn a_signal_that_a_caller_sent_is_told_as_theirs() {
    let message = |signals| {
        let conclusion = conclude(&Facts {
            signals,
            ..told(Exit::Signal(15), None)
        });
        (conclusion.status, conclusion.cause.unwrap().message)
    };
    let said = |who: &str| (Status::Killed, format!("the program was ended by signal 15, {who}"));
    assert_eq!(message(signal_bit(15) | signal_bit(1)), said("which a caller sent"));
    assert_eq!(message(signal_bit(16)), said("which Brig did not send"));
    assert_eq!([signal_bit(1), signal_bit(64), signal_bit(0)], [1, 1 << 63, 0]);
}

#[test]
fn too_much_output_ends_it_however_soon_the_program_ended_by_itself() {
    let stopped = |exit, cause| Facts {
        stop: Some(StopCause::Output),
        output_dropped: true,
        ..told(exit, cause)
    };
    let expected = (Status::OutputLimit, Some(CauseKind::Output));
    assert_eq!(short(&stopped(Exit::Signal(9), Some(JailCause::Asked))), expected);
    let by_itself = conclude(&stopped(Exit::Code(0), None));
    assert_eq!((by_itself.status, by_itself.exit_code), (expected.0, Some(0)));
    assert_eq!(by_itself.limits_hit, [CauseKind::Output]);
    // What the jailer ended it for came first.
    let timeout = short(&stopped(Exit::Signal(9), Some(JailCause::WallTime)));
    assert_eq!(timeout, (Status::Timeout, Some(CauseKind::WallTime)));
}

#[test]
fn a_fault_of_brig_is_told_as_one() {
    let stopped = |stop| Facts {
        stop: Some(stop),
        ..told(Exit::Signal(9), Some(JailCause::Asked))
    };
    assert_eq!(
        short(&stopped(StopCause::Fault)),
        (Status::Failed, Some(CauseKind::Internal))
    );
}
