//! A session that had waited is as one that was made when it was asked for, value for value.

use std::time::Duration;

use brig_proto::v1::{ExecutionSpec, StartKind};
use brig_tests::spec::{code, small};
use brig_tests::{Service, eventually, slow};
use rustix::process::Signal;
use serde_json::Value;

use super::{await_waiting, pool, prime, run_in_waiting, session, start};

/// Looks around; what is named after the session and the execution is named the same in all.
fn look(outcome: &brig_tests::Outcome) -> Value {
    let execution = &outcome.result.execution_id;
    let text = outcome.stdout();
    let text = text
        .replace(session(outcome), "SESSION")
        .replace(execution, "EXECUTION");
    let mut seen: Value = serde_json::from_str(&text).unwrap();
    leave_out_numbers(&mut seen);
    seen
}

/// Two processes were on the way of a fork, and two filters are below that of the session (docs/jail.md).
pub(super) fn leave_out_numbers(seen: &mut Value) {
    let status = seen["status"].as_object_mut().unwrap();
    for name in ["Pid", "Tgid", "NStgid", "NSpid", "NSpgid", "NSsid", "Seccomp_filters"] {
        assert!(status.remove(name).is_some(), "{name}");
    }
}

pub(super) fn assert_same(cold: &Value, other: &Value) {
    let differs =
        |(name, value): (&String, &Value)| (other[name] != *value).then(|| format!("{name}: {value} {}", other[name]));
    let different: Vec<String> = cold.as_object().unwrap().iter().filter_map(differs).collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(other.as_object().unwrap().len(), cold.as_object().unwrap().len());
}

pub(super) const PROBE: &str = include_str!("probe.py");

#[test]
fn code_finds_the_same_jail_however_its_session_came_to_be() {
    let Some(services) = pool(1) else { return };
    let cold = services.run(small(PROBE)).expect_success();
    assert_eq!(start(&cold), StartKind::Cold);
    let pooled = run_in_waiting(&services, small(PROBE)).expect_success();
    let named = brig_proto::v1::ExecutionSpec {
        session_id: "asked1".to_owned(),
        ..small(PROBE)
    };
    let forked = services.run(named).expect_success();
    assert_eq!(start(&forked), StartKind::Forked);
    let (cold_seen, pooled_seen, forked_seen) = (look(&cold), look(&pooled), look(&forked));
    for seen in [&pooled_seen, &forked_seen] {
        assert_same(&cold_seen, seen);
    }
    let enforced = |outcome: &brig_tests::Outcome| outcome.result.enforced.clone().unwrap();
    assert_eq!(enforced(&pooled), enforced(&cold));
    assert_eq!(enforced(&forked), enforced(&cold));
    // The probe saw something: a list that is empty everywhere is the same everywhere.
    assert_eq!(pooled_seen["status"]["CapBnd"][0], "0000000000000000");
    assert_eq!(pooled_seen["status"]["Seccomp"][0], "2");
    assert!(pooled_seen["filtered"].as_array().unwrap().len() > 100);
    assert_eq!(pooled_seen["writable"]["/usr"], "EROFS");
    assert_eq!(pooled_seen["state"]["host"][0], "SESSION");
}

/// What makes a process like no other.
const IDENTITY: &str = "
import os, random, secrets, ssl, sys, tempfile, uuid
import numpy
print(random.random(), uuid.uuid4(), uuid.uuid1(), secrets.token_hex(), ssl.RAND_bytes(8).hex(), tempfile.mkdtemp(),
      numpy.random.random(), numpy.random.default_rng().random(), sep='\\n')
";

/// What siblings have from their zygote: the seed of hashes, and where things lie.
const SHARED: &str = "
print(hash('brig'), [line.split('-')[0] for line in open('/proc/self/maps') if 'libc.so' in line][0])
";

#[test]
fn each_session_has_random_numbers_of_its_own() {
    let Some(services) = pool(1) else { return };
    assert_eq!(start(&services.run(code(IDENTITY))), StartKind::Cold);
    let [one, two] = [(); 2].map(|()| run_in_waiting(&services, code(IDENTITY)).expect_success().stdout());
    let same: Vec<_> = one.lines().zip(two.lines()).filter(|(one, two)| one == two).collect();
    assert_eq!((same, one.lines().count()), (Vec::new(), 8), "{one}");
}

