//! What surrounds a program: variables, threads, files, clock, chance.

use std::collections::BTreeMap;

use brig_proto::v1::{ExecutionSpec, Limits};
use brig_tests::daemon;
use brig_tests::spec::{code, small};
use serde_json::json;

const THREADS: [&str; 7] = [
    "BLIS_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
];

fn on_cpus(cpus: f64, spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        limits: Some(Limits {
            cpus: Some(cpus),
            ..Limits::default()
        }),
        ..spec
    }
}

#[test]
fn the_environment_is_the_templates_and_nothing_else() {
    let daemon = daemon!();
    let printed = daemon.stdout(code("import json, os\nprint(json.dumps(dict(os.environ)))"));
    let found: BTreeMap<String, String> = serde_json::from_str(&printed).unwrap();
    let mut expected = BTreeMap::from(
        [
            ("HOME", "/home/user"),
            ("JE_ARROW_MALLOC_CONF", "background_thread:false"),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "user"),
            ("MPLBACKEND", "Agg"),
            ("MPLCONFIGDIR", "/tmp/.matplotlib"),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("PYTHONUNBUFFERED", "1"),
            ("SHELL", "/bin/bash"),
            ("TZ", "UTC"),
            ("USER", "user"),
            ("XDG_CACHE_HOME", "/tmp/.cache"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    expected.extend(THREADS.map(|name| (name.to_owned(), "1".to_owned())));
    assert_eq!(found, expected);
}

#[test]
fn a_variable_that_the_policy_allows_arrives() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        environment: [("TZ".to_owned(), "Europe/Berlin".to_owned())].into(),
        ..small("import time\nprint(time.strftime('%Z', time.localtime(0)), time.tzname)")
    };
    assert_eq!(daemon.stdout(spec), "CET ('CET', 'CEST')\n");
}

#[test]
fn libraries_use_as_many_threads_as_there_are_cpus() {
    let daemon = daemon!();
    let source = "\
import os
import numpy
from threadpoolctl import threadpool_info
print(os.environ['OMP_NUM_THREADS'], {pool['num_threads'] for pool in threadpool_info()})
";
    assert_eq!(daemon.stdout(on_cpus(1.0, code(source))), "1 {1}\n");
    assert_eq!(daemon.stdout(on_cpus(2.0, code(source))), "2 {2}\n");
    // Half a CPU is one thread.
    assert_eq!(daemon.stdout(on_cpus(0.5, code(source))), "1 {1}\n");
}

#[test]
fn text_is_utf8_everywhere() {
    let daemon = daemon!();
    let source = "\
import locale, os, subprocess, sys
print(sys.stdout.encoding, sys.getfilesystemencoding(), locale.getpreferredencoding(False), locale.setlocale(locale.LC_ALL, ''))
name = 'Übersicht – 売上 📈.txt'
open(name, 'w').write('naïve café ☕')
print(os.listdir('.'), open(name).read())
print(subprocess.run(['ls'], capture_output=True, text=True).stdout, end='')
";
    let outcome = daemon.run(small(source)).expect_success();
    assert_eq!(
        outcome.stdout(),
        "utf-8 utf-8 UTF-8 C.UTF-8\n['Übersicht – 売上 📈.txt'] naïve café ☕\nÜbersicht – 売上 📈.txt\n"
    );
    assert_eq!(outcome.paths(), ["Übersicht – 売上 📈.txt"]);
}

#[test]
fn temporary_files_are_made_outside_the_working_directory() {
    let daemon = daemon!();
    let source = "\
import os, pathlib, tempfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as file:
    pathlib.Path(folder, 'x').write_text('x')
    file.write(b'y')
    print(folder.startswith('/tmp/'), file.name.startswith('/tmp/'))
kept = tempfile.mkstemp()[1]
print(pathlib.Path.home(), os.path.expanduser('~/x'), os.access('/usr', os.W_OK))
";
    let outcome = daemon.run(small(source)).expect_success();
    assert_eq!(outcome.stdout(), "True True\n/home/user /home/user/x False\n");
    assert_eq!(outcome.paths(), Vec::<&str>::new());
}

#[test]
fn chance_differs_from_run_to_run() {
    let daemon = daemon!();
    let source = "\
import os, random, secrets, uuid
import numpy as np
for value in (uuid.uuid4(), uuid.uuid1(), random.random(), secrets.token_hex(), os.urandom(8), np.random.rand()):
    print(value)
";
    let (first, second) = (daemon.stdout(code(source)), daemon.stdout(code(source)));
    let same: Vec<_> = first
        .lines()
        .zip(second.lines())
        .filter(|(one, other)| one == other)
        .collect();
    assert_eq!((first.lines().count(), same), (6, vec![]));
}

#[test]
fn time_zones_are_known_and_the_clock_is_right() {
    let daemon = daemon!();
    let source = "\
import datetime, time, zoneinfo
print(len(zoneinfo.available_timezones()) > 400)
noon = datetime.datetime(2025, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo('Asia/Tokyo'))
print(noon.astimezone(zoneinfo.ZoneInfo('America/New_York')))
print(time.time())
";
    let printed = daemon.stdout(small(source));
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[..2], ["True", "2025-06-30 23:00:00-04:00"]);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let theirs: f64 = lines[2].parse().unwrap();
    assert!((now - theirs).abs() < 10.0, "{now} {theirs}");
}

#[test]
fn the_user_and_the_host_have_names() {
    let daemon = daemon!();
    let source = "\
import getpass, os, pwd, socket
print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, os.getuid(), os.getgid(), os.getgroups())
print(socket.gethostbyname('localhost'))
";
    let printed = daemon.stdout(small(source));
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("user /home/user 1000 1000 ["), "{printed}");
    assert_eq!(lines[1], "127.0.0.1");
}

#[test]
fn nothing_of_one_run_is_there_in_the_next() {
    let daemon = daemon!();
    let leave = "open('left', 'w'); open('/tmp/left', 'w'); open('/dev/shm/left', 'w')";
    daemon.run(small(leave)).expect_success();
    let look = "import os, json\nprint(json.dumps([os.listdir(place) for place in ('.', '/tmp', '/dev/shm')]))";
    let printed = daemon.stdout(small(look));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&printed).unwrap(),
        json!([[], [], []])
    );
}

#[test]
fn packages_of_the_template_are_there_in_the_versions_that_it_says() {
    let daemon = daemon!();
    let source = "\
import importlib
for name in 'matplotlib numpy openpyxl pandas PIL pyarrow sklearn scipy seaborn tabulate'.split():
    importlib.import_module(name)
from importlib.metadata import version
print(version('pandas'), version('numpy'))
";
    let printed = daemon.stdout(code(source));
    let template = include_str!("../../../rootfs/templates/data.toml");
    let (pandas, numpy) = printed.trim().split_once(' ').unwrap();
    assert!(template.contains(&format!("\"pandas=={pandas}\"")), "{printed}");
    assert!(template.contains(&format!("\"numpy=={numpy}\"")), "{printed}");
}