#[test]
fn addresses_and_the_seed_of_hashes_are_those_of_the_zygote() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let [one, two] = [(); 2].map(|()| run_in_waiting(&services, small(SHARED)).expect_success().stdout());
    assert_eq!(one, two);
    await_waiting(&services, 1);
    services.signal(Service::Daemon, Signal::HUP);
    await_waiting(&services, 0);
    prime(&services);
    let other = run_in_waiting(&services, small(SHARED)).expect_success().stdout();
    for (one, other) in one.split_whitespace().zip(other.split_whitespace()) {
        assert_ne!(one, other);
    }
}

/// How many mappings there are, the largest that nothing can be done with, how much of what was imported lies in one of them,
/// and whether the memory of objects comes and goes.
const MEMORY: &str = "
import bisect, sys, types
maps = [line.split() for line in open('/proc/self/maps')]
size = lambda place: int.__sub__(*(int(end, 16) for end in reversed(place.split('-'))))
print(len(maps), max(size(place) for place, rights, *_ in maps if rights == '---p') >> 20)
starts = [int(place.split('-')[0], 16) for place, *_ in maps]
functions = [one for module in list(sys.modules.values()) for one in list(vars(module).values())
             if isinstance(one, types.FunctionType)]
lies = [bisect.bisect(starts, id(one)) for one in functions]
print(len(lies), 100 * max(map(lies.count, set(lies))) // len(lies))
for _ in range(3):
    print(sum(map(len, [str(number) * 9 for number in range(400_000)])))
def deep(levels):
    return 0 if levels == 0 else 1 + deep(levels - 1)
print(sum(deep(900) for _ in range(3000)))
";

#[test]
fn the_memory_of_a_fork_lies_together() {
    let Some(services) = pool(1) else { return };
    assert_eq!(start(&services.run(code("print(0)"))), StartKind::Cold);
    let told = run_in_waiting(&services, code(MEMORY)).expect_success().stdout();
    let numbers: Vec<u64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!(numbers[4..], [20_600_010, 20_600_010, 20_600_010, 2_700_000]);
    assert!(numbers[2] > 1000 && numbers[3] > 80, "{told}");
    // Each library of the template has two or three in place of five or six; and no address is kept for nothing.
    assert!(numbers[0] < 800 && numbers[1] < 100, "{told}");
}

#[test]
fn what_the_template_names_is_imported_and_nothing_else_of_it_shows() {
    let Some(services) = pool(1) else { return };
    let source = "import sys; print('pandas' in sys.modules, 'x' in vars(sys.modules['__main__']))\n\
                  import pandas, numpy, matplotlib.pyplot as plt\n\
                  print(pandas.DataFrame({'a': numpy.arange(10)}).a.sum(), numpy.random.rand() < 1)\n\
                  plt.plot([1, 2]); plt.show()";
    let cold = services.run(code(source)).expect_success();
    assert_eq!(cold.stdout(), "False False\n45 True\n");
    let pooled = run_in_waiting(&services, code(source)).expect_success();
    assert_eq!(
        (pooled.stdout(), pooled.stderr()),
        ("True False\n45 True\n".to_owned(), String::new())
    );
    let shown = |outcome: &brig_tests::Outcome| {
        outcome
            .result
            .results
            .iter()
            .map(|one| one.data.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(&pooled), shown(&cold));
    // What was done before is nobody's: neither files nor processor time.
    assert_eq!(pooled.paths(), cold.paths());
    let cpu = |outcome: &brig_tests::Outcome| outcome.result.usage.unwrap().cpu_time.unwrap();
    assert!((cpu(&pooled).seconds, cpu(&pooled).nanos) < (cpu(&cold).seconds, cpu(&cold).nanos));
}

#[test]
fn a_session_that_waits_runs_the_templates_line_itself() {
    let Some(services) = pool(1) else { return };
    let source = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)";
    let faults = |outcome: &brig_tests::Outcome| outcome.stdout().trim().parse::<u64>().unwrap();
    services.run(code(source)).expect_success();
    await_waiting(&services, 1);
    // Who brings a name along is given no session that has one. On a busy host one may have waited for its request.
    let forked = ["one", "two", "three", "four", "five"].map(|name| {
        let outcome = services.run(ExecutionSpec {
            execution_id: name.to_owned(),
            ..code(source)
        });
        assert_eq!(start(&outcome), StartKind::Forked);
        faults(&outcome.expect_success())
    });
    // What pandas writes to for two numbers is some hundreds of pages.
    let least = forked.iter().min().unwrap() + 300;
    eventually("it has run the line", Duration::from_secs(60) * slow(), || {
        std::thread::sleep(Duration::from_millis(300));
        let found = faults(&run_in_waiting(&services, code(source)).expect_success());
        if found >= least { Ok(()) } else { Err((found, least)) }
    });
}
